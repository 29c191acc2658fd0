"""A sum of exponentials in float64, sixteen at a time.

exp(x) for x <= 0 is 2^n times a polynomial in r = x - n ln 2, |r| <= ln 2 / 2, the Taylor series of
`larql.kernels.likelihood`. What lies below -700 counts as -700: beside the term of the largest,
which is 1, either is nothing.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.likelihood import LN2_HIGH, LN2_LOW, LOG2_E, ROUND, SERIES
from larql.kernels.memory import offset, read
from larql.kernels.vector import F32, LANES, constant, fused, halve, spread

__all__ = ["exponential_sum"]

_LEAST = -700.0
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_WORDS = ir.VectorType(ir.IntType(64), LANES)


def _exponentials(builder: Any, x: Any) -> Any:
    """Emit exp of sixteen doubles that are at most 0."""

    def number(value: float) -> Any:
        return constant(_DOUBLES, value)

    least = number(_LEAST)
    x = builder.select(builder.fcmp_ordered("<", x, least), least, x)
    shifted = fused(builder, x, number(LOG2_E), number(ROUND))
    count = builder.fsub(shifted, number(ROUND))
    r = fused(builder, count, number(-LN2_HIGH), x)
    r = fused(builder, count, number(-LN2_LOW), r)
    p = number(SERIES[-1])
    for coefficient in reversed(SERIES[:-1]):
        p = fused(builder, p, r, number(coefficient))
    # The low bits of `shifted` hold n; moved to the exponent's place they multiply by 2^n.
    power = builder.shl(builder.bitcast(shifted, _WORDS), constant(_WORDS, 52))
    return builder.bitcast(builder.add(builder.bitcast(p, _WORDS), power), _DOUBLES)


@instruction
def exponential_sum(typingctx: Any, row: Any, count: Any, most: Any) -> Any:
    """Return the sum of exp(x - most) over 16 * `count` float32 at `row`, none above `most`.

    Lane i adds every sixteenth term, beginning with term i; lanes are added in the tree order of
    `larql.kernels.vector.lane_sum`.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row, count, most = args
        sums = cgutils.alloca_once(builder, _DOUBLES)
        builder.store(constant(_DOUBLES, 0.0), sums)
        largest = spread(builder, most)
        with cgutils.for_range(builder, count) as loop:
            distance = builder.mul(loop.index, ir.Constant(ir.IntType(64), 4 * LANES))
            lanes = read(builder, builder.add(offset(builder, row, 0), distance), F32.llvm)
            x = builder.fsub(builder.fpext(lanes, _DOUBLES), largest)
            builder.store(builder.fadd(builder.load(sums), _exponentials(builder, x)), sums)
        return halve(builder, builder.load(sums), builder.fadd)

    return types.float64(types.int64, types.int64, types.float64), emit
