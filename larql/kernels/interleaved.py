"""Weights of sixteen interleaved rows, rows as lanes, as code emitters.

A slab holds sixteen rows, block column after block column: first the blocks' binary16 numbers, then
their other bytes by 32-bit words, each for all rows together. A quad is four neighbouring weights
of each row: one word a row, whose byte j has the bits of weight j. Values are those of the encoding
that was interleaved, which `larql.kernels.unpack` decodes. Layouts: docs/format.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from larql.kernels.integers import GROUP, INTEGERS, Integers
from larql.kernels.levels import Portable
from larql.kernels.memory import offset, read, write
from larql.kernels.vector import LANES, constant, fused

__all__ = ["INTERLEAVED", "QUADS_OF_GROUP", "Interleaved", "Rows"]

QUADS_OF_GROUP = GROUP // 4
_WORDS = 4 * LANES  # bytes of a word of each row
_HALVES = 2 * LANES
_LOW = 0x0F0F0F0F


@dataclass(frozen=True)
class Rows:
    """Some of a slab's rows, the lanes of what is emitted: `count` from row `first` on.

    In a loop over the turns of a block, `turn` is the number of the turn, an int64.
    """

    e: Portable
    first: int = 0
    count: int = LANES
    turn: Any | None = None

    def word(self, p: Any, at: int, index: int, each: int = 0) -> Any:
        """Emit word `index` of those that begin at byte `at`, of each row; a turn has `each`."""
        b = self.e.builder
        place = offset(b, p, at + _WORDS * index + 4 * self.first)
        if self.turn is not None and each:
            place = b.add(place, b.mul(self.turn, ir.Constant(place.type, _WORDS * each)))
        return read(b, place, ir.VectorType(ir.IntType(32), self.count))

    def halves(self, p: Any) -> Any:
        """Emit the binary16 number of each row as float32."""
        place = offset(self.e.builder, p, 2 * self.first)
        return self.e.halves_of(read(self.e.builder, place, self._kind(16)))

    def signed_bytes(self, p: Any, at: int) -> Any:
        """Emit a signed byte of each row as float32."""
        place = offset(self.e.builder, p, at + self.first)
        wide = self.e.builder.sext(read(self.e.builder, place, self._kind(8)), self._kind(32))
        return self.e.float_of(wide)

    def _kind(self, width: int) -> ir.VectorType:
        return ir.VectorType(ir.IntType(width), self.count)


@dataclass(frozen=True)
class Interleaved:
    """How the weights of a block column are read.

    Attributes
    ----------
    source : str
        The encoding that was interleaved.
    width, first : int
        A weight is scale * (bits + first) + shift of so many bits; 8: signed bytes, which lie
        weight after weight and not by words.
    quad : function or None
        (rows, address of a block column, number of a quad) -> words, and the bit of their bytes at
        which the weights begin; what is beside them is not zero. None: signed bytes.
    numbers : function
        (rows, address of a block column, number of a unit) -> its scales, and shifts or None.
    turns : int
        In how many equal turns a block's quads can be read: in a loop that gives `Rows.turn`, the
        number of a quad is counted from the first of the turn.
    """

    source: str
    width: int
    first: int
    quad: Callable[[Rows, Any, int], tuple[Any, int]] | None
    numbers: Callable[[Rows, Any, int], tuple[Any, Any | None]]
    turns: int = 1

    @property
    def units(self) -> int:
        """How many units of equal scale 32 weights have."""
        return INTEGERS[self.source].units

    def factors(self, rows: Rows, p: Any, unit: int) -> tuple[list[Any], Any | None]:
        """Emit the numbers of a unit as :meth:`floats` takes them: a scale for each of a quad."""
        b, (scale, shift) = rows.e.builder, self.numbers(rows, p, unit)
        if self.quad is None:
            return [scale] * 4, shift
        downs = [constant(scale.type, 256.0**-j) for j in range(4)]
        return [b.fmul(scale, down) for down in downs], shift

    def floats(
        self, rows: Rows, p: Any, number: int, scales: Sequence[Any], shift: Any
    ) -> list[Any]:
        """Emit a quad's four weights as float32; the factors are those of its unit."""
        b = rows.e.builder
        if self.quad is None:
            found = [rows.signed_bytes(p, _HALVES + LANES * (4 * number + j)) for j in range(4)]
        else:
            found = self.values(rows, p, number)
        if self.first:
            firsts = [constant(each.type, self.first * 256.0**j) for j, each in enumerate(found)]
            found = [b.fadd(*pair) for pair in zip(found, firsts, strict=True)]
        pairs = list(zip(found, scales, strict=True))
        if shift is None:
            return [b.fmul(value, scale) for value, scale in pairs]
        return [fused(b, value, scale, shift) for value, scale in pairs]

    def values(self, rows: Rows, p: Any, number: int) -> list[Any]:
        """Emit the bits of a quad's four weights as float32: those of byte j times 256^j.

        They are masked where they lie: units that shift or shuffle are scarcer.

        Raises
        ------
        ValueError
            When weights are signed bytes, which lie apart.
        """
        if self.quad is None:
            raise ValueError(f"weights of {self.source} are no bits of a word")
        b, (words, bit) = rows.e.builder, self.quad(rows, p, number)
        small, mask = _turned(rows, words, -bit), (1 << self.width) - 1
        return [rows.e.float_of(b.and_(small, _whole(small, mask << 8 * j))) for j in range(4)]

    def write_numbers(self, rows: Rows, p: Any, units: int, scales: Any, shifts: Any) -> None:
        """Emit the writing of the scales, and shifts if any, of a block's units, all rows' each."""
        b = rows.e.builder
        for unit in range(units):
            numbers = self.numbers(rows, p, unit)
            for number, base in zip(numbers, (scales, shifts), strict=True):
                if number is not None:
                    write(b, number, offset(b, base, _WORDS * unit))

    def bytes(self, e: Integers, p: Any, number: int, zero: Any) -> Any:
        """Emit the bytes of a quad, in the form that the level's dot product takes.

        `zero` is an int64 that is 0, which the compiler must not know.
        """
        b, kind = e.builder, ir.VectorType(ir.IntType(8), _WORDS)
        if self.quad is None:
            by_weight = read(b, offset(b, p, _HALVES + _WORDS * number), kind)
            return e.fours(e.stored(by_weight, True), zero)
        words, bit = self.quad(Rows(e.level), p, number)
        mask = ((1 << self.width) - 1) * 0x01010101
        return b.bitcast(e.level.bits_of(words, bit, mask), kind)


def _whole(like: Any, value: int) -> Any:
    return constant(like.type, value)


def _turned(rows: Rows, words: Any, left: int) -> Any:
    """Emit words << left, or >> -left where negative."""
    if left > 0:
        return rows.e.builder.shl(words, _whole(words, left))
    return rows.e.builder.lshr(words, _whole(words, -left)) if left else words


def _topped(rows: Rows, low: Any, tops: Any) -> Any:
    """Emit the low four bits of each byte of one, the high four of the other."""
    b = rows.e.builder
    return b.or_(b.and_(low, _whole(low, _LOW)), b.and_(tops, _whole(tops, 0xF0F0F0F0)))


def _halves(rows: Rows, p: Any, unit: int) -> tuple[Any, Any | None]:
    return rows.halves(p), None


def _two_halves(rows: Rows, p: Any, unit: int) -> tuple[Any, Any | None]:
    return rows.halves(p), rows.halves(offset(rows.e.builder, p, _HALVES))


def _nibbles(at: int) -> Callable[[Rows, Any, int], tuple[Any, int]]:
    def quad(rows: Rows, p: Any, number: int) -> tuple[Any, int]:
        return rows.word(p, at, number % 4), 4 * (number // 4)

    return quad


def _fives(at: int) -> Callable[[Rows, Any, int], tuple[Any, int]]:
    def quad(rows: Rows, p: Any, number: int) -> tuple[Any, int]:
        low = _turned(rows, rows.word(p, at + _WORDS, number % 4), -4 * (number // 4))
        return _topped(rows, low, _turned(rows, rows.word(p, at, 0), 4 - number)), 0

    return quad


def _packed6(rows: Rows, p: Any, unit: int) -> tuple[Any, Any | None]:
    """Emit a six-bit scale and minimum of Q4_K or Q5_K, times those of their block."""
    e, b = rows.e, rows.e.builder
    words = []
    for first, low_shift in ((0, 0), (1, 4)):  # scales, minima
        word = rows.word(p, 2 * _HALVES, first)
        if unit >= 4:
            low = e.bits_of(rows.word(p, 2 * _HALVES, 2), low_shift, _LOW)
            word = b.or_(low, b.shl(e.bits_of(word, 6, 0x03030303), _whole(word, 4)))
        words.append(e.float_of(b.and_(word, _whole(word, 63 << 8 * (unit % 4)))))
    of_block = rows.halves(p), b.fneg(rows.halves(offset(b, p, _HALVES)))
    down = constant(of_block[0].type, 2.0 ** (-8 * (unit % 4)))
    scale, shift = (b.fmul(b.fmul(n, down), w) for n, w in zip(of_block, words, strict=True))
    return scale, shift  # every product here is exact


def _q4_k(rows: Rows, p: Any, number: int) -> tuple[Any, int]:
    group, q = divmod(number, QUADS_OF_GROUP)
    return rows.word(p, 256, 8 * (group // 2) + q, 8), 4 * (group % 2)


def _q5_k(rows: Rows, p: Any, number: int) -> tuple[Any, int]:
    group, q = divmod(number, QUADS_OF_GROUP)
    low = _turned(rows, rows.word(p, 768, 8 * (group // 2) + q), -4 * (group % 2))
    return _topped(rows, low, _turned(rows, rows.word(p, 256, q), 4 - group)), 0


def _q6_k(rows: Rows, p: Any, number: int) -> tuple[Any, int]:
    group, q = divmod(number, QUADS_OF_GROUP)
    part, quarter = divmod(group, 4)
    low = rows.word(p, 288, 16 * part + 8 * (quarter % 2) + q, 16)
    tops = _turned(rows, rows.word(p, 2336, 8 * part + q, 8), 4 - 2 * quarter)
    return _topped(rows, _turned(rows, low, -4 * (quarter // 2)), tops), 0


def _signed_scales(rows: Rows, p: Any, unit: int) -> tuple[Any, Any | None]:
    b = rows.e.builder
    word = rows.word(p, _HALVES, unit // 4)
    left = b.shl(word, _whole(word, 24 - 8 * (unit % 4)))
    return b.fmul(rows.halves(p), rows.e.float_of(b.ashr(left, _whole(left, 24)))), None


INTERLEAVED: Mapping[str, Interleaved] = {
    "q8_0_r16": Interleaved("q8_0", 8, 0, None, _halves),
    "q4_0_r16": Interleaved("q4_0", 4, -8, _nibbles(_HALVES), _halves),
    "q4_1_r16": Interleaved("q4_1", 4, 0, _nibbles(2 * _HALVES), _two_halves),
    "q5_0_r16": Interleaved("q5_0", 5, -16, _fives(_HALVES), _halves),
    "q5_1_r16": Interleaved("q5_1", 5, 0, _fives(2 * _HALVES), _two_halves),
    "q4_k_r16": Interleaved("q4_k", 4, 0, _q4_k, _packed6, 4),
    "q5_k_r16": Interleaved("q5_k", 5, 0, _q5_k, _packed6),
    "q6_k_r16": Interleaved("q6_k", 6, -32, _q6_k, _signed_scales, 2),
}
