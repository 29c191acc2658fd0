"""The one definition of an encoded row times an int8 vector, for any number of both at once.

Eight float32 lanes; of each group of 32 elements lane j takes elements 4j … 4j + 3. With I the
exact integer dot product of those four, S the sum of their four activations, w and m the group's
scale and shift and d the activations' scale: lane = fma(I, w d, lane), then, where the encoding has
shifts, lane = fma(S, m d, lane). Groups ascend, from zero; the lanes are summed by halving.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.integers import GROUP, INTEGERS, QUADS, Group, integer_emitter, quarter_sums
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.memory import offset, prefetch, read, write
from larql.kernels.scales import SCALES
from larql.kernels.vector import F32, I32, constant, fused, halve, spread

__all__ = ["integer_tile", "store_rounded", "store_sums"]

_WORD = ir.IntType(64)
_LANES = ir.VectorType(ir.FloatType(), 8)
_BYTES = ir.VectorType(ir.IntType(8), GROUP)


@instruction
def store_rounded(typingctx: Any, address: Any, value: Any) -> Any:
    """Write 16 float32 that are small integers as int8."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        small = ir.VectorType(ir.IntType(8), 16)
        write(builder, builder.trunc(builder.fptosi(args[1], I32.llvm), small), args[0])
        return context.get_dummy_value()

    return types.void(types.int64, F32), emit


@instruction
def store_sums(typingctx: Any, values: Any, target: Any) -> Any:
    """Write the sums of each four of the 32 int8 at `values` as eight int32 to `target`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = builder.sext(read(builder, args[0], _BYTES), ir.VectorType(ir.IntType(32), GROUP))
        write(builder, quarter_sums(builder, wide), args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def _numbers(builder: Any, place: Any, which: tuple[int, ...]) -> Any:
    """Emit eight lanes of one prepared number, or of two, half each."""
    spreaded = [
        spread(builder, read(builder, offset(builder, place, 4 * index), ir.FloatType()), 8)
        for index in which
    ]
    if len(spreaded) == 1:
        return spreaded[0]
    halves = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0, 1, 2, 3, 12, 13, 14, 15])
    return builder.shuffle_vector(*spreaded, halves)


def _edges(builder: Any, base: Any, stride: Any, last: Any, count: int) -> list[Any]:
    found = []
    for index in range(count):
        at = builder.select(builder.icmp_signed("<", _WORD(index), last), _WORD(index), last)
        found.append(builder.add(base, builder.mul(at, stride)))
    return found


@instruction
def integer_tile(
    typingctx: Any,
    variant: Any,
    weight: Any,
    weight_stride: Any,
    last_row: Any,
    prepared: Any,
    ahead: Any,
    blocks: Any,
    values: Any,
    scales: Any,
    sums: Any,
    columns: Any,
    last_column: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """Multiply `variant.rows` encoded rows by `variant.columns` quantised vectors of `columns`.

    Addresses and strides are in bytes; the last valid row and column are counted from this tile's
    first, and what is past them repeats them. `prepared` holds the rows' scales one row after the
    other. Weights `ahead` bytes further on are fetched into the cache.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (_, weight, weight_stride, last_row, prepared, ahead, blocks, values, scales, sums, columns,
         last_column, out, out_stride) = args  # fmt: skip
        b = builder
        geometry = BLOCKS[variant.encoding]
        prepared_scales = SCALES[variant.encoding]
        assert prepared_scales is not None
        count = prepared_scales.count
        height, width = variant.rows, variant.columns
        rows = _edges(b, weight, weight_stride, last_row, height)
        numbers = _edges(b, prepared, b.mul(blocks, _WORD(4 * count)), last_row, height)
        groups = b.udiv(columns, _WORD(GROUP))
        xs = _edges(b, values, columns, last_column, width)
        ds = _edges(b, scales, b.mul(groups, _WORD(4)), last_column, width)
        ss = _edges(b, sums, columns, last_column, width)
        outputs = _edges(b, out, out_stride, last_column, width)
        zero = constant(_LANES, 0.0)
        lanes = [[cgutils.alloca_once_value(b, zero) for _ in xs] for _ in rows]
        level, unpack = integer_emitter(variant.level, b), INTEGERS[variant.encoding]

        def take(group: Group, number: Any, x: Any, s: Any, d: Any, place: Any) -> None:
            scale = b.fmul(_numbers(b, number, group.scales), d)
            dot = b.sitofp(level.dot(group, x, s), _LANES)
            total = fused(b, dot, scale, b.load(place))
            if group.shifts:
                shift = b.fmul(_numbers(b, number, group.shifts), d)
                total = fused(b, b.sitofp(s, _LANES), shift, total)
            b.store(total, place)

        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            skip = b.mul(loop.index, _WORD(geometry.nbytes))
            skip_numbers = b.mul(loop.index, _WORD(4 * count))
            per_block = geometry.elements // GROUP
            first = b.mul(loop.index, _WORD(per_block))
            streams = []
            # Rows lie one after the other: each turn fetches its share of those to come.
            share = geometry.nbytes * height
            coming = b.add(b.add(weight, ahead), b.mul(loop.index, _WORD(share)))
            for line in range(0, share, 64):
                prefetch(b, b.add(coming, _WORD(line)))
            for row in rows:
                block = b.add(row, skip)
                streams.append(unpack(level, block))
            for index, found in enumerate(zip(*streams, strict=True)):
                group = b.add(first, _WORD(index))
                at, at_scale = b.mul(group, _WORD(GROUP)), b.mul(group, _WORD(4))
                for c in range(width):
                    x = read(b, b.add(xs[c], at), _BYTES)
                    s = read(b, b.add(ss[c], at), QUADS)
                    d = spread(b, read(b, b.add(ds[c], at_scale), ir.FloatType()), 8)
                    for r, weights in enumerate(found):
                        number = b.add(numbers[r], skip_numbers)
                        take(weights, number, x, s, d, lanes[r][c])
        for c, output in enumerate(outputs):
            for row, place in zip(
                lanes, _edges(b, output, _WORD(4), last_row, height), strict=True
            ):
                write(b, halve(b, b.load(row[c]), b.fadd), place)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 13), emit
