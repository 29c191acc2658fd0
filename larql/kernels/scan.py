"""What one pass over a row of float32 finds, sixteen lanes at a time, as code emitters."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.memory import read
from larql.kernels.vector import F32, I32, LANES, MASK, constant, halve, spread

__all__ = ["any_lane", "count_lanes"]

_WORD = ir.IntType(64)


@instruction
def any_lane(typingctx: Any, mask: Any) -> Any:
    """Return whether a lane of a mask is set."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(LANES)
        return builder.icmp_unsigned("!=", builder.bitcast(args[0], word), word(0))

    return (types.boolean(mask), emit) if mask == MASK else None


@instruction
def count_lanes(typingctx: Any, row: Any, count: Any, mark: Any, equal: Any) -> Any:
    """Return how many of 16 * `count` float32 at `row` are above `mark`, or at least it if `equal`.

    `count` is below 2^31; a NaN is neither.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row, count, mark, equal = args
        b = builder
        found = cgutils.alloca_once(b, I32.llvm)
        b.store(constant(I32.llvm, 0), found)
        marks = spread(b, mark)

        def over(symbol: str) -> None:
            with cgutils.for_range(b, count, intp=_WORD) as loop:
                lanes = read(b, b.add(row, b.mul(loop.index, _WORD(4 * LANES))), F32.llvm)
                # A set bit widens to -1.
                there = b.sext(b.fcmp_ordered(symbol, lanes, marks), I32.llvm)
                b.store(b.sub(b.load(found), there), found)

        with b.if_else(b.trunc(equal, ir.IntType(1))) as (yes, no):
            with yes:
                over(">=")
            with no:
                over(">")
        return b.zext(halve(b, b.load(found), b.add), _WORD)

    word = types.int64
    return types.int64(word, word, types.float32, types.boolean), emit
