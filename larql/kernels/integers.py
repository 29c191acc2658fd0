"""Weights as small integers, and their products with int8 activations, as code emitters.

Per group of 32 elements a weight is scale * (integer - bias) + shift, the scale and shift being of
the group or of each half. Eight int32 lanes hold the dot product: lane j sums elements 4j … 4j + 3,
exactly, so that every instruction set has the same integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from larql.kernels.levels import emitter
from larql.kernels.memory import offset, read
from larql.kernels.unpack import CODES_IQ4, CODES_MXFP4

__all__ = ["INTEGERS", "QUADS", "Group", "Integers", "integer_emitter"]

GROUP = 32
QUADS = ir.VectorType(ir.IntType(32), 8)
_BYTES = ir.VectorType(ir.IntType(8), GROUP)
_HALF = ir.VectorType(ir.IntType(8), GROUP // 2)
_I16 = ir.IntType(16)


def _fill(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


@dataclass(frozen=True)
class Group:
    """32 weights.

    Attributes
    ----------
    values : LLVM value
        32 bytes.
    bias : int or None
        What is subtracted from the bytes, unsigned; None: the bytes are signed as they are.
    scales, shifts : tuple of int
        Which prepared numbers belong to the group (one) or to its halves (two); no shift: ().
    """

    values: Any
    bias: int | None
    scales: tuple[int, ...]
    shifts: tuple[int, ...] = ()


class Integers:
    """Emit from plain vector arithmetic."""

    def __init__(self, builder: Any, level: str) -> None:
        self.builder = builder
        self.level = emitter(level, builder)

    def bytes(self, address: Any, at: int) -> Any:
        """Emit 32 bytes."""
        return read(self.builder, offset(self.builder, address, at), _BYTES)

    def joined(self, low: Any, high: Any) -> Any:
        """Emit two times 16 bytes as 32."""
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), GROUP), list(range(GROUP)))
        return self.builder.shuffle_vector(low, high, lanes)

    def nibbles(self, address: Any, at: int) -> Any:
        """Emit the low, then the high, four bits of 16 bytes."""
        packed = self.level.small(address, at)
        return self.joined(
            self.level.small_bits(packed, 0, 15), self.level.small_bits(packed, 4, 15)
        )

    def codes(self, values: Sequence[int], address: Any, at: int) -> Any:
        """Emit the codebook's values of 16 bytes' low, then high, four bits."""
        packed = self.level.small(address, at)
        return self.joined(
            self.level.code_bytes(values, self.level.small_bits(packed, 0, 15)),
            self.level.code_bytes(values, self.level.small_bits(packed, 4, 15)),
        )

    def where(self, word: Any, value: int) -> Any:
        """Emit bytes of `value` where a bit of the 32-bit word is set, else 0."""
        mask = self.builder.bitcast(word, ir.VectorType(ir.IntType(1), GROUP))
        return self.builder.select(mask, _fill(_BYTES, value), _fill(_BYTES, 0))

    def dot(self, group: Group, x: Any, sums: Any) -> Any:
        """Emit the eight dot products with x (32 int8), whose own sums of four are `sums`."""
        if group.bias is None:
            return self.signed(group.values, x, sums)
        found = self.unsigned(group.values, x)
        if not group.bias:
            return found
        return self.builder.sub(found, self.builder.mul(sums, _fill(QUADS, group.bias)))

    def unsigned(self, weights: Any, x: Any) -> Any:
        """Emit sums of four products of unsigned weights."""
        return self._sums(self.builder.zext, weights, x)

    def signed(self, weights: Any, x: Any, sums: Any) -> Any:
        """Emit sums of four products of signed weights."""
        return self._sums(self.builder.sext, weights, x)

    def _sums(self, widen: Callable[[Any, Any], Any], weights: Any, x: Any) -> Any:
        b = self.builder
        wide = ir.VectorType(ir.IntType(32), GROUP)
        products = b.mul(widen(weights, wide), b.sext(x, wide))
        return quarter_sums(b, products)


def quarter_sums(builder: Any, values: Any) -> Any:
    """Emit the sums of each four neighbours among 32 int32 lanes."""
    parts = [
        builder.shuffle_vector(values, values, ir.Constant(QUADS, list(range(at, GROUP, 4))))
        for at in range(4)
    ]
    return builder.add(builder.add(parts[0], parts[1]), builder.add(parts[2], parts[3]))


class Avx2Integers(Integers):
    """Emit vpmaddubsw, whose sums of two stay below 2^15 here, then vpmaddwd."""

    def unsigned(self, weights: Any, x: Any) -> Any:
        """Emit sums of four products of unsigned weights, at most 63 each."""
        words = ir.VectorType(_I16, 16)
        pairs = self.level.call("llvm.x86.avx2.pmadd.ub.sw", words, [weights, x])
        return self.level.call("llvm.x86.avx2.pmadd.wd", QUADS, [pairs, _fill(words, 1)])

    def signed(self, weights: Any, x: Any, sums: Any) -> Any:
        """Emit |w| times x with the sign of w: 2 * 128 * 127 < 2^15."""
        size = self.level.call("llvm.x86.avx2.psign.b", _BYTES, [weights, weights])
        turned = self.level.call("llvm.x86.avx2.psign.b", _BYTES, [x, weights])
        return self.unsigned(size, turned)


class Avx512Integers(Integers):
    """Emit vpdpbusd."""

    def unsigned(self, weights: Any, x: Any) -> Any:
        """Emit sums of four products of unsigned weights."""
        return self._dot(_fill(QUADS, 0), weights, x)

    def signed(self, weights: Any, x: Any, sums: Any) -> Any:
        """Emit (w + 128) x - 128 x."""
        above = self.builder.xor(weights, _fill(_BYTES, -128))
        below = self.builder.mul(sums, _fill(QUADS, -128))
        return self._dot(below, above, x)

    def _dot(self, start: Any, weights: Any, x: Any) -> Any:
        b = self.builder
        operands = [start, b.bitcast(weights, QUADS), b.bitcast(x, QUADS)]
        return self.level.call("llvm.x86.avx512.vpdpbusd.256", QUADS, operands)


def integer_emitter(level: str, builder: Any) -> Integers:
    """Return the emitter of a level."""
    kinds = {"avx512": Avx512Integers, "avx2": Avx2Integers, "portable": Integers}
    return kinds[level](builder, level)


def _bits(e: Integers, values: Any, shift: int, mask: int) -> Any:
    return e.level.small_shifted(values, shift, mask)


def _q8_0(e: Integers, p: Any) -> Iterator[Group]:
    yield Group(e.bytes(p, 2), None, (0,))


def _q4_0(e: Integers, p: Any) -> Iterator[Group]:
    yield Group(e.nibbles(p, 2), 8, (0,))


def _q4_1(e: Integers, p: Any) -> Iterator[Group]:
    yield Group(e.nibbles(p, 4), 0, (0,), (1,))


def _q5_0(e: Integers, p: Any) -> Iterator[Group]:
    top = e.where(e.level.word(p, 2, 32), 16)
    yield Group(e.builder.or_(e.nibbles(p, 6), top), 16, (0,))


def _q5_1(e: Integers, p: Any) -> Iterator[Group]:
    top = e.where(e.level.word(p, 4, 32), 16)
    yield Group(e.builder.or_(e.nibbles(p, 8), top), 0, (0,), (1,))


def _iq4_nl(e: Integers, p: Any) -> Iterator[Group]:
    yield Group(e.codes(CODES_IQ4, p, 2), None, (0,))


def _mxfp4(e: Integers, p: Any) -> Iterator[Group]:
    yield Group(e.codes(CODES_MXFP4, p, 1), None, (0,))


def _q4_k(e: Integers, p: Any) -> Iterator[Group]:
    for group in range(8):
        packed = e.bytes(p, 16 + 32 * (group // 2))
        yield Group(_bits(e, packed, 4 * (group % 2), 15), 0, (group,), (8 + group,))


def _q5_k(e: Integers, p: Any) -> Iterator[Group]:
    tops = e.bytes(p, 16)
    for group in range(8):
        low = _bits(e, e.bytes(p, 48 + 32 * (group // 2)), 4 * (group % 2), 15)
        value = e.builder.or_(low, _bits(e, tops, group - 4, 16))
        yield Group(value, 0, (group,), (8 + group,))


def _q6_k(e: Integers, p: Any) -> Iterator[Group]:
    for part in range(2):
        for quarter in range(4):
            low = e.bytes(p, 64 * part + 32 * (quarter % 2))
            top = _bits(e, e.bytes(p, 128 + 32 * part), 2 * quarter - 4, 0x30)
            value = e.builder.or_(_bits(e, low, 4 * (quarter // 2), 15), top)
            first = 8 * part + 2 * quarter
            yield Group(value, 32, (first, first + 1))


def _q2_k(e: Integers, p: Any) -> Iterator[Group]:
    for group in range(8):
        value = _bits(e, e.bytes(p, 16 + 32 * (group // 4)), 2 * (group % 4), 3)
        first = 2 * group
        yield Group(value, 0, (first, first + 1), (16 + first, 17 + first))


def _q3_k(e: Integers, p: Any) -> Iterator[Group]:
    tops = e.bytes(p, 0)
    for group in range(8):
        low = _bits(e, e.bytes(p, 32 + 32 * (group // 4)), 2 * (group % 4), 3)
        value = e.builder.or_(low, _bits(e, tops, group - 2, 4))
        yield Group(value, 4, (2 * group, 2 * group + 1))


def _iq4_xs(e: Integers, p: Any) -> Iterator[Group]:
    for group in range(8):
        yield Group(e.codes(CODES_IQ4, p, 8 + 16 * group), None, (group,))


INTEGERS: Mapping[str, Callable[[Integers, Any], Iterator[Group]]] = {
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "iq4_nl": _iq4_nl,
    "mxfp4": _mxfp4,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_xs": _iq4_xs,
}
