"""Plain rows interleaved by sixteen in scratch memory, in the order of `interleaved`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.interleaved import INTERLEAVED
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.memory import edges, offset, prefetch_lines, read, write
from larql.kernels.vector import LANES, constant, shuffled

__all__ = ["interleave_slab"]

_WORD, _I16, _I32 = (ir.IntType(width) for width in (64, 16, 32))
_FOUR = ir.VectorType(_I32, 4)
_WORDS = 4 * LANES  # bytes of a word of each row


@dataclass(frozen=True)
class _Fields:
    """Where a block's binary16 numbers and words are, in the order in which a slab has them.

    Attributes
    ----------
    halves : tuple of int
        Byte at which each number begins.
    words : tuple of (int, int)
        First byte and number of each run of words; of a run, four are read at a time.
    fifth_bits : int or None
        Byte at which the word of fifth bits begins, which stands before the others.
    """

    halves: tuple[int, ...]
    words: tuple[tuple[int, int], ...] = ()
    fifth_bits: int | None = None


# Block layouts: ggml's block structures; the order of a slab: docs/format.md.
_FIELDS: Mapping[str, _Fields] = {
    "q4_0": _Fields((0,), ((2, 4),)),
    "q4_1": _Fields((0, 2), ((4, 4),)),
    "q5_0": _Fields((0,), ((6, 4),), 2),
    "q5_1": _Fields((0, 2), ((8, 4),), 4),
    "q4_k": _Fields((0, 2), ((4, 3), (16, 32))),
    "q5_k": _Fields((0, 2), ((4, 3), (16, 8), (48, 32))),
    "q6_k": _Fields((208,), ((192, 4), (0, 32), (128, 16))),
}


def _gathered(b: Any, rows: Sequence[Any], at: int) -> Any:
    """Emit one word of each row, side by side."""
    found = ir.Constant(ir.VectorType(_I32, len(rows)), ir.Undefined)
    for lane, row in enumerate(rows):
        found = b.insert_element(found, read(b, offset(b, row, at), _I32), _I32(lane))
    return found


def _words(b: Any, rows: Sequence[Any], at: int) -> list[Any]:
    """Emit four words of eight rows: transposed in halves of a register, without crossing them."""

    def pair(row: int) -> Any:
        low, high = (read(b, offset(b, rows[each], at), _FOUR) for each in (row, row + 4))
        return shuffled(b, low, high, list(range(8)))

    def mixed(a: Any, c: Any, lanes: Sequence[int]) -> Any:
        """Take lanes below 4 from each half of one, the others from each half of the other."""
        order = [lane % 4 + (8 if lane >= 4 else 0) for lane in lanes]
        return shuffled(b, a, c, order + [lane + 4 for lane in order])

    a = [pair(row) for row in range(4)]
    low, high = (0, 4, 1, 5), (2, 6, 3, 7)
    tops = [mixed(a[0], a[1], low), mixed(a[2], a[3], low)]
    ends = [mixed(a[0], a[1], high), mixed(a[2], a[3], high)]
    first, second = (0, 1, 4, 5), (2, 3, 6, 7)
    return [mixed(x, y, lanes) for x, y in (tops, ends) for lanes in (first, second)]


def _crossed(b: Any, words: Any) -> Any:
    """Emit words with bit k at 8 * (k mod 4) + k div 4: exchanges of bits, a few apart each."""

    def exchanged(words: Any, mask: int, distance: int) -> Any:
        """Exchange the bits of `mask` with those `distance` above."""
        step = constant(words.type, distance)
        changed = b.and_(b.xor(words, b.lshr(words, step)), constant(words.type, mask))
        return b.xor(b.xor(words, changed), b.shl(changed, step))

    for mask, distance in _EXCHANGES:
        words = exchanged(words, mask, distance)
    return words


def _turns_of_bits() -> list[tuple[int, int]]:
    """Return the exchanges that turn bit number (a b c d e) into (d e a b c), one digit a time."""
    # The number of a bit has five binary digits; its place shall be that number turned left by
    # three. Exchanging digits i < j of all numbers is one exchange of bits 2^j - 2^i apart.
    digits = list(range(5))  # digits[place] is the digit of the number that is there now
    wanted = [2, 3, 4, 0, 1]
    found = []
    for place in range(5):
        other = digits.index(wanted[place])
        if other != place:
            mask = sum(
                1 << bit for bit in range(32) if bit >> place & 1 == 1 and bit >> other & 1 == 0
            )
            found.append((mask, (1 << other) - (1 << place)))
            digits[place], digits[other] = digits[other], digits[place]
    return found


_EXCHANGES = _turns_of_bits()


def _block(b: Any, name: str, rows: Sequence[Any], place: Any) -> None:
    """Emit the interleaving of a block of each row."""
    fields = _FIELDS[name]
    if len(fields.halves) == 2:
        both = _gathered(b, rows, fields.halves[0])  # they are neighbours
        for half in range(2):
            words = b.lshr(both, constant(both.type, 16 * half))
            write(b, b.trunc(words, ir.VectorType(_I16, LANES)), offset(b, place, 2 * LANES * half))
    else:
        for lane, row in enumerate(rows):  # quicker than into a register one by one
            half = read(b, offset(b, row, fields.halves[0]), _I16)
            write(b, half, offset(b, place, 2 * lane))
    place = offset(b, place, 2 * LANES * len(fields.halves))
    if fields.fifth_bits is not None:
        write(b, _crossed(b, _gathered(b, rows, fields.fifth_bits)), place)
        place = offset(b, place, _WORDS)
    for first, count in fields.words:
        for word in range(0, count, 4):
            for half in (0, 8):
                four = _words(b, rows[half : half + 8], first + 4 * word)
                for index, value in enumerate(four[: count - word]):
                    write(b, value, offset(b, place, _WORDS * (word + index) + 4 * half))
        place = offset(b, place, _WORDS * count)


@instruction
def interleave_slab(
    typingctx: Any, variant: Any, source: Any, stride: Any, last_row: Any, blocks: Any,
    target: Any, coming: Any,
) -> Any:  # fmt: skip
    """Interleave `blocks` blocks of sixteen rows, `stride` bytes apart, into a slab at `target`.

    The variant's encoding is that of the slab. Rows past the last repeat it. As many bytes from
    `coming` on are fetched into the cache; any address will do.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, source, stride, last_row, blocks, target, coming = args
        b, name = builder, INTERLEAVED[variant.encoding].source
        step = BLOCKS[name].nbytes

        def run(rows_of: Callable[[Any], list[Any]]) -> None:
            with cgutils.for_range(b, blocks, intp=_WORD) as loop:
                skip = b.mul(loop.index, _WORD(step))
                begin = b.mul(skip, _WORD(LANES))
                prefetch_lines(b, b.add(coming, begin), step * LANES)
                _block(b, name, rows_of(skip), b.add(target, begin))

        def whole(skip: Any) -> list[Any]:
            """Emit addresses that an instruction can put together from few registers."""
            tops = [b.add(source, b.mul(stride, _WORD(row))) for row in range(0, LANES, 4)]
            strides = [b.mul(stride, _WORD(row)) for row in range(1, 4)]
            found = []
            for top in tops:
                first = b.add(top, skip)
                found += [first, *(b.add(first, distance) for distance in strides)]
            return found

        def edge(skip: Any) -> list[Any]:
            return [b.add(row, skip) for row in edges(b, source, stride, last_row, LANES)]

        full = b.icmp_signed("==", last_row, _WORD(LANES - 1))
        with b.if_else(full, likely=True) as (all_, some):
            with all_:
                run(whole)
            with some:
                run(edge)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 6), emit
