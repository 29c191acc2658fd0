"""Rows of integers times many int8 vectors: the products of `integer_rows`, vectors as lanes.

Rows have been unpacked to bytes. Of each four neighbouring weights, all vectors' products are taken
at once: vectors lie in blocks of `WIDTH`, four neighbouring values of each together. A tile takes
vectors by the half block, so that few lanes are without a vector.

Where a level has no instruction for signed bytes (`widens`), bytes are widened to 16 bits when
they are unpacked: of a group first its even elements, then its odd ones. Values need no widening
then: 256 x is what a shift, or a mask, leaves of a pair of bytes, and 256 times a sum of 32
products stays below 2^28.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from larql.kernels.integers import GROUP, INTEGERS, dot_pairs, integer_emitter
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.lane_columns import HALF, WIDTH, Column, store_lanes
from larql.kernels.memory import edges, offset, read, write
from larql.kernels.vector import constant, fused, spread
from larql.kernels.widths import chosen_width

__all__ = ["HALF", "WIDTH", "integer_panel", "tile_widths", "weight_bytes", "widen", "widens"]

_LANES = {"avx512": 16, "avx2": 8, "portable": 16}
_WORD, _I32, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_UNROLLED = 4  # steps of the innermost loop at once: half a group, a unit where it has two
_I16 = ir.IntType(16)


def widens(level: str, encoding: str) -> bool:
    """Return whether a level multiplies an encoding's bytes as 16-bit integers."""
    return level == "avx2" and INTEGERS[encoding].bias is None


@instruction
def weight_bytes(typingctx: Any, variant: Any) -> Any:
    """Return how many bytes an unpacked weight takes."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _WORD(2 if widens(variant.level, variant.encoding) else 1)

    return types.int64(variant), emit


@instruction
def widen(typingctx: Any, variant: Any, source: Any, groups: Any, target: Any) -> Any:
    """Widen groups of signed bytes to 16 bits, even elements before odd ones.

    `source` may be the second half of the room at `target`.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, source, groups, target = args
        b, kind = builder, ir.VectorType(_I16, GROUP // 2)
        eight = constant(kind, 8)
        with cgutils.for_range(b, groups, intp=_WORD) as loop:
            pairs = read(b, b.add(source, b.mul(loop.index, _WORD(GROUP))), kind)
            place = b.add(target, b.mul(loop.index, _WORD(2 * GROUP)))
            write(b, b.ashr(b.shl(pairs, eight), eight), place)
            write(b, b.ashr(pairs, eight), offset(b, place, GROUP))
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 3), emit


@dataclass(frozen=True)
class _Rows:
    """Addresses of each row's unpacked weights, scales and shifts."""

    weights: list[Any]
    scales: list[Any]
    shifts: list[Any]


class _Tile:
    """Some rows by some half blocks of vectors: emits one group's part of all their products.

    Parameters
    ----------
    b : LLVM builder
    variant : Variant
    rows : _Rows
    columns : list of Column
    bias, quads : LLVM value
        As `integer_panel` has them.
    """

    def __init__(
        self, b: Any, variant: Any, rows: _Rows, columns: list[Column], bias: Any, quads: Any
    ):
        self.b, self.rows, self.columns, self.quads = b, rows, columns, quads
        self.meaning = INTEGERS[variant.encoding]
        self.level = integer_emitter(variant.level, b)
        self.wide = widens(variant.level, variant.encoding)
        self.less = b.trunc(b.neg(bias), _I32)

        def places(kind: str, value: Any) -> list[list[Any]]:
            return [
                [cgutils.alloca_once_value(b, constant(getattr(c, kind), value)) for c in columns]
                for _ in rows.weights
            ]

        self.totals, self.dots = places("floats", 0.0), places("integers", 0)

    def group(self, group: Any) -> None:
        """Emit the products of a group of each row, and add them."""
        b, units = self.b, self.meaning.units
        share = b.udiv(self.quads, _WORD(units))
        for unit in range(units):
            self._start(group, unit)
            first = b.mul(share, _WORD(unit))
            # A loop that the compiler cannot unroll: it would put the products in an order that
            # needs more registers than there are.
            with cgutils.for_range(b, b.udiv(share, _WORD(_UNROLLED)), intp=_WORD) as loop:
                at = b.add(first, b.mul(loop.index, _WORD(_UNROLLED)))
                for k in range(_UNROLLED):
                    (self._pairs if self.wide else self._bytes)(group, b.add(at, _WORD(k)))
            for c, column in enumerate(self.columns):
                self._add(column, group, unit, c)

    def _start(self, group: Any, unit: int) -> None:
        b, units = self.b, self.meaning.units
        for c, column in enumerate(self.columns):
            start = constant(column.integers, 0)
            if not self.meaning.shifted and not self.wide:
                less = spread(b, self.less, column.lanes)
                start = b.mul(column.sum(b, group, unit, units), less)
            for row in self.dots:
                b.store(start, row[c])

    def _bytes(self, group: Any, index: Any) -> None:
        """Emit the products of four bytes of each row."""
        b, signed = self.b, self.meaning.bias is None
        xs = [c.quad(b, group, index) for c in self.columns]
        for r, word in enumerate(self._words(group, index, GROUP)):
            for c, x in enumerate(xs):
                w = b.bitcast(spread(b, word, self.columns[c].lanes), x.type)
                b.store(self.level.dot(b.load(self.dots[r][c]), w, x, signed), self.dots[r][c])

    def _pairs(self, group: Any, index: Any) -> None:
        """Emit the products of four widened weights of each row; such have one unit, no shift."""
        b = self.b
        pairs = [
            b.bitcast(c.quad(b, group, index), ir.VectorType(_I16, 2 * c.lanes))
            for c in self.columns
        ]
        even = [b.shl(x, constant(x.type, 8)) for x in pairs]
        odd = [b.and_(x, constant(x.type, 0xFF00)) for x in pairs]
        for xs, skip in ((even, 0), (odd, GROUP)):
            for r, word in enumerate(self._words(group, index, 2 * GROUP, skip)):
                for c, x in enumerate(xs):
                    w = b.bitcast(spread(b, word, self.columns[c].lanes), x.type)
                    place = self.dots[r][c]
                    b.store(dot_pairs(self.level.level, b.load(place), w, x), place)

    def _words(self, group: Any, index: Any, size: int, skip: int = 0) -> list[Any]:
        """Emit word `index` of each row's group of `size` bytes."""
        b = self.b
        at = b.add(b.mul(group, _WORD(size)), b.mul(index, _WORD(4)))
        return [read(b, offset(b, b.add(row, at), skip), _I32) for row in self.rows.weights]

    def _add(self, column: Column, group: Any, unit: int, c: int) -> None:
        """Emit the adding of a unit's dot products to the results of a column."""
        b, meaning = self.b, self.meaning
        d = column.term(b, group, 0)
        term = column.term(b, group, 1) if meaning.shifted else None
        if meaning.shifted and meaning.units == 2:
            term = b.fmul(d, b.sitofp(column.sum(b, group, unit, 2), column.floats))
        for r, row in enumerate(self.dots):
            dot = b.load(row[c])
            if self.wide:
                dot = b.ashr(dot, constant(dot.type, 8))
            scale = b.fmul(self._number(self.rows.scales, r, group, unit, column), d)
            place = self.totals[r][c]
            result = fused(b, b.sitofp(dot, column.floats), scale, b.load(place))
            if term is not None:
                shift = self._number(self.rows.shifts, r, group, unit, column)
                result = fused(b, term, shift, result)
            b.store(result, place)

    def _number(self, rows: list[Any], r: int, group: Any, unit: int, column: Column) -> Any:
        b, units = self.b, self.meaning.units
        at = b.add(rows[r], b.mul(group, _WORD(4 * units)))
        return spread(b, read(b, offset(b, at, 4 * unit), _FLOAT), column.lanes)


@instruction
def integer_panel(
    typingctx: Any,
    variant: Any,
    halves: Any,
    weight: Any,
    stride: Any,
    last_row: Any,
    scales: Any,
    shifts: Any,
    groups: Any,
    bias: Any,
    quads: Any,
    values: Any,
    terms: Any,
    sums: Any,
    left: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """Multiply `variant.rows` unpacked rows by the first vectors of some blocks; return how many.

    It takes the widest tile that `halves`, the half blocks that are left, fill. Addresses and
    strides are in bytes; bytes, scales and shifts of a row are `stride` after those of the row
    before. Rows past `last_row` repeat it; of the vectors, `left` are written. `quads` is 8, the
    fours of a group. The variant's encoding stands for all that have the same units, shifts and
    sign.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (_, halves, weight, stride, last_row, scales, shifts, groups, bias, quads, values, terms,
         sums, left, out, out_stride) = args  # fmt: skip
        b, height = builder, variant.rows
        rows = _Rows(*(edges(b, at, stride, last_row, height) for at in (weight, scales, shifts)))

        def tile(width: int) -> None:
            lanes = _LANES[variant.level]
            columns = [
                Column(min(lanes, HALF * width - first), first, groups, values, terms, sums)
                for first in range(0, HALF * width, lanes)
            ]
            made = _Tile(b, variant, rows, columns, bias, quads)
            with cgutils.for_range(b, groups, intp=_WORD) as loop:
                made.group(loop.index)
            for c in range(len(columns)):
                first = lanes * c
                place = b.add(out, b.mul(out_stride, _WORD(first)))
                found = [b.load(row[c]) for row in made.totals]
                store_lanes(b, found, last_row, b.sub(left, _WORD(first)), place, out_stride)

        return chosen_width(b, halves, tile_widths(variant.columns), tile)

    return types.int64(variant, *[types.int64] * 15), emit


def tile_widths(most: int) -> list[int]:
    """Return the widths of tiles in half blocks: whole blocks, and what may be left at the end."""
    return [width for width in range(most, 0, -1) if width % 2 == 0 or width in (1, 3)]
