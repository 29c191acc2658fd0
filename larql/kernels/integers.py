"""Weights as small integers, and their products with int8 activations, as code emitters.

A weight is scale * (byte - bias) + shift. Scale and shift belong to a unit of weights: a group of
32, or each half of one. Dot products of a unit are exact, so that every instruction set has the
same integers, however it sums them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from larql.kernels.levels import Portable, emitter
from larql.kernels.unpack import CODES_IQ4, CODES_MXFP4
from larql.kernels.vector import I32, shuffled, spread

__all__ = [
    "BYTES",
    "GROUP",
    "INTEGERS",
    "QUADS",
    "Group",
    "Integers",
    "Meaning",
    "alike",
    "dot_pairs",
    "integer_bias",
    "integer_emitter",
]

GROUP = 32
Place = Sequence[Any]  # the address of a block of each row
QUADS = ir.VectorType(ir.IntType(32), 8)
BYTES = ir.VectorType(ir.IntType(8), GROUP)
_I16, _I32 = ir.IntType(16), ir.IntType(32)


def _fill(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


@dataclass(frozen=True)
class Group:
    """32 weights of a row, or of each of two rows.

    Attributes
    ----------
    halves : tuple of two LLVM values
        The first and the last 16 weights: 16 bytes for each row, one row after the other.
    scales, shifts : tuple of int
        Which prepared numbers belong to the group's units, in order; no shift: ().
    """

    halves: tuple[Any, Any]
    scales: tuple[int, ...]
    shifts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Meaning:
    """What the bytes of an encoding's groups mean.

    Attributes
    ----------
    groups : function
        (emitter, a block's address for each row) -> the blocks' groups, in order.
    bias : int or None
        What is subtracted from the bytes, unsigned and below 64; None: the bytes are signed.
    units : int
        How many units a group has.
    shifted : bool
        Whether units have shifts.
    """

    groups: Callable[[Integers, Place], Iterator[Group]]
    bias: int | None
    units: int = 1
    shifted: bool = False


class Integers:
    """Emit from plain vector arithmetic.

    Attributes
    ----------
    signed_bias : int
        What :meth:`stored` adds to signed bytes.
    """

    signed_bias = 0

    def __init__(self, builder: Any, level: str) -> None:
        self.builder = builder
        self.level = emitter(level, builder)

    def small(self, p: Place, at: int) -> Any:
        """Emit 16 bytes of each row."""
        rows = [self.level.small(row, at) for row in p]
        if len(rows) == 1:
            return rows[0]
        return shuffled(self.builder, rows[0], rows[1], list(range(GROUP)))

    def both(self, p: Place, at: int) -> tuple[Any, Any]:
        """Emit 32 bytes of each row."""
        return self.small(p, at), self.small(p, at + GROUP // 2)

    def bits(self, values: tuple[Any, Any], shift: int, mask: int) -> tuple[Any, Any]:
        """Emit (values >> shift) & mask, or << -shift where negative."""
        first, second = (self.level.small_shifted(value, shift, mask) for value in values)
        return first, second

    def joined(self, low: tuple[Any, Any], high: tuple[Any, Any]) -> tuple[Any, Any]:
        """Emit low | high."""
        return self.builder.or_(low[0], high[0]), self.builder.or_(low[1], high[1])

    def nibbles(self, p: Place, at: int) -> tuple[Any, Any]:
        """Emit the low, then the high, four bits of 16 bytes."""
        packed = self.small(p, at)
        return self.level.small_bits(packed, 0, 15), self.level.small_bits(packed, 4, 15)

    def codes(self, values: Sequence[int], p: Place, at: int) -> tuple[Any, Any]:
        """Emit the codebook's values of 16 bytes' low, then high, four bits."""
        first, second = (self.level.code_bytes(values, half) for half in self.nibbles(p, at))
        return first, second

    def fifth_bits(self, p: Place, at: int) -> tuple[Any, Any]:
        """Emit bytes of 16 where a bit of the 32-bit word is set, else 0."""
        b = self.builder
        halves = []
        for first in (0, 2):
            words = [self.level.word(row, at + first, 16) for row in p]
            word = words[0]
            if len(words) == 2:
                wide = [b.zext(each, _I32) for each in words]
                word = b.or_(wide[0], b.shl(wide[1], _I32(16)))
            halves.append(self.level.small_choice(word, 16, 0))
        return halves[0], halves[1]

    def stored(self, values: Any, signed: bool) -> Any:
        """Emit the bytes in the form that :meth:`dot` takes at this level."""
        if signed and self.signed_bias:
            return self.builder.xor(values, _fill(values.type, self.signed_bias))
        return values

    def fours(self, bytes_: Any, zero: Any) -> Any:
        """Emit byte 16 j + i as byte 4 i + j of 64; `zero` is 0, which the compiler cannot know."""
        order = [16 * j + i for i in range(16) for j in range(4)]
        return shuffled(self.builder, bytes_, bytes_, order)

    def dot(self, start: Any, weights: Any, x: Any, signed: bool) -> Any:
        """Emit start + the sums of each four products of stored bytes with int8.

        Parameters
        ----------
        start : LLVM value
            n lanes of int32.
        weights, x : LLVM value
            4 n bytes; |x| is at most 127.
        signed : bool
            Whether the weights were, before they were stored.
        """
        b = self.builder
        wide = ir.VectorType(ir.IntType(32), weights.type.count)
        widen = b.sext if signed else b.zext
        products = b.mul(widen(weights, wide), b.sext(x, wide))
        count = start.type.count
        lanes = ir.VectorType(ir.IntType(32), count)
        parts = [
            b.shuffle_vector(products, products, ir.Constant(lanes, list(range(at, 4 * count, 4))))
            for at in range(4)
        ]
        return b.add(start, b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3])))


class Avx2Integers(Integers):
    """Emit vpmaddubsw, whose sums of two stay below 2^15 here, then vpmaddwd."""

    def dot(self, start: Any, weights: Any, x: Any, signed: bool) -> Any:
        """Emit products of unsigned weights below 64, or of |w| and x with the sign of w."""
        if weights.type.count > GROUP:
            return self._dot_of_halves(start, weights, x, signed)
        call, words = self.level.call, ir.VectorType(_I16, 16)
        if signed:  # 2 * 128 * 127 < 2^15
            weights, x = (
                call("llvm.x86.avx2.psign.b", BYTES, [value, weights]) for value in (weights, x)
            )
        pairs = call("llvm.x86.avx2.pmadd.ub.sw", words, [weights, x])
        sums = call("llvm.x86.avx2.pmadd.wd", QUADS, [pairs, _fill(words, 1)])
        return self.builder.add(start, sums)

    def _dot_of_halves(self, start: Any, weights: Any, x: Any, signed: bool) -> Any:
        b = self.builder

        def half(value: Any, index: int) -> Any:
            size = value.type.count // 2
            return shuffled(b, value, value, list(range(index * size, (index + 1) * size)))

        low, high = (
            self.dot(half(start, i), half(weights, i), half(x, i), signed) for i in range(2)
        )
        return shuffled(b, low, high, list(range(start.type.count)))


def dot_pairs(level: Portable, start: Any, weights: Any, x: Any) -> Any:
    """Emit start, 8 lanes of int32, + the sums of each two products of 16-bit integers, on AVX2."""
    sums = level.call("llvm.x86.avx2.pmadd.wd", QUADS, [weights, x])
    return level.builder.add(start, sums)


class Avx512Integers(Integers):
    """Emit vpdpbusd, which takes unsigned weights: signed ones are stored plus 128."""

    signed_bias = 128

    def fours(self, bytes_: Any, zero: Any) -> Any:
        """Emit two shuffles: of a constant order the compiler would make a dozen."""
        b, call = self.builder, self.level.call
        words, small = I32.llvm, bytes_.type
        places = [4 * j + i for i in range(4) for j in range(4)]
        by_words = b.add(ir.Constant(words, places), spread(b, b.trunc(zero, _I32), 16))
        turned = call("llvm.x86.avx512.permvar.si.512", words, [b.bitcast(bytes_, words), by_words])
        by_bytes = b.add(
            ir.Constant(small, places * 4), spread(b, b.trunc(zero, small.element), small.count)
        )
        return call("llvm.x86.avx512.pshuf.b.512", small, [b.bitcast(turned, small), by_bytes])

    def dot(self, start: Any, weights: Any, x: Any, signed: bool) -> Any:
        """Emit the dot product."""
        b, kind = self.builder, start.type
        operands = [start, b.bitcast(weights, kind), b.bitcast(x, kind)]
        return self.level.call(f"llvm.x86.avx512.vpdpbusd.{32 * kind.count}", kind, operands)


_EMITTERS: Mapping[str, type[Integers]] = {
    "avx512": Avx512Integers,
    "avx2": Avx2Integers,
    "portable": Integers,
}


def integer_emitter(level: str, builder: Any) -> Integers:
    """Return the emitter of a level."""
    return _EMITTERS[level](builder, level)


def integer_bias(level: str, encoding: str) -> int:
    """Return what has to be subtracted from the bytes that a level stores."""
    bias = INTEGERS[encoding].bias
    return _EMITTERS[level].signed_bias if bias is None else bias


def alike(level: str, encoding: str) -> str:
    """Return the first encoding whose bytes, once stored, are multiplied like this one's."""

    def kind(name: str) -> tuple[int, bool, bool]:
        meaning = INTEGERS[name]
        signed = meaning.bias is None and not _EMITTERS[level].signed_bias
        return meaning.units, meaning.shifted, signed

    return next(name for name in INTEGERS if kind(name) == kind(encoding))


def _q8_0(e: Integers, p: Place) -> Iterator[Group]:
    yield Group(e.both(p, 2), (0,))


def _q4_0(e: Integers, p: Place) -> Iterator[Group]:
    yield Group(e.nibbles(p, 2), (0,))


def _q4_1(e: Integers, p: Place) -> Iterator[Group]:
    yield Group(e.nibbles(p, 4), (0,), (1,))


def _q5_0(e: Integers, p: Place) -> Iterator[Group]:
    yield Group(e.joined(e.nibbles(p, 6), e.fifth_bits(p, 2)), (0,))


def _q5_1(e: Integers, p: Place) -> Iterator[Group]:
    yield Group(e.joined(e.nibbles(p, 8), e.fifth_bits(p, 4)), (0,), (1,))


def _iq4_nl(e: Integers, p: Place) -> Iterator[Group]:
    yield Group(e.codes(CODES_IQ4, p, 2), (0,))


def _mxfp4(e: Integers, p: Place) -> Iterator[Group]:
    yield Group(e.codes(CODES_MXFP4, p, 1), (0,))


def _q4_k(e: Integers, p: Place) -> Iterator[Group]:
    for group in range(8):
        packed = e.both(p, 16 + 32 * (group // 2))
        yield Group(e.bits(packed, 4 * (group % 2), 15), (group,), (8 + group,))


def _q5_k(e: Integers, p: Place) -> Iterator[Group]:
    tops = e.both(p, 16)
    for group in range(8):
        low = e.bits(e.both(p, 48 + 32 * (group // 2)), 4 * (group % 2), 15)
        yield Group(e.joined(low, e.bits(tops, group - 4, 16)), (group,), (8 + group,))


def _q6_k(e: Integers, p: Place) -> Iterator[Group]:
    for part in range(2):
        for quarter in range(4):
            low = e.both(p, 64 * part + 32 * (quarter % 2))
            top = e.bits(e.both(p, 128 + 32 * part), 2 * quarter - 4, 0x30)
            first = 8 * part + 2 * quarter
            value = e.joined(e.bits(low, 4 * (quarter // 2), 15), top)
            yield Group(value, (first, first + 1))


def _q2_k(e: Integers, p: Place) -> Iterator[Group]:
    for group in range(8):
        value = e.bits(e.both(p, 16 + 32 * (group // 4)), 2 * (group % 4), 3)
        first = 2 * group
        yield Group(value, (first, first + 1), (16 + first, 17 + first))


def _q3_k(e: Integers, p: Place) -> Iterator[Group]:
    tops = e.both(p, 0)
    for group in range(8):
        low = e.bits(e.both(p, 32 + 32 * (group // 4)), 2 * (group % 4), 3)
        value = e.joined(low, e.bits(tops, group - 2, 4))
        yield Group(value, (2 * group, 2 * group + 1))


def _iq4_xs(e: Integers, p: Place) -> Iterator[Group]:
    for group in range(8):
        yield Group(e.codes(CODES_IQ4, p, 8 + 16 * group), (group,))


INTEGERS: Mapping[str, Meaning] = {
    "q8_0": Meaning(_q8_0, None),
    "q4_0": Meaning(_q4_0, 8),
    "q4_1": Meaning(_q4_1, 0, shifted=True),
    "q5_0": Meaning(_q5_0, 16),
    "q5_1": Meaning(_q5_1, 0, shifted=True),
    "iq4_nl": Meaning(_iq4_nl, None),
    "mxfp4": Meaning(_mxfp4, None),
    "q2_k": Meaning(_q2_k, 0, units=2, shifted=True),
    "q3_k": Meaning(_q3_k, 4, units=2),
    "q4_k": Meaning(_q4_k, 0, shifted=True),
    "q5_k": Meaning(_q5_k, 0, shifted=True),
    "q6_k": Meaning(_q6_k, 32, units=2),
    "iq4_xs": Meaning(_iq4_xs, None),
}
