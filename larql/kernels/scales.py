"""Block scales as float32 in memory, as code emitters.

The scales of some rows are decoded before their weights: from there a scale reaches all
lanes by a broadcast load, which leaves the shuffle ports to the weights. Layouts: GGUF
specification, ggml's block structures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.jit import cgutils
from larql.kernels.levels import Portable
from larql.kernels.memory import offset, read, write
from larql.kernels.vector import I32, LANES, shuffled, spread, transposed

__all__ = ["EIGHT_SPARE", "SCALES", "Scales"]

_WORD, _I32, _I16 = ir.IntType(64), ir.IntType(32), ir.IntType(16)
_FLOAT = ir.FloatType()
EIGHT_SPARE = 8 * 32  # float32: the numbers of a block of each of eight rows


@dataclass(frozen=True)
class Scales:
    """How the scales of an encoding are prepared.

    Attributes
    ----------
    count : int
        Prepared float32 per block.
    emit : function or None
        (emitter, block address, target address): write one block's `count` numbers. None where the
        block begins its scales with `count` binary16 numbers, which are converted in bulk.
    """

    count: int
    emit: Callable[[Portable, Any, Any], None] | None = None

    def prepare(self, e: Portable, encoding: str, row: Any, blocks: Any, target: Any) -> None:
        """Emit the preparation of consecutive blocks; the target is rounded up to 16 numbers."""
        size = BLOCKS[encoding].nbytes
        if self.emit is not None:
            with cgutils.for_range(e.builder, blocks, intp=_WORD) as loop:
                block = e.builder.add(row, e.builder.mul(loop.index, _WORD(size)))
                place = e.builder.mul(loop.index, _WORD(4 * self.count))
                self.emit(e, block, e.builder.add(target, place))
            return
        b, together = e.builder, LANES // self.count
        kind = ir.VectorType(ir.IntType(16 * self.count), together)

        def convert(place: Any, addresses: list[Any]) -> None:
            # Collected in a register: a vector cannot be loaded at once from words just stored.
            packed: Any = ir.Constant(kind, ir.Undefined)
            for index, address in enumerate(addresses):
                word = e.word(address, 0, 16 * self.count)
                packed = b.insert_element(packed, word, _I32(index))
            write(b, e.halves_of(b.bitcast(packed, ir.VectorType(_I16, LANES))), place)

        whole = b.udiv(blocks, _WORD(together))
        with cgutils.for_range(b, whole, intp=_WORD) as loop:
            first = b.add(row, b.mul(loop.index, _WORD(together * size)))
            place = b.add(target, b.mul(loop.index, _WORD(4 * LANES)))
            convert(place, [offset(b, first, size * index) for index in range(together)])
        done = b.mul(whole, _WORD(together))
        with b.if_then(b.icmp_signed("<", done, blocks), likely=False):
            last = b.sub(blocks, _WORD(1))
            some = [b.add(done, _WORD(index)) for index in range(together)]
            some = [b.select(b.icmp_signed("<", at, last), at, last) for at in some]
            place = b.add(target, b.mul(whole, _WORD(4 * LANES)))
            convert(place, [b.add(row, b.mul(at, _WORD(size))) for at in some])

    def prepare_eight(
        self, e: Portable, encoding: str, rows: Sequence[Any], blocks: Any, target: Any
    ) -> None:
        """Emit the preparation of eight rows: number j of block b is at [b, j, row].

        `target` has room for the numbers and `EIGHT_SPARE` more. Nothing is done where
        :meth:`of_eight` gives the numbers.
        """
        b, size = e.builder, BLOCKS[encoding].nbytes
        count = len(rows)
        if self.emit is None:
            return
        apart = b.add(target, b.mul(blocks, _WORD(4 * count * self.count)))
        padded = -(-self.count // LANES) * LANES
        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            for index, row in enumerate(rows):
                block = b.add(row, b.mul(loop.index, _WORD(size)))
                self.emit(e, block, offset(b, apart, 4 * padded * index))
            place = b.add(target, b.mul(loop.index, _WORD(4 * count * self.count)))
            for first in range(0, self.count, count):
                kind = ir.VectorType(_FLOAT, count)
                found = [
                    read(b, offset(b, apart, 4 * (padded * index + first)), kind)
                    for index in range(count)
                ]
                width = min(count, self.count - first)
                for index, vector in enumerate(transposed(b, found)[:width]):
                    write(b, vector, offset(b, place, 4 * count * (first + index)))

    def of_eight(self, e: Portable, blocks: Sequence[Any]) -> list[Any]:
        """Emit the numbers of a block of each of eight rows, rows as lanes, where they are halves.

        They pass through no memory: a vector cannot be loaded at once from words just stored.
        """
        b, count = e.builder, len(blocks)
        kind = ir.VectorType(ir.IntType(16 * self.count), count)
        packed: Any = ir.Constant(kind, ir.Undefined)
        for index, block in enumerate(blocks):
            packed = b.insert_element(packed, e.word(block, 0, 16 * self.count), _I32(index))
        halves = b.bitcast(packed, ir.VectorType(_I16, count * self.count))
        lanes = [i for j in range(self.count) for i in range(j, count * self.count, self.count)]
        numbers = e.halves_of(shuffled(b, halves, halves, lanes))
        return [
            shuffled(b, numbers, numbers, list(range(count * j, count * (j + 1))))
            for j in range(self.count)
        ]


def _mxfp4(e: Portable, p: Any, target: Any) -> None:
    b = e.builder
    exponent = b.zext(e.word(p, 0, 8), _I32)
    # Half of 2^(exponent - 127), subnormal for the two smallest exponents; codes are doubled.
    tiny = b.shl(_I32(0x00200000), b.and_(exponent, _I32(1)))
    usual = b.shl(b.sub(exponent, _I32(1)), _I32(23))
    write(b, b.select(b.icmp_unsigned("<", exponent, _I32(2)), tiny, usual), target)


def _packed6(e: Portable, p: Any, target: Any) -> None:
    """Emit eight scales, then eight negated minima, of a Q4_K or Q5_K block."""
    b = e.builder
    low, middle, high = (e.word(p, at, 32) for at in (4, 8, 12))

    def masked(word: Any, shift: int, mask: int) -> Any:
        return b.and_(b.lshr(word, _I32(shift)) if shift else word, _I32(mask))

    def tops(word: Any) -> Any:
        return b.shl(masked(word, 6, 0x03030303), _I32(4))

    words = (
        masked(low, 0, 0x3F3F3F3F),
        b.or_(masked(high, 0, 0x0F0F0F0F), tops(low)),
        masked(middle, 0, 0x3F3F3F3F),
        b.or_(masked(high, 4, 0x0F0F0F0F), tops(middle)),
    )
    packed: Any = ir.Constant(ir.VectorType(_I32, 4), ir.Undefined)
    for index, word in enumerate(words):
        packed = b.insert_element(packed, word, _I32(index))
    small = b.bitcast(packed, ir.VectorType(ir.IntType(8), LANES))
    numbers = e.float_of(b.zext(small, I32.llvm))
    scale, minimum = spread(b, e.half(p, 0)), spread(b, b.fneg(e.half(p, 2)))
    first = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [lane < 8 for lane in range(LANES)])
    write(b, b.fmul(numbers, b.select(first, scale, minimum)), target)


def _q6_k(e: Portable, p: Any, target: Any) -> None:
    steps = e.float_of(e.signed_bytes(p, 192))
    write(e.builder, e.builder.fmul(spread(e.builder, e.half(p, 208)), steps), target)


def _q2_k(e: Portable, p: Any, target: Any) -> None:
    b = e.builder
    packed = e.bytes(p, 0)
    scales = e.float_of(e.bits_of(packed, 0, 15))
    minima = e.float_of(e.bits_of(packed, 4, 15))
    write(b, b.fmul(spread(b, e.half(p, 80)), scales), target)
    write(b, b.fmul(spread(b, b.fneg(e.half(p, 82))), minima), offset(b, target, 64))


def _coded(e: Portable, whole: Any, code: Any, target: Any, index: int) -> None:
    """Emit whole * (code - 32) as number `index`."""
    b = e.builder
    number = b.sitofp(b.sub(code, _I32(32)), _FLOAT)
    write(b, b.fmul(whole, number), offset(b, target, 4 * index))


def _q3_k(e: Portable, p: Any, target: Any) -> None:
    b = e.builder
    low, high, tops = (e.word(p, at, 32) for at in (96, 100, 104))
    whole = e.half(p, 108)
    for group in range(16):
        word = (low, high)[group // 4 % 2]
        small = b.lshr(word, _I32(8 * (group % 4) + 4 * (group // 8)))
        top = b.lshr(tops, _I32(8 * (group % 4) + 2 * (group // 4)))
        code = b.or_(b.and_(small, _I32(15)), b.shl(b.and_(top, _I32(3)), _I32(4)))
        _coded(e, whole, code, target, group)


def _iq4_xs(e: Portable, p: Any, target: Any) -> None:
    b = e.builder
    whole = e.half(p, 0)
    tops, low = b.zext(e.word(p, 2, 16), _I32), e.word(p, 4, 32)
    for group in range(8):
        small = b.and_(b.lshr(low, _I32(4 * group)), _I32(15))
        top = b.and_(b.lshr(tops, _I32(2 * group)), _I32(3))
        _coded(e, whole, b.or_(small, b.shl(top, _I32(4))), target, group)


_ONE, _TWO = Scales(1), Scales(2)
SCALES: Mapping[str, Scales | None] = {
    "f32": None,
    "f16": None,
    "bf16": None,
    "q8_0": _ONE,
    "q4_0": _ONE,
    "q4_1": _TWO,
    "q5_0": _ONE,
    "q5_1": _TWO,
    "iq4_nl": _ONE,
    "mxfp4": Scales(1, _mxfp4),
    "q2_k": Scales(32, _q2_k),
    "q3_k": Scales(16, _q3_k),
    "q4_k": Scales(16, _packed6),
    "q5_k": Scales(16, _packed6),
    "q6_k": Scales(16, _q6_k),
    "iq4_xs": Scales(8, _iq4_xs),
}
