"""Vectors of sixteen lanes as Numba values.

A kernel written with these types has the same bits on every target: LLVM splits the vectors into
whatever registers there are, and each operation below is exactly rounded or integer. Nothing here
reassociates, and multiply and add are fused only where `fma` says so.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir

from larql.kernels.jit import imputils, instruction, models, register_model, templates, types

__all__ = ["F32", "I32", "LANES", "MASK", "Vector"]

LANES = 16

_ELEMENTS = {"f32": ir.FloatType(), "i32": ir.IntType(32), "mask": ir.IntType(1)}


class Vector(types.Type):
    """A Numba type of `LANES` equal elements: 'f32', 'i32' or 'mask' (one bit each)."""

    def __init__(self, element: str) -> None:
        self.element = element
        super().__init__(name=f"Vector({element})")

    @property
    def llvm(self) -> ir.VectorType:
        """Return the LLVM type of a value."""
        return ir.VectorType(_ELEMENTS[self.element], LANES)


class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        init: Any = super().__init__
        init(dmm, fe_type, fe_type.llvm)


register_model(Vector)(_VectorModel)


F32 = Vector("f32")
I32 = Vector("i32")
MASK = Vector("mask")


def _binary(symbol: Any, element: Vector, result: Vector, emit: Any) -> None:
    """Give an operator a meaning for two vectors of one kind."""

    def generic(self: Any, args: Any, kws: Any) -> Any:
        if len(args) == 2 and args[0] == element and args[1] == element:
            return templates.signature(result, element, element)
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(builder, args[0], args[1])

    template = type("VectorOperator", (templates.AbstractTemplate,), {"generic": generic})
    templates.infer_global(symbol)(template)
    imputils.lower_builtin(symbol, element, element)(lower)


_binary(operator.add, F32, F32, lambda b, x, y: b.fadd(x, y))
_binary(operator.sub, F32, F32, lambda b, x, y: b.fsub(x, y))
_binary(operator.mul, F32, F32, lambda b, x, y: b.fmul(x, y))
_binary(operator.truediv, F32, F32, lambda b, x, y: b.fdiv(x, y))
_binary(operator.lt, F32, MASK, lambda b, x, y: b.fcmp_ordered("<", x, y))
_binary(operator.gt, F32, MASK, lambda b, x, y: b.fcmp_ordered(">", x, y))
_binary(operator.ne, F32, MASK, lambda b, x, y: b.fcmp_unordered("!=", x, y))
_binary(operator.add, I32, I32, lambda b, x, y: b.add(x, y))
_binary(operator.sub, I32, I32, lambda b, x, y: b.sub(x, y))
_binary(operator.and_, I32, I32, lambda b, x, y: b.and_(x, y))
_binary(operator.or_, I32, I32, lambda b, x, y: b.or_(x, y))
_binary(operator.lshift, I32, I32, lambda b, x, y: b.shl(x, y))
_binary(operator.rshift, I32, I32, lambda b, x, y: b.ashr(x, y))
_binary(operator.lt, I32, MASK, lambda b, x, y: b.icmp_signed("<", x, y))
_binary(operator.and_, MASK, MASK, lambda b, x, y: b.and_(x, y))
_binary(operator.or_, MASK, MASK, lambda b, x, y: b.or_(x, y))


def constant(vector: ir.VectorType, value: float | int) -> ir.Constant:
    """Return `value` in every lane."""
    return ir.Constant(vector, [value] * vector.count)


def spread(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """Emit `scalar` in every lane."""
    vector = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(
        ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0)
    )
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Emit a*b + c, rounded once, for scalars or vectors of float32 or float64."""
    vector = a.type
    element = vector.element if isinstance(vector, ir.VectorType) else vector
    width = "f64" if isinstance(element, ir.DoubleType) else "f32"
    name = f"v{vector.count}{width}" if isinstance(vector, ir.VectorType) else width
    function = _declare(builder, f"llvm.fma.{name}", vector, [vector] * 3)
    return builder.call(function, [a, b, c])


def _declare(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    module = builder.module
    found = module.globals.get(name)
    return found or ir.Function(module, ir.FunctionType(result, arguments), name)


def halve(builder: Any, vector: Any, combine: Any) -> Any:
    """Emit the fixed reduction tree: lane i with lane i + n/2, until one lane is left."""
    count = vector.type.count
    while count > 1:
        count //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(
                vector,
                undefined,
                ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(at, at + count))),
            )
            for at in (0, count)
        )
        vector = combine(low, high)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def shuffled(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(a, b, mask)


def transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Emit the transpose of a square of vectors, whose size is a power of two."""
    count = len(rows)
    half = 1
    while half < count:
        lanes = range(count)
        low = [i if not i & half else count + i - half for i in lanes]
        high = [i + half if not i & half else count + i for i in lanes]
        turned = list(rows)
        for index in lanes:
            if not index & half:
                a, b = rows[index], rows[index + half]
                turned[index] = shuffled(builder, a, b, low)
                turned[index + half] = shuffled(builder, a, b, high)
        rows, half = turned, 2 * half
    return rows


def halve_four(builder: Any, vectors: list[Any], combine: Any) -> Any:
    """Emit `halve` of four vectors at once, as the four lanes of one; the same sums."""
    parts = []
    for vector in vectors:
        while vector.type.count > 4:
            half = vector.type.count // 2
            low = shuffled(builder, vector, vector, list(range(half)))
            vector = combine(low, shuffled(builder, vector, vector, list(range(half, 2 * half))))
        parts.append(vector)
    pairs = [
        combine(shuffled(builder, a, b, [0, 1, 4, 5]), shuffled(builder, a, b, [2, 3, 6, 7]))
        for a, b in (parts[:2], parts[2:])
    ]
    a, b = pairs
    return combine(shuffled(builder, a, b, [0, 2, 4, 6]), shuffled(builder, a, b, [1, 3, 5, 7]))


@instruction
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a*b + c rounded once; vectors, float32 or float64, all of one type."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return fused(builder, *args)

    if a == b == c and (a == F32 or a in (types.float32, types.float64)):
        return a(a, a, a), emit
    return None


@instruction
def root(typingctx: Any, value: Any) -> Any:
    """Return the exactly rounded square root of a float32."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = ir.FloatType()
        return builder.call(_declare(builder, "llvm.sqrt.f32", number, [number]), args)

    return (value(value), emit) if value == types.float32 else None


@instruction
def splat(typingctx: Any, value: Any) -> Any:
    """Return the scalar `value` (float32 or int32) in every lane."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return spread(builder, args[0])

    if value == types.float32:
        return F32(value), emit
    if value == types.int32:
        return I32(value), emit
    return None


@instruction
def first_lane(typingctx: Any, value: Any) -> Any:
    """Return lane 0."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.extract_element(args[0], ir.Constant(ir.IntType(32), 0))

    return (types.float32(F32), emit) if value == F32 else None


@instruction
def lane_sum(typingctx: Any, value: Any) -> Any:
    """Return the sum of all lanes in the fixed tree order."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return halve(builder, args[0], builder.fadd)

    return (types.float32(F32), emit) if value == F32 else None


@instruction
def lane_maximum(typingctx: Any, value: Any) -> Any:
    """Return the largest lane; NaN lanes lose."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def larger(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        return halve(builder, args[0], larger)

    return (types.float32(F32), emit) if value == F32 else None


@instruction
def select(typingctx: Any, mask: Any, yes: Any, no: Any) -> Any:
    """Return `yes` where `mask` is set, else `no`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(*args)

    return (yes(MASK, yes, yes), emit) if mask == MASK and yes == no else None


@instruction
def bits(typingctx: Any, value: Any) -> Any:
    """Reinterpret float32 lanes as int32 lanes, or the other way round."""
    other = {F32: I32, I32: F32}.get(value)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], sig.return_type.llvm)

    return (other(value), emit) if other is not None else None


@instruction
def lane_numbers(typingctx: Any) -> Any:
    """Return 0, 1, 2 … as int32 lanes."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(I32.llvm, list(range(LANES)))

    return I32(), emit


@instruction
def whole_lanes(typingctx: Any, value: Any, most: Any, rounder: Any) -> Any:
    """Return `value` rounded to integers and kept within ± `most`; `rounder` is 1.5 * 2^23."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value, most, rounder = args
        near = builder.fsub(builder.fadd(value, rounder), rounder)
        least = builder.fneg(most)
        near = builder.select(builder.fcmp_ordered(">", near, most), most, near)
        return builder.select(builder.fcmp_ordered("<", near, least), least, near)

    return (F32(F32, F32, F32), emit) if value == most == rounder == F32 else None
