"""Weights of sixteen interleaved rows, rows as lanes, as code emitters.

A slab holds sixteen rows, block column after block column: first the blocks' binary16 numbers, then
their other bytes by 32-bit words, each for all rows together. A quad is four neighbouring weights
of each row: one word a row, whose byte j has the bits of weight j. Values are those of the encoding
that was interleaved, which `larql.kernels.unpack` decodes. Layouts: docs/format.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from larql.kernels.integers import GROUP, INTEGERS, Integers
from larql.kernels.levels import Portable
from larql.kernels.memory import offset, read
from larql.kernels.vector import I32, LANES, constant, fused

__all__ = ["INTERLEAVED", "QUADS_OF_GROUP", "Interleaved"]

QUADS_OF_GROUP = GROUP // 4
_WORDS = 4 * LANES  # bytes of a word of each row
_HALVES = 2 * LANES
_LOW = 0x0F0F0F0F


@dataclass(frozen=True)
class Interleaved:
    """How the weights of a block column are read.

    Attributes
    ----------
    source : str
        The encoding that was interleaved.
    span : int
        Weights that are made of the same words, together: taken at a time, each word is read once.
    width, first : int
        A weight is scale * (bits + first) + shift of so many bits; 8: signed bytes, which lie
        weight after weight and not by words.
    quad : function or None
        (emitter, address of a block column, number of a quad) -> words, and the bit of their bytes
        at which the weights begin; what is beside them is not zero. None: signed bytes.
    numbers : function
        (emitter, address of a block column, number of a unit) -> its scales, and shifts or None.
    """

    source: str
    span: int
    width: int
    first: int
    quad: Callable[[Portable, Any, int], tuple[Any, int]] | None
    numbers: Callable[[Portable, Any, int], tuple[Any, Any | None]]

    @property
    def units(self) -> int:
        """How many units of equal scale 32 weights have."""
        return INTEGERS[self.source].units

    def quads_of_lanes(self, span: int, first: int, lanes: int) -> list[int]:
        """Return the quads of a span whose weights belong to some of 16 lanes of a sum.

        Those of the same lanes follow each other, in ascending order.
        """
        begin, count = span * self.span // 4, self.span // 4
        return [
            begin + at
            for lane in range(first // 4, (first + lanes) // 4)
            for at in range(lane, count, LANES // 4)
        ]

    def unit_of(self, quad: int) -> int:
        """Return the unit of a quad."""
        return quad * self.units // QUADS_OF_GROUP

    def floats(self, e: Portable, p: Any, number: int, scale: Any, shift: Any) -> list[Any]:
        """Emit the float32 weights of a quad."""
        b = e.builder
        if self.quad is None:
            at = [_HALVES + LANES * (4 * number + j) for j in range(4)]
            found = [e.float_of(e.signed_bytes(p, place)) for place in at]
        else:
            words, bit = self.quad(e, p, number)
            found = [e.field(words, 8 * j + bit, self.width, self.first) for j in range(4)]
        if shift is None:
            return [b.fmul(value, scale) for value in found]
        return [fused(b, value, scale, shift) for value in found]

    def bytes(self, e: Integers, p: Any, number: int, zero: Any) -> Any:
        """Emit the bytes of a quad, in the form that the level's dot product takes.

        `zero` is an int64 that is 0, which the compiler must not know.
        """
        b, kind = e.builder, ir.VectorType(ir.IntType(8), _WORDS)
        if self.quad is None:
            by_weight = read(b, offset(b, p, _HALVES + _WORDS * number), kind)
            return e.fours(e.stored(by_weight, True), zero)
        words, bit = self.quad(e.level, p, number)
        mask = ((1 << self.width) - 1) * 0x01010101
        return b.bitcast(e.level.bits_of(words, bit, mask), kind)


def _word(e: Portable, p: Any, at: int, index: int) -> Any:
    """Emit word `index` of those that begin at byte `at`, of each row."""
    return read(e.builder, offset(e.builder, p, at + _WORDS * index), I32.llvm)


def _turned(e: Portable, words: Any, left: int) -> Any:
    """Emit words << left, or >> -left where negative."""
    if left > 0:
        return e.builder.shl(words, constant(I32.llvm, left))
    return e.builder.lshr(words, constant(I32.llvm, -left)) if left else words


def _topped(e: Portable, low: Any, tops: Any) -> Any:
    """Emit the low four bits of each byte of one, the high four of the other."""
    b = e.builder
    mask = constant(I32.llvm, _LOW)
    return b.or_(b.and_(low, mask), b.and_(tops, constant(I32.llvm, 0xF0F0F0F0)))


def _halves(e: Portable, p: Any, unit: int) -> tuple[Any, Any | None]:
    return e.halves(p), None


def _two_halves(e: Portable, p: Any, unit: int) -> tuple[Any, Any | None]:
    return e.halves(p), e.halves(offset(e.builder, p, _HALVES))


def _nibbles(at: int) -> Callable[[Portable, Any, int], tuple[Any, int]]:
    def quad(e: Portable, p: Any, number: int) -> tuple[Any, int]:
        return _word(e, p, at, number % 4), 4 * (number // 4)

    return quad


def _fives(at: int) -> Callable[[Portable, Any, int], tuple[Any, int]]:
    def quad(e: Portable, p: Any, number: int) -> tuple[Any, int]:
        low = _turned(e, _word(e, p, at + _WORDS, number % 4), -4 * (number // 4))
        return _topped(e, low, _turned(e, _word(e, p, at, 0), 4 - number)), 0

    return quad


def _packed6(e: Portable, p: Any, unit: int) -> tuple[Any, Any | None]:
    """Emit a six-bit scale and minimum of Q4_K or Q5_K, times those of their block."""
    b = e.builder
    words = []
    for first, low_shift in ((0, 0), (1, 4)):  # scales, minima
        word = _word(e, p, 2 * _HALVES, first)
        if unit >= 4:
            low = e.bits_of(_word(e, p, 2 * _HALVES, 2), low_shift, _LOW)
            word = b.or_(low, b.shl(e.bits_of(word, 6, 0x03030303), constant(I32.llvm, 4)))
        words.append(e.field(word, 8 * (unit % 4), 6, 0))
    scale = b.fmul(e.halves(p), words[0])
    return scale, b.fmul(b.fneg(e.halves(offset(b, p, _HALVES))), words[1])


def _q4_k(e: Portable, p: Any, number: int) -> tuple[Any, int]:
    group, q = divmod(number, QUADS_OF_GROUP)
    return _word(e, p, 256, 8 * (group // 2) + q), 4 * (group % 2)


def _q5_k(e: Portable, p: Any, number: int) -> tuple[Any, int]:
    group, q = divmod(number, QUADS_OF_GROUP)
    low = _turned(e, _word(e, p, 768, 8 * (group // 2) + q), -4 * (group % 2))
    return _topped(e, low, _turned(e, _word(e, p, 256, q), 4 - group)), 0


def _q6_k(e: Portable, p: Any, number: int) -> tuple[Any, int]:
    group, q = divmod(number, QUADS_OF_GROUP)
    part, quarter = divmod(group, 4)
    low = _turned(e, _word(e, p, 288, 16 * part + 8 * (quarter % 2) + q), -4 * (quarter // 2))
    return _topped(e, low, _turned(e, _word(e, p, 2336, 8 * part + q), 4 - 2 * quarter)), 0


def _signed_scales(e: Portable, p: Any, unit: int) -> tuple[Any, Any | None]:
    b = e.builder
    left = b.shl(_word(e, p, _HALVES, unit // 4), constant(I32.llvm, 24 - 8 * (unit % 4)))
    step = e.float_of(b.ashr(left, constant(I32.llvm, 24)))
    return b.fmul(e.halves(p), step), None


INTERLEAVED: Mapping[str, Interleaved] = {
    "q8_0_r16": Interleaved("q8_0", 32, 8, 0, None, _halves),
    "q4_0_r16": Interleaved("q4_0", 32, 4, -8, _nibbles(_HALVES), _halves),
    "q4_1_r16": Interleaved("q4_1", 32, 4, 0, _nibbles(2 * _HALVES), _two_halves),
    "q5_0_r16": Interleaved("q5_0", 32, 5, -16, _fives(_HALVES), _halves),
    "q5_1_r16": Interleaved("q5_1", 32, 5, 0, _fives(2 * _HALVES), _two_halves),
    "q4_k_r16": Interleaved("q4_k", 64, 4, 0, _q4_k, _packed6),
    "q5_k_r16": Interleaved("q5_k", 64, 5, 0, _q5_k, _packed6),
    "q6_k_r16": Interleaved("q6_k", 128, 6, -32, _q6_k, _signed_scales),
}
