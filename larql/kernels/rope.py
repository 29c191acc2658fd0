"""Rotary position embedding: frequencies, cosine and sine tables, rotation.

Frequencies come from decimal arithmetic, which is correctly rounded and the same everywhere.
Angles are reduced in float64 with pi/2 in three parts, good for positions of several millions.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import refuse
from larql.kernels.jit import (
    CUBE,
    MATRIX,
    WORD,
    Variant,
    compiled_address,
    compiled_entry,
    device,
    kernel,
    types,
)
from larql.kernels.memory import address_of, load_f32, load_f64, load_i64, store_f32, words
from larql.kernels.threads import begin, depends_on_position, submit
from larql.kernels.vector import fma

__all__ = ["Layout", "inverse_frequencies", "pair_that_turns", "rotate", "rotation_table"]

Layout = Literal["half", "adjacent"]
_SHARE = 8192
_START = 3  # the word of a table that holds its first position

_TWO_PI = Decimal("6.28318530717958647692528676655900576839433879875021")
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to an integer
_TWO_OVER_PI = 0.6366197723675814
_PI2_1, _PI2_2, _PI2_3 = 1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33
# Taylor coefficients; on [-pi/4, pi/4] the first term left out is below 1e-17.
_S3, _S5, _S7, _S9, _S11, _S13, _S15 = (
    -1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800, 1 / 6227020800, -1 / 1307674368000
)  # fmt: skip
_C2, _C4, _C6, _C8, _C10, _C12, _C14, _C16 = (
    -1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600, -1 / 87178291200,
    1 / 20922789888000,
)  # fmt: skip


def inverse_frequencies(theta: float, dims: int) -> npt.NDArray[np.float64]:
    """Return theta ** (-2 i / dims) for i in 0 … dims/2 - 1, correctly rounded.

    Parameters
    ----------
    theta : float
        Rotary base.
    dims : int
        Rotated dimensions, even.

    Returns
    -------
    float64 [dims / 2]
        Radians per position. Scaling rules of model families are applied by the caller, with
        + - * / only, so that results stay the same everywhere.

    Raises
    ------
    ValueError
        When `theta` is not positive and finite or `dims` is not positive and even.
    """
    if dims <= 0 or dims % 2:
        raise ValueError(f"rotated dimensions must be positive and even, found {dims}")
    if not 0 < theta < float("inf"):
        raise ValueError(f"the rotary base must be positive and finite, found {theta}")
    context = Context(prec=40)
    logarithm = context.ln(Decimal(theta))
    found = np.empty(dims // 2, np.float64)
    for i in range(dims // 2):
        exponent = context.divide(context.multiply(Decimal(-2 * i), logarithm), Decimal(dims))
        found[i] = float(context.exp(exponent))
    return found


def pair_that_turns(turns: float, positions: int, theta: float, dims: int) -> float:
    """Return the number of the pair, fractions included, that turns so often in some positions.

    Pair p turns ``positions * theta ** (-2 p / dims) / (2 pi)`` times; solved for p.

    Parameters
    ----------
    turns : float
        Whole turns, above 0.
    positions : int
    theta : float
        Rotary base, above 0 and not 1.
    dims : int
        Rotated dimensions.

    Returns
    -------
    float
        ``dims * ln(positions / (2 pi turns)) / (2 ln theta)``, correctly rounded; below 0 where
        even pair 0 turns less often.
    """
    context = Context(prec=40)
    ratio = context.divide(Decimal(positions), context.multiply(_TWO_PI, Decimal(turns)))
    above = context.multiply(Decimal(dims), context.ln(ratio))
    return float(context.divide(above, context.multiply(Decimal(2), context.ln(Decimal(theta)))))


@device
def _sine(r: float) -> float:
    z = r * r
    p = fma(z, _S15, _S13)
    p = fma(p, z, _S11)
    p = fma(p, z, _S9)
    p = fma(p, z, _S7)
    p = fma(p, z, _S5)
    p = fma(p, z, _S3)
    value: float = fma(p * z, r, r)
    return value


@device
def _cosine(r: float) -> float:
    z = r * r
    p = fma(z, _C16, _C14)
    p = fma(p, z, _C12)
    p = fma(p, z, _C10)
    p = fma(p, z, _C8)
    p = fma(p, z, _C6)
    p = fma(p, z, _C4)
    p = fma(p, z, _C2)
    value: float = fma(p, z, 1.0)
    return value


@kernel
def _table(variant: Any, p: int, task: int, worker: int) -> None:
    frequencies, cosines, sines = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    start, count, pairs, share = (
        load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    )  # fmt: skip
    for t in range(task * share, min(count, (task + 1) * share)):
        for i in range(pairs):
            angle = np.float64(start + t) * load_f64(frequencies + i * 8)
            shifted = fma(angle, _TWO_OVER_PI, _ROUND)
            turns = shifted - _ROUND
            r = fma(turns, -_PI2_1, angle)
            r = fma(turns, -_PI2_2, r)
            r = fma(turns, -_PI2_3, r)
            sine, cosine = _sine(r), _cosine(r)
            quarter = np.int64(turns) & 3
            if quarter & 1:
                sine, cosine = cosine, sine
            if quarter >= 2:
                sine = -sine
            if quarter in (1, 2):
                cosine = -cosine
            at = (t * pairs + i) * 4
            store_f32(cosines + at, np.float32(cosine))
            store_f32(sines + at, np.float32(sine))


@kernel
def _rotate(variant: Any, p: int, task: int, worker: int) -> None:
    x, cosines, sines = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    rows, heads, dims, pairs = (
        load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    )  # fmt: skip
    first_step, second, share = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72)
    for row in range(task * share, min(rows, (task + 1) * share)):
        head = x + row * dims * 4
        table = (row // heads) * pairs * 4
        for i in range(pairs):
            low = head + i * first_step
            high = low + second
            c, s = load_f32(cosines + table + i * 4), load_f32(sines + table + i * 4)
            a, b = load_f32(low), load_f32(high)
            store_f32(low, fma(a, c, -(b * s)))
            store_f32(high, fma(b, c, a * s))


@kernel
def _enter_table(
    run: int, pool: int, function: int, tasks: int, frequencies: Any, cosines: Any, sines: Any,
    first: int, share: int,
) -> None:  # fmt: skip
    count, pairs = cosines.shape
    begin(run, pool, function, tasks, words((
        address_of(frequencies), address_of(cosines), address_of(sines), first, count, pairs, share,
    )))  # fmt: skip


@kernel
def _enter_rotate(
    run: int, pool: int, function: int, tasks: int, x: Any, cosines: Any, sines: Any, step: int,
    second: int, share: int,
) -> None:  # fmt: skip
    count, heads, dims = x.shape
    begin(run, pool, function, tasks, words((
        address_of(x), address_of(cosines), address_of(sines), count * heads, heads, dims,
        cosines.shape[1], step, second, share,
    )))  # fmt: skip


@cache
def _entry_table() -> Callable[..., None]:
    frequencies = types.Array(types.float64, 1, "C", readonly=True)
    return compiled_entry(_enter_table, frequencies, MATRIX, MATRIX, WORD, WORD)


@cache
def _entry_rotate() -> Callable[..., None]:
    return compiled_entry(_enter_rotate, CUBE, MATRIX, MATRIX, WORD, WORD, WORD)


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


def rotation_table(
    inverse_frequency: npt.NDArray[np.float64],
    start: int,
    count: int,
    out_cos: npt.NDArray[np.float32],
    out_sin: npt.NDArray[np.float32],
) -> None:
    """Write cos and sin of position * frequency for positions start … start + count - 1.

    Parameters
    ----------
    inverse_frequency : float64 [n], C-contiguous
        Radians per position.
    start, count : int
        Absolute positions; below 2^52 quarter turns.
    out_cos, out_sin : float32 [count, n], C-contiguous
        Overwritten; within one unit in the last place.

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    pairs = inverse_frequency.size
    shape = (count, pairs)
    if out_cos.shape != shape or out_sin.shape != shape:
        refuse(("out_cos", out_cos, shape), ("out_sin", out_sin, shape))
    share = max(1, _SHARE // max(1, 8 * pairs))
    try:
        submit(
            _entry_table(), _compiled(_table), -(-count // share), inverse_frequency, out_cos,
            out_sin, start, share,
        )  # fmt: skip
    except TypeError:
        if inverse_frequency.dtype != np.float64 or not inverse_frequency.flags.c_contiguous:
            raise ValueError("inverse frequencies must be contiguous float64") from None
        refuse(("out_cos", out_cos, shape), ("out_sin", out_sin, shape))
    depends_on_position(_START)


def rotate(
    x: npt.NDArray[np.float32],
    cos: npt.NDArray[np.float32],
    sin: npt.NDArray[np.float32],
    layout: Layout,
) -> None:
    """Rotate pairs of the first 2n elements of each head in place; the others stay.

    Parameters
    ----------
    x : float32 [T, heads, dim], C-contiguous
    cos, sin : float32 [T, n], C-contiguous
        From `rotation_table`, one row per position.
    layout : {'half', 'adjacent'}
        Partner of element i: i + n ('half'), or elements 2i and 2i + 1 ('adjacent').

    Raises
    ------
    ValueError
        When the arrays do not fit or `layout` is unknown.
    """
    if layout not in ("half", "adjacent"):
        raise ValueError(f"layout must be 'half' or 'adjacent', found {layout!r}")
    count, heads, dims = x.shape
    pairs = cos.shape[1]
    if 2 * pairs > dims:
        raise ValueError(f"a head of {dims} has no {pairs} pairs to rotate")
    step, second = (4, 4 * pairs) if layout == "half" else (8, 4)
    shape = (count, pairs)
    if cos.shape != shape or sin.shape != shape:
        refuse(("cos", cos, shape), ("sin", sin, shape))
    share = max(1, _SHARE // max(1, dims))
    try:
        submit(
            _entry_rotate(), _compiled(_rotate), -(-count * heads // share), x, cos, sin, step,
            second, share,
        )  # fmt: skip
    except TypeError:
        refuse(("x", x, x.shape), ("cos", cos, shape), ("sin", sin, shape))
