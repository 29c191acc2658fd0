"""Eight encoded rows times one int8 vector: the definition of the integer products.

For one row and one vector: units of weights ascend; with I the exact integer dot product of a unit
and S the exact sum of its activations, w and m the unit's scale and shift, and d the scale of the
activations' group, result = fma(I, w d, result), then, where the encoding has shifts,
result = fma(d S, m, result), from zero. Products w d and d S are rounded to float32.

Rows are the lanes, so nothing is left to sum at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.integers import GROUP, INTEGERS, QUADS, Group, integer_emitter
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.memory import edges, offset, prefetch_lines, read, write
from larql.kernels.scales import SCALES
from larql.kernels.vector import constant, fused, shuffled, spread

__all__ = ["EIGHT", "SUMS", "TERMS", "integer_rows"]

EIGHT = 8
TERMS = 2  # float32 of a group of activations: d and d S of the whole group
SUMS = 3  # int32 of a group of activations: S of both halves and of the whole group
_WORD, _I32 = ir.IntType(64), ir.IntType(32)
_FLOATS = ir.VectorType(ir.FloatType(), EIGHT)


def _sums(builder: Any, pairs: list[Any]) -> Any:
    """Emit the sums of four lanes each of rows (0, 4), (1, 5), (2, 6), (3, 7), rows as lanes."""

    def joined(a: Any, b: Any, low: list[int], high: list[int]) -> Any:
        first, second = shuffled(builder, a, b, low), shuffled(builder, a, b, high)
        return builder.add(first, second)

    # By halves first: sums of neighbours would become horizontal additions, which are slow.
    low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
    a, b = joined(pairs[0], pairs[1], low, high), joined(pairs[2], pairs[3], low, high)
    return joined(a, b, [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15])


class _Vector:
    """The int8 vector: what is loaded from it for a group."""

    def __init__(self, builder: Any, values: Any, terms: Any, sums: Any) -> None:
        self.builder = builder
        self.values, self.terms, self.sums = values, terms, sums

    def group(self, index: Any) -> _Vector:
        b = self.builder
        return _Vector(
            b,
            b.add(self.values, b.mul(index, _WORD(GROUP))),
            b.add(self.terms, b.mul(index, _WORD(4 * TERMS))),
            b.add(self.sums, b.mul(index, _WORD(4 * SUMS))),
        )

    def twice(self, half: int) -> Any:
        """Emit 16 values two times."""
        small = ir.VectorType(ir.IntType(8), GROUP // 2)
        values = read(self.builder, offset(self.builder, self.values, GROUP // 2 * half), small)
        return shuffled(self.builder, values, values, 2 * list(range(GROUP // 2)))

    def term(self, index: int) -> Any:
        return read(self.builder, offset(self.builder, self.terms, 4 * index), ir.FloatType())

    def sum(self, unit: int, units: int) -> Any:
        at = unit if units == 2 else 2
        return read(self.builder, offset(self.builder, self.sums, 4 * at), _I32)


@instruction
def integer_rows(
    typingctx: Any,
    variant: Any,
    weight: Any,
    stride: Any,
    last_row: Any,
    prepared: Any,
    ahead: Any,
    blocks: Any,
    values: Any,
    terms: Any,
    sums: Any,
    out: Any,
) -> Any:
    """Multiply eight encoded rows by one vector; rows past `last_row` repeat it.

    Addresses and strides are in bytes. `prepared` holds the rows' scales, eight rows together;
    values, terms and sums are those of the vector's groups in order. Weights `ahead` bytes further
    on are fetched into the cache.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, weight, stride, last_row, prepared, ahead, blocks, values, terms, sums, out = args
        b = builder
        geometry, meaning = BLOCKS[variant.encoding], INTEGERS[variant.encoding]
        scales = SCALES[variant.encoding]
        assert scales is not None
        level = integer_emitter(variant.level, b)
        signed = meaning.bias is None
        bias = level.signed_bias if meaning.bias is None else meaning.bias
        rows = edges(b, weight, stride, last_row, EIGHT)
        total = cgutils.alloca_once_value(b, constant(_FLOATS, 0.0))
        whole = _Vector(b, values, terms, sums)

        def take(found: list[Group], numbers: Sequence[Any], vector: _Vector) -> None:
            zero, units = constant(QUADS, 0), meaning.units
            dots = [[zero] * len(found) for _ in range(units)]
            for half in range(2):
                x, place = vector.twice(half), dots[half % units]
                for pair, group in enumerate(found):
                    values = level.stored(group.halves[half], signed)
                    place[pair] = level.dot(place[pair], values, x, signed)
            d, one = vector.term(0), found[0]
            for unit, pairs in enumerate(dots):
                dot = _sums(b, pairs)
                if bias:
                    sum_ = b.mul(vector.sum(unit, units), _I32(bias))
                    dot = b.sub(dot, spread(b, sum_, EIGHT))
                scale = b.fmul(numbers[one.scales[unit]], spread(b, d, EIGHT))
                result = fused(b, b.sitofp(dot, _FLOATS), scale, b.load(total))
                if meaning.shifted:
                    term = vector.term(1)
                    if units == 2:
                        term = b.fmul(d, b.sitofp(vector.sum(unit, units), ir.FloatType()))
                    result = fused(b, spread(b, term, EIGHT), numbers[one.shifts[unit]], result)
                b.store(result, total)

        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            skip = b.mul(loop.index, _WORD(geometry.nbytes))
            # Rows lie one after the other: each turn fetches its share of those to come.
            share = geometry.nbytes * EIGHT
            coming = b.add(b.add(weight, ahead), b.mul(loop.index, _WORD(share)))
            prefetch_lines(b, coming, share)
            found_at = [b.add(row, skip) for row in rows]
            streams = [meaning.groups(level, found_at[row :: EIGHT // 2]) for row in range(4)]
            if scales.emit is None:
                numbers = scales.of_eight(level.level, found_at)
            else:
                size = 4 * EIGHT
                at = b.add(prepared, b.mul(loop.index, _WORD(size * scales.count)))
                numbers = [
                    read(b, offset(b, at, size * index), _FLOATS) for index in range(scales.count)
                ]
            per_block = geometry.elements // GROUP
            first = b.mul(loop.index, _WORD(per_block))
            for index, found in enumerate(zip(*streams, strict=True)):
                take(list(found), numbers, whole.group(b.add(first, _WORD(index))))
        result = b.load(total)
        full = b.icmp_signed(">=", last_row, _WORD(EIGHT - 1))
        with b.if_else(full, likely=True) as (all_, some):
            with all_:
                write(b, result, out)
            with some:
                for index, place in enumerate(edges(b, out, _WORD(4), last_row, EIGHT)):
                    write(b, b.extract_element(result, _I32(index)), place)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 10), emit
