"""Numbers as a state keeps them: float32, or binary16 that is widened exactly when it is read.

The variant's encoding names the form, ``f32`` or ``f16``. Rounding to binary16 is to nearest, ties
to even, as IEEE 754 has it: magnitudes from 65520 on become infinite.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.jit import Variant, cgutils, instruction, types
from larql.kernels.levels import emitter
from larql.kernels.memory import read, write
from larql.kernels.vector import F32

__all__ = ["read_stored", "scatter_stored", "store_stored", "stored_bytes"]

_WORD = ir.IntType(64)
_BYTES = {"f32": 4, "f16": 2}


def size_of(variant: Variant) -> int:
    """Return the bytes of one stored number."""
    return _BYTES[variant.encoding]


def read_stored(variant: Variant, builder: Any, address: Any) -> Any:
    """Emit a load of 16 stored numbers as float32 lanes."""
    if variant.encoding == "f16":
        return emitter(variant.level, builder).halves(address)
    return read(builder, address, F32.llvm)


def _packed(variant: Variant, builder: Any, value: Any) -> Any:
    """Emit 16 float32 lanes in the stored form."""
    if variant.encoding == "f16":
        return emitter(variant.level, builder).rounded_halves(value)
    return value


@instruction
def stored_bytes(typingctx: Any, variant: Any) -> Any:
    """Return how many bytes a stored number takes."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _WORD(size_of(variant))

    return types.int64(variant), emit


@instruction
def store_stored(typingctx: Any, variant: Any, address: Any, value: Any) -> Any:
    """Write 16 numbers side by side."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        write(builder, _packed(variant, builder, args[2]), args[1])
        return context.get_dummy_value()

    return types.void(variant, types.int64, F32), emit


@instruction
def scatter_stored(
    typingctx: Any, variant: Any, address: Any, stride: Any, value: Any, count: Any
) -> Any:
    """Write the first `count` lanes `stride` bytes apart."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, address, stride, value, count = args
        packed = _packed(variant, builder, value)
        buffer = cgutils.alloca_once(builder, packed.type)
        builder.store(packed, buffer)
        source = builder.ptrtoint(buffer, _WORD)
        size = size_of(variant)
        with cgutils.for_range(builder, count, intp=_WORD) as loop:
            lane = builder.add(source, builder.mul(loop.index, _WORD(size)))
            target = builder.add(address, builder.mul(loop.index, stride))
            write(builder, read(builder, lane, packed.type.element), target)
        return context.get_dummy_value()

    return types.void(variant, types.int64, types.int64, F32, types.int64), emit
