"""Register tiles for attention: sums over keys or dimensions with lanes across the other axis."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.memory import read, write
from larql.kernels.vector import F32, LANES, constant, fused, spread

__all__ = ["WIDTH", "outer_tile", "transpose"]

_WORD = ir.IntType(64)
_GROUPS = 4
WIDTH = _GROUPS * LANES


@instruction
def outer_tile(
    typingctx: Any,
    variant: Any,
    a: Any,
    a_stride: Any,
    last: Any,
    b: Any,
    b_stride: Any,
    count: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """Write out[i, 0:64] = sum over k of a[i, k] * b[k, 0:64], k ascending, from zero, fused.

    `variant.rows` rows i at once; those past `last` repeat it. All addresses and strides in bytes;
    rows of a and b are contiguous float32. Each element is one chain of fused multiply-adds.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, a, a_stride, last, b, b_stride, count, out, out_stride = args
        rows, targets = [], []
        for index in range(variant.rows):
            at = _WORD(index)
            at = builder.select(builder.icmp_signed("<", at, last), at, last) if index else at
            rows.append(builder.add(a, builder.mul(at, a_stride)))
            targets.append(builder.add(out, builder.mul(at, out_stride)))
        zero = constant(F32.llvm, 0.0)
        sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(_GROUPS)] for _ in rows]
        with cgutils.for_range(builder, count, intp=_WORD) as loop:
            start = builder.add(b, builder.mul(loop.index, b_stride))
            values = [
                read(builder, builder.add(start, _WORD(group * LANES * 4)), F32.llvm)
                for group in range(_GROUPS)
            ]
            distance = builder.mul(loop.index, _WORD(4))
            for row, places in zip(rows, sums, strict=True):
                factor = spread(builder, read(builder, builder.add(row, distance), ir.FloatType()))
                for value, place in zip(values, places, strict=True):
                    builder.store(fused(builder, factor, value, builder.load(place)), place)
        for target, places in zip(targets, sums, strict=True):
            for group, place in enumerate(places):
                at = builder.add(target, _WORD(group * LANES * 4))
                write(builder, builder.load(place), at)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 8), emit


@instruction
def transpose(
    typingctx: Any, source: Any, source_stride: Any, target: Any, target_stride: Any
) -> Any:
    """Copy a 16 × 16 square of float32, rows becoming columns; strides in bytes."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source, source_stride, target, target_stride = args
        rows = [
            read(builder, builder.add(source, builder.mul(_WORD(i), source_stride)), F32.llvm)
            for i in range(LANES)
        ]
        half = LANES // 2
        masks = [
            ir.Constant(
                ir.VectorType(ir.IntType(32), LANES),
                [at + i // 2 + LANES * (i % 2) for i in range(LANES)],
            )
            for at in (0, half)
        ]
        for _ in range(4):  # four perfect shuffles of sixteen rows
            rows = [
                builder.shuffle_vector(rows[i // 2], rows[i // 2 + half], masks[i % 2])
                for i in range(LANES)
            ]
        for i, row in enumerate(rows):
            write(builder, row, builder.add(target, builder.mul(_WORD(i), target_stride)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit
