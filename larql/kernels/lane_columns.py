"""Vectors as lanes: where a tile of integer products finds a register's worth, and puts results."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.integer_rows import SUMS, TERMS
from larql.kernels.integers import GROUP
from larql.kernels.memory import edges, offset, read, write
from larql.kernels.vector import shuffled

__all__ = ["HALF", "WIDTH", "Column", "store_lanes"]

WIDTH = 16  # vectors of a block
HALF = WIDTH // 2
_WORD, _I32, _FLOAT, _I8 = ir.IntType(64), ir.IntType(32), ir.FloatType(), ir.IntType(8)


class Column:
    """One register's worth of vectors: where their blocks begin, and their lanes' results."""

    def __init__(self, lanes: int, first: int, groups: Any, values: Any, terms: Any, sums: Any):
        self.block, self.lane = divmod(first, WIDTH)
        self.lanes, self.groups = lanes, groups
        self.values, self.terms, self.sums = values, terms, sums
        self.floats, self.integers = ir.VectorType(_FLOAT, lanes), ir.VectorType(_I32, lanes)

    def _at(self, b: Any, base: Any, group: Any, size: int, at: int) -> Any:
        """Emit an address in an array of `size` bytes for each lane of a group's block."""
        skip = b.mul(self.groups, _WORD(self.block * WIDTH * size)) if self.block else _WORD(0)
        place = b.add(b.add(base, skip), b.mul(group, _WORD(WIDTH * size)))
        return offset(b, place, at)

    def quad(self, b: Any, group: Any, index: Any) -> Any:
        """Emit the four values at 4 * index of the group, of each lane."""
        place = self._at(b, self.values, group, GROUP, 4 * self.lane)
        place = b.add(place, b.mul(index, _WORD(4 * WIDTH)))
        return read(b, place, ir.VectorType(_I8, 4 * self.lanes))

    def term(self, b: Any, group: Any, index: int) -> Any:
        """Emit float32 number `index` of each lane."""
        at = 4 * (WIDTH * index + self.lane)
        place = self._at(b, self.terms, group, 4 * TERMS, at)
        return read(b, place, self.floats)

    def sum(self, b: Any, group: Any, unit: int, units: int) -> Any:
        """Emit the sum of a unit's values of each lane."""
        at = 4 * (WIDTH * (unit if units == 2 else 2) + self.lane)
        place = self._at(b, self.sums, group, 4 * SUMS, at)
        return read(b, place, self.integers)


def store_lanes(b: Any, rows: list[Any], last_row: Any, left: Any, out: Any, stride: Any) -> None:
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
