"""log(sum(exp(x))) of rows of logits, in float64, with the same bits everywhere.

exp comes from the Taylor series on [-ln 2 / 2, ln 2 / 2] (first term left out below 1e-17) times a
power of two from a table; the logarithm of a row's sum from whole numbers, correctly rounded.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address, float_matrix
from larql.kernels.jit import Variant, compiled_address, device, kernel
from larql.kernels.memory import load_f32, load_f64, load_i64, store_f64
from larql.kernels.threads import launch
from larql.kernels.vector import fma

__all__ = [
    "LN2_HIGH",
    "LN2_LOW",
    "LOG2_E",
    "ROUND",
    "SERIES",
    "exp_double",
    "log_sum_exp",
    "logarithm",
    "powers_of_two",
]

ROUND = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to an integer
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_LEAST = -745.0
_POWERS = 1076
_PLACES = 160
_HALF_ROOT = 0.7071067811865476
# Each step of a series of some 32, twice, and the exponent's 1074 times 1, may be off by one unit.
_SLACK = 1 << 13
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (
    1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320, 1 / 362880, 1 / 3628800,
    1 / 39916800, 1 / 479001600, 1 / 6227020800,
)  # fmt: skip
SERIES = (1.0, 1.0, _E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13)


@device
def exp_double(x: float, powers: int) -> float:
    """Return e to the power ``x`` for x <= 0; NaN stays NaN."""
    if x < _LEAST:
        return 0.0
    if x != x:
        return x
    shifted = fma(x, LOG2_E, ROUND)
    count = shifted - ROUND
    r = fma(count, -LN2_HIGH, x)
    r = fma(count, -LN2_LOW, r)
    p = fma(r, _E13, _E12)
    p = fma(p, r, _E11)
    p = fma(p, r, _E10)
    p = fma(p, r, _E9)
    p = fma(p, r, _E8)
    p = fma(p, r, _E7)
    p = fma(p, r, _E6)
    p = fma(p, r, _E5)
    p = fma(p, r, _E4)
    p = fma(p, r, _E3)
    p = fma(p, r, _E2)
    p = fma(p, r, 1.0)
    p = fma(p, r, 1.0)
    scaled: float = p * load_f64(powers + np.int64(-count) * 8)
    return scaled


@kernel
def _row(variant: Any, p: int, task: int, worker: int) -> None:
    columns, out, powers = load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    row = load_i64(p) + task * columns * 4
    largest = np.float64(load_f32(row))
    for i in range(columns):
        value = np.float64(load_f32(row + i * 4))
        if value > largest or value != value:
            largest = value
    store_f64(out + task * 16, largest)
    if largest - largest != 0.0:
        store_f64(out + task * 16 + 8, 1.0)
        return
    # Four sums in a fixed order, so that consecutive terms do not wait for each other.
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = columns // 4 * 4
    for i in range(0, whole, 4):
        at = row + i * 4
        a += exp_double(np.float64(load_f32(at)) - largest, powers)
        b += exp_double(np.float64(load_f32(at + 4)) - largest, powers)
        c += exp_double(np.float64(load_f32(at + 8)) - largest, powers)
        d += exp_double(np.float64(load_f32(at + 12)) - largest, powers)
    for i in range(whole, columns):
        a += exp_double(np.float64(load_f32(row + i * 4)) - largest, powers)
    store_f64(out + task * 16 + 8, (a + b) + (c + d))


@cache
def _compiled() -> int:
    return compiled_address(_row, Variant(setup.current().level))


@cache
def powers_of_two() -> npt.NDArray[np.float64]:
    """Return 2 to the power of 0, -1, -2, ..., down to below the least subnormal."""
    return np.array([2.0**-i for i in range(_POWERS)])


def logarithm(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the natural logarithm of numbers [n] of at least 0, correctly rounded.

    NaN and infinity stay what they are; that of 0, the sum of a row that is broken, is -infinity.
    """
    return np.array(
        [_ln(v) if 0.0 < v < math.inf else _edge(v) for v in map(float, values)], np.float64
    )


def _edge(value: float) -> float:
    return -math.inf if value == 0.0 else value


def _ln(value: float) -> float:
    """Return ln(value) by 2 atanh((m - 1) / (m + 1)) + e ln 2, in whole multiples of 2^-160.

    It takes a sixth of the time that decimal arithmetic takes, which decides where the sum, with
    what it may be off by, lies too near the middle of two results.
    """
    mantissa, exponent = math.frexp(value)
    if mantissa < _HALF_ROOT:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    top, bottom = mantissa.as_integer_ratio()
    z = ((top - bottom) << _PLACES) // (top + bottom)
    square = z * z >> _PLACES
    found, odd = 0, 1
    while z not in (0, -1):  # shifting rounds down
        found += z // odd
        z = z * square >> _PLACES
        odd += 2
    found = 2 * found + exponent * _ln_2()
    low, high = (found - _SLACK) / (1 << _PLACES), (found + _SLACK) / (1 << _PLACES)
    return low if low == high else float(Context(prec=60).ln(Decimal(value)))


@cache
def _ln_2() -> int:
    """Return ln 2 in multiples of 2^-160."""
    return int(Context(prec=60).multiply(Context(prec=60).ln(Decimal(2)), Decimal(1 << _PLACES)))


def log_sum_exp(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return log(sum(exp(row))) of each row.

    Parameters
    ----------
    x : float32 [T, columns], C-contiguous
        At least one column. A row whose largest element is infinite gives it back; one that holds
        a NaN gives NaN.

    Returns
    -------
    float64 [T]

    Raises
    ------
    ValueError
        When `x` is no such array.
    """
    if x.ndim != 2 or x.shape[1] < 1:
        raise ValueError(f"x must have rows of at least one column, found shape {x.shape}")
    found = np.empty((x.shape[0], 2), np.float64)
    parameters = np.array(
        [float_matrix(x, x.shape, "x"), x.shape[1], address(found), address(powers_of_two())],
        np.int64,
    )
    launch(_compiled(), parameters, x.shape[0])
    return found[:, 0] + logarithm(found[:, 1])
