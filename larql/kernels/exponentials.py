"""Sums of exponentials in float64, in sixteen lanes.

exp(x) for x <= 0 is 2^n times a polynomial in r = x - n ln 2, |r| <= ln 2 / 2, the Taylor series of
`larql.kernels.likelihood`. What lies below -700 counts as -700: beside the term of the largest,
which is 1, either is nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.likelihood import LN2_HIGH, LN2_LOW, LOG2_E, ROUND, SERIES
from larql.kernels.memory import read
from larql.kernels.vector import LANES, constant, fused, halve, shuffled, spread

__all__ = ["exponential_difference", "exponential_sum", "falling_series"]

_LEAST = -700.0
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_WORD = ir.IntType(64)


def _exponentials(builder: Any, x: Any, series: Any, count_of_series: Any) -> Any:
    """Emit exp of doubles that are at most 0.

    Each step of the polynomial is taken for all doubles before the next, in a loop that the
    compiler cannot unroll: it would take all steps of a few doubles first, each of which waits for
    the one before.
    """
    words = ir.VectorType(_WORD, x.type.count)

    def number(value: float) -> Any:
        return constant(x.type, value)

    least = number(_LEAST)
    kind = x.type
    x = builder.select(builder.fcmp_ordered("<", x, least), least, x)
    shifted = fused(builder, x, number(LOG2_E), number(ROUND))
    count = builder.fsub(shifted, number(ROUND))
    r = fused(builder, count, number(-LN2_HIGH), x)
    r = fused(builder, count, number(-LN2_LOW), r)
    place = cgutils.alloca_once(builder, kind)
    builder.store(number(SERIES[-1]), place)
    with cgutils.for_range(builder, count_of_series) as loop:
        at = builder.add(series, builder.mul(loop.index, _WORD(8)))
        coefficient = spread(builder, read(builder, at, ir.DoubleType()), kind.count)
        builder.store(fused(builder, builder.load(place), r, coefficient), place)
    p = builder.load(place)
    # The low bits of `shifted` hold n; moved to the exponent's place they multiply by 2^n.
    power = builder.shl(builder.bitcast(shifted, words), constant(words, 52))
    return builder.bitcast(builder.add(builder.bitcast(p, words), power), kind)


@cache
def falling_series() -> npt.NDArray[np.float64]:
    """Return the coefficients of exp's polynomial below the highest, highest power first."""
    return np.array(SERIES[-2::-1])


def _summed(builder: Any, count: Any, terms: Any) -> Any:
    """Emit the sum of 16 * `count` doubles; `terms` gives those of some steps of sixteen.

    Lane i adds every sixteenth term, beginning with term i; lanes are added in the tree order of
    `larql.kernels.vector.lane_sum`.
    """
    sums = cgutils.alloca_once(builder, _DOUBLES)
    builder.store(constant(_DOUBLES, 0.0), sums)

    def add(value: Any) -> None:
        builder.store(builder.fadd(builder.load(sums), value), sums)

    # Two steps at once: as many chains of operations as it takes to fill the time that each
    # operation waits for the one before.
    pairs = builder.udiv(count, _WORD(2))
    with cgutils.for_range(builder, pairs) as loop:
        both = terms(builder.mul(loop.index, _WORD(2)), 2)
        for at in (0, LANES):
            add(shuffled(builder, both, both, list(range(at, at + LANES))))
    done = builder.mul(pairs, _WORD(2))
    with builder.if_then(builder.icmp_unsigned("<", done, count)):
        add(terms(done, 1))
    return halve(builder, builder.load(sums), builder.fadd)


def _doubles(builder: Any, row: Any, first: Any, steps: int) -> Any:
    """Emit the float32 of some steps of sixteen, beginning with step `first`, as doubles."""
    place = builder.add(row, builder.mul(first, _WORD(4 * LANES)))
    lanes = read(builder, place, ir.VectorType(ir.FloatType(), steps * LANES))
    return builder.fpext(lanes, ir.VectorType(ir.DoubleType(), steps * LANES))


@instruction
def exponential_sum(
    typingctx: Any, row: Any, count: Any, most: Any, series: Any, degree: Any
) -> Any:
    """Return the sum of exp(x - most) over 16 * `count` float32 at `row`, none above `most`.

    `series` is the address of `falling_series`, `degree` its length.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row, count, most, series, degree = args

        def terms(first: Any, steps: int) -> Any:
            x = _doubles(builder, row, first, steps)
            x = builder.fsub(x, spread(builder, most, steps * LANES))
            return _exponentials(builder, x, series, degree)

        return _summed(builder, count, terms)

    word = types.int64
    return types.float64(word, word, types.float64, word, word), emit


@instruction
def exponential_difference(
    typingctx: Any, row: Any, other: Any, count: Any, most: Any, series: Any, degree: Any
) -> Any:
    """Return the sum of exp(x - most) * (x - y) over 16 * `count` float32 at `row` and `other`.

    As `exponential_sum`, but for the second factor.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row, other, count, most, series, degree = args

        def terms(first: Any, steps: int) -> Any:
            x = _doubles(builder, row, first, steps)
            apart = builder.fsub(x, _doubles(builder, other, first, steps))
            x = builder.fsub(x, spread(builder, most, steps * LANES))
            return builder.fmul(_exponentials(builder, x, series, degree), apart)

        return _summed(builder, count, terms)

    word = types.int64
    return types.float64(word, word, word, types.float64, word, word), emit
