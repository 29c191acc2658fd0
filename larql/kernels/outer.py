"""Register tiles for attention: sums over keys or dimensions with lanes across the other axis."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.jit import cgutils, device, instruction, types
from larql.kernels.memory import edges, prefetch_lines, read, write
from larql.kernels.shape import narrow, narrow_rows, tile_columns, tile_rows
from larql.kernels.stored import read_stored, size_of, stored_bytes
from larql.kernels.vector import F32, LANES, constant, fused, spread

__all__ = ["outer_product"]

_WORD = ir.IntType(64)


@instruction
def _tile(
    typingctx: Any,
    variant: Any,
    a: Any,
    a_stride: Any,
    last: Any,
    b: Any,
    b_stride: Any,
    count: Any,
    ahead: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """Write out[i, j] = sum over k < count of a[i, k] * b[k, j], k ascending, from zero, fused.

    `variant.rows` rows i at once, those past `last` repeating it, and 16 * `variant.columns` of j.
    All addresses and strides are in bytes; rows of a and out are contiguous float32, rows of b in
    the variant's stored form. What lies `ahead` bytes behind b is fetched into the cache meanwhile.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, a, a_stride, last, b, b_stride, count, ahead, out, out_stride = args
        rows = edges(builder, a, a_stride, last, variant.rows)
        targets = edges(builder, out, out_stride, last, variant.rows)
        zero = constant(F32.llvm, 0.0)
        groups, size = range(variant.columns), LANES * size_of(variant)
        sums = [[cgutils.alloca_once_value(builder, zero) for _ in groups] for _ in rows]
        with cgutils.for_range(builder, count, intp=_WORD) as loop:
            start = builder.add(b, builder.mul(loop.index, b_stride))
            # Not into the first level: the blocks that are worked on fill it.
            prefetch_lines(builder, builder.add(start, ahead), variant.columns * size)
            values = [
                read_stored(variant, builder, builder.add(start, _WORD(group * size)))
                for group in groups
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

    return types.void(variant, *[types.int64] * 9), emit


@device
def _rows(
    variant: Any, a: int, a_stride: int, rows: int, b: int, b_stride: int, count: int, ahead: int,
    out: int, out_stride: int,
) -> None:  # fmt: skip
    """Write the tiles of all rows: whole ones, and one as high as what is left."""
    row = 0
    while row < rows:
        left, x, y = rows - row, a + row * a_stride, out + row * out_stride
        if left > 4:
            _tile(variant, x, a_stride, left - 1, b, b_stride, count, ahead, y, out_stride)
        elif left == 4:
            four = narrow_rows(variant, 4)
            _tile(four, x, a_stride, 3, b, b_stride, count, ahead, y, out_stride)
        elif left == 3:
            three = narrow_rows(variant, 3)
            _tile(three, x, a_stride, 2, b, b_stride, count, ahead, y, out_stride)
        elif left == 2:
            two = narrow_rows(variant, 2)
            _tile(two, x, a_stride, 1, b, b_stride, count, ahead, y, out_stride)
        else:
            one = narrow_rows(variant, 1)
            _tile(one, x, a_stride, 0, b, b_stride, count, ahead, y, out_stride)
        row += tile_rows(variant)


@device
def outer_product(
    variant: Any, a: int, a_stride: int, rows: int, b: int, b_stride: int, count: int, width: int,
    ahead: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """Write out[i, j] = sum over k of a[i, k] * b[k, j], each one chain of fused multiply-adds.

    `variant` says the tile's rows (more than four) and columns, and the stored form of b. `width`,
    how many j there are, is a multiple of 16. What lies `ahead` bytes behind b, as far as b goes,
    is fetched into the cache meanwhile.
    """
    at, whole = 0, 16 * tile_columns(variant)
    while at < width:
        source, target = b + at * stored_bytes(variant), out + at * 4
        if width - at >= whole:
            _rows(
                variant, a, a_stride, rows, source, b_stride, count, ahead, target, out_stride
            )  # fmt: skip
            at += whole
        else:
            part = narrow(variant, 1)
            _rows(part, a, a_stride, rows, source, b_stride, count, ahead, target, out_stride)
            at += 16
