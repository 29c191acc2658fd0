"""Rows of integers times many int8 vectors: the products of `integer_rows`, vectors as lanes.

Rows have been unpacked to bytes. Of each four neighbouring weights, all vectors' products are taken
at once: vectors lie in blocks of `WIDTH`, four neighbouring values of each together.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.integer_rows import SUMS, TERMS
from larql.kernels.integers import GROUP, INTEGERS, integer_emitter
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.memory import edges, offset, read, write
from larql.kernels.vector import constant, fused, shuffled, spread

__all__ = ["WIDTH", "integer_panel"]

WIDTH = 16  # vectors of a block
_LANES = {"avx512": 16, "avx2": 8, "portable": 8}
_WORD, _I32, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_QUAD = GROUP // 4


class _Column:
    """One register's worth of vectors: where their blocks begin, and their lanes' results."""

    def __init__(self, lanes: int, first: int, groups: Any, values: Any, terms: Any, sums: Any):
        self.block, self.lane = divmod(first, WIDTH)
        self.lanes, self.groups = lanes, groups
        self.values, self.terms, self.sums = values, terms, sums

    def _at(self, b: Any, base: Any, group: Any, size: int, at: int) -> Any:
        """Emit an address in an array of `size` bytes for each lane of a group's block."""
        skip = b.mul(self.groups, _WORD(self.block * WIDTH * size)) if self.block else _WORD(0)
        place = b.add(b.add(base, skip), b.mul(group, _WORD(WIDTH * size)))
        return offset(b, place, at)

    def quad(self, b: Any, group: Any, index: int) -> Any:
        """Emit the four values at 4 * index of the group, of each lane."""
        kind = ir.VectorType(ir.IntType(8), 4 * self.lanes)
        at = 4 * (WIDTH * index + self.lane)
        return read(b, self._at(b, self.values, group, GROUP, at), kind)

    def term(self, b: Any, group: Any, index: int) -> Any:
        """Emit float32 number `index` of each lane."""
        at = 4 * (WIDTH * index + self.lane)
        place = self._at(b, self.terms, group, 4 * TERMS, at)
        return read(b, place, ir.VectorType(_FLOAT, self.lanes))

    def sum(self, b: Any, group: Any, unit: int, units: int) -> Any:
        """Emit the sum of a unit's values of each lane."""
        at = 4 * (WIDTH * (unit if units == 2 else 2) + self.lane)
        place = self._at(b, self.sums, group, 4 * SUMS, at)
        return read(b, place, ir.VectorType(_I32, self.lanes))


def _store(b: Any, rows: list[Any], last_row: Any, left: Any, out: Any, stride: Any) -> None:
    """Emit the writing of lane l of row r to out + l * stride + 4 r, where l < `left`."""
    lanes, height = rows[0].type.count, len(rows)
    full = b.and_(
        b.icmp_signed(">=", last_row, _WORD(height - 1)), b.icmp_signed(">=", left, _WORD(lanes))
    )
    with b.if_else(full, likely=True) as (all_, some):
        with all_:
            if height == 4:
                _store_quads(b, rows, out, stride)
            else:
                for lane in range(lanes):
                    place = b.add(out, b.mul(stride, _WORD(lane)))
                    for index, row in enumerate(rows):
                        value = b.extract_element(row, _I32(lane))
                        write(b, value, offset(b, place, 4 * index))
        with some:
            for lane in range(lanes):
                with b.if_then(b.icmp_signed("<", _WORD(lane), left)):
                    place = b.add(out, b.mul(stride, _WORD(lane)))
                    places = edges(b, place, _WORD(4), last_row, height)
                    for row, at in zip(rows, places, strict=True):
                        write(b, b.extract_element(row, _I32(lane)), at)


def _store_quads(b: Any, rows: list[Any], out: Any, stride: Any) -> None:
    lanes = rows[0].type.count

    def zipped(x: Any, y: Any, width: int, high: bool) -> Any:
        """Interleave units of `width` lanes of each four lanes of x and y."""
        found = []
        for first in range(0, lanes, 4):
            for unit in range(first + (2 if high else 0), first + (4 if high else 2), width):
                found += [unit + i for i in range(width)]
                found += [lanes + unit + i for i in range(width)]
        return shuffled(b, x, y, found)

    a, c, d, e = rows
    for high in (False, True):
        pairs = zipped(a, c, 1, high), zipped(d, e, 1, high)
        for upper in (False, True):
            quads = zipped(*pairs, 2, upper)
            for first in range(0, lanes, 4):
                lane = first + 2 * high + upper
                place = b.add(out, b.mul(stride, _WORD(lane)))
                write(b, shuffled(b, quads, quads, list(range(first, first + 4))), place)


@instruction
def integer_panel(
    typingctx: Any,
    variant: Any,
    weight: Any,
    stride: Any,
    last_row: Any,
    scales: Any,
    shifts: Any,
    groups: Any,
    bias: Any,
    values: Any,
    terms: Any,
    sums: Any,
    left: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """Multiply `variant.rows` unpacked rows by `variant.columns` blocks of vectors.

    Addresses and strides are in bytes; bytes, scales and shifts of a row are `stride` after those
    of the row before. Rows past `last_row` repeat it; of the vectors, `left` are written. The
    variant's encoding stands for all that have the same units, shifts and sign.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (_, weight, stride, last_row, scales, shifts, groups, bias, values, terms, sums, left, out,
         out_stride) = args  # fmt: skip
        b, height = builder, variant.rows
        meaning, lanes = INTEGERS[variant.encoding], _LANES[variant.level]
        level, units = integer_emitter(variant.level, b), meaning.units
        signed = meaning.bias is None
        quads, scale_rows, shift_rows = (
            edges(b, base, stride, last_row, height) for base in (weight, scales, shifts)
        )
        columns = [
            _Column(lanes, first, groups, values, terms, sums)
            for first in range(0, WIDTH * variant.columns, lanes)
        ]
        floats, integers = ir.VectorType(_FLOAT, lanes), ir.VectorType(_I32, lanes)
        totals = [
            [cgutils.alloca_once_value(b, constant(floats, 0.0)) for _ in columns] for _ in quads
        ]
        less = spread(b, b.trunc(b.neg(bias), _I32), lanes)

        def number(rows: list[Any], r: int, group: Any, unit: int) -> Any:
            at = b.add(rows[r], b.mul(group, _WORD(4 * units)))
            return spread(b, read(b, offset(b, at, 4 * unit), _FLOAT), lanes)

        with cgutils.for_range(b, groups, intp=_WORD) as loop:
            group = loop.index
            for unit in range(units):
                if meaning.shifted:
                    starts = [constant(integers, 0) for _ in columns]
                else:
                    starts = [b.mul(c.sum(b, group, unit, units), less) for c in columns]
                dots = [list(starts) for _ in quads]
                share = _QUAD // units
                for index in range(unit * share, (unit + 1) * share):
                    xs = [c.quad(b, group, index) for c in columns]
                    for r, row in enumerate(quads):
                        at = b.add(row, b.mul(group, _WORD(GROUP)))
                        word = spread(b, read(b, offset(b, at, 4 * index), _I32), lanes)
                        w = b.bitcast(word, xs[0].type)
                        dots[r] = [
                            level.dot(dot, w, x, signed) for dot, x in zip(dots[r], xs, strict=True)
                        ]
                for c, column in enumerate(columns):
                    d = column.term(b, group, 0)
                    term = column.term(b, group, 1) if meaning.shifted else None
                    if meaning.shifted and units == 2:
                        term = b.fmul(d, b.sitofp(column.sum(b, group, unit, units), floats))
                    for r in range(height):
                        scale = b.fmul(number(scale_rows, r, group, unit), d)
                        place = totals[r][c]
                        result = fused(b, b.sitofp(dots[r][c], floats), scale, b.load(place))
                        if term is not None:
                            shift = number(shift_rows, r, group, unit)
                            result = fused(b, term, shift, result)
                        b.store(result, place)
        for c in range(len(columns)):
            first = c * lanes
            _store(
                b, [b.load(row[c]) for row in totals], last_row, b.sub(left, _WORD(first)),
                b.add(out, b.mul(out_stride, _WORD(first))), out_stride,
            )  # fmt: skip
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 13), emit
