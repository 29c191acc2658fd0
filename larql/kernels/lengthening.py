"""A factor of rows that grows with the logarithm of their position.

The factor of position p is 1 + rate ln(max((p + 1) / floor, 1)), in float64: the argument is halved
until it is below the root of 2, n times; ln = n ln 2 + 2 atanh(s), s = (x - 1) / (x + 1), |s| below
0.172, whose series ends where a term is below half a unit in the last place. It is rounded to
float32 before it is multiplied. The kernel makes it, and not its wrapper, because a recorded step
knows its position only when it runs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import float_matrix
from larql.kernels.jit import Variant, compiled_address, device, kernel
from larql.kernels.memory import load_f64, load_i64, load_most, store_most
from larql.kernels.threads import depends_on_position, launch
from larql.kernels.vector import fma, splat

__all__ = ["lengthen"]

_START = 3  # the word that holds the first row's position
_ROOT_2, _LN_2 = 1.4142135623730951, 0.6931471805599453
_A3, _A5, _A7, _A9, _A11, _A13, _A15, _A17, _A19 = (1 / n for n in range(3, 20, 2))


@device
def _logarithm(x: float) -> float:
    """Return ln x of a finite number of at least 1."""
    count = 0.0
    while x > _ROOT_2:
        x *= 0.5
        count += 1.0
    s = (x - 1.0) / (x + 1.0)
    z = s * s
    p = fma(z, _A19, _A17)
    p = fma(p, z, _A15)
    p = fma(p, z, _A13)
    p = fma(p, z, _A11)
    p = fma(p, z, _A9)
    p = fma(p, z, _A7)
    p = fma(p, z, _A5)
    p = fma(p, z, _A3)
    found: float = fma(count, _LN_2, 2.0 * fma(p * z, s, s))
    return found


@kernel
def _lengthen(variant: Any, p: int, task: int, worker: int) -> None:
    x, width, share, start = load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    floor, rate, rows = load_f64(p + 32), load_f64(p + 40), load_i64(p + 48)
    for row in range(task * share, min(rows, (task + 1) * share)):
        length = max((start + row + 1) / floor, 1.0)
        factor = splat(np.float32(fma(rate, _logarithm(length), 1.0)))
        for at in range(0, width, 16):
            count, place = min(16, width - at), x + (row * width + at) * 4
            store_most(place, load_most(place, count) * factor, count)


@cache
def _compiled() -> int:
    return compiled_address(_lengthen, Variant(setup.current().level))


def lengthen(x: npt.NDArray[np.float32], start: int, floor: int, rate: float) -> None:
    """Multiply rows by the factor of their positions, in place.

    Parameters
    ----------
    x : float32 [T, ...], C-contiguous
        Row t is at position start + t.
    start : int
    floor : int
        At least 1.
    rate : float

    Raises
    ------
    ValueError
        When the array does not fit, or the floor is below 1.
    """
    if floor < 1:
        raise ValueError(f"floor must be at least 1, found {floor}")
    rows = len(x)
    width = x.size // max(rows, 1)
    share = max(1, 8192 // max(width, 1))
    numbers = np.array([floor, rate], np.float64).view(np.int64)
    words = (float_matrix(x, x.shape, "x"), width, share, start, *map(int, numbers), rows)
    launch(_compiled(), np.array(words, np.int64), -(-rows // share), x)
    depends_on_position(_START)
