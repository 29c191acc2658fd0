"""Which rows hold a number that is not finite, and whether any of some words is set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address, float_matrix
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import load, load_i64, load_part, store_i64
from larql.kernels.threads import launch
from larql.kernels.vector import lane_sum, splat

__all__ = ["any_set", "broken_rows"]

_ZERO = np.float32(0)


@kernel
def _broken_rows(variant: Any, p: int, task: int, worker: int) -> None:
    width = load_i64(p + 16)
    x = load_i64(p) + task * width * 4
    poison = splat(_ZERO)  # zero, or NaN where something is not finite
    at = 0
    while at + 16 <= width:
        value = load(x + at * 4)
        poison = poison + (value - value)
        at += 16
    if at < width:
        value = load_part(x + at * 4, width - at)
        poison = poison + (value - value)
    store_i64(load_i64(p + 8) + task * 8, 0 if lane_sum(poison) == _ZERO else 1)


@kernel
def _any_set(variant: Any, p: int, task: int, worker: int) -> None:
    pairs, found = load_i64(p), 0
    for n in range(load_i64(p + 8)):
        at, count = load_i64(pairs + n * 16), load_i64(pairs + n * 16 + 8)
        for index in range(count):
            if load_i64(at + index * 8) != 0:
                found = 1
    store_i64(load_i64(p + 16), found)


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


def broken_rows(x: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return 1 for each row of `x` that holds a number which is not finite, else 0.

    Parameters
    ----------
    x : float32 ``[T, H]``, C-contiguous

    Returns
    -------
    int64 ``[T]``

    Raises
    ------
    ValueError
        When `x` is no such array.
    """
    count, width = x.shape
    found = np.empty(count, np.int64)
    words = np.array((float_matrix(x, (count, width), "x"), address(found), width), np.int64)
    launch(_compiled(_broken_rows), words, count, x, found)
    return found


def any_set(flags: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return whether any word of some arrays (int64 [n], C-contiguous) is not 0, int64 ``[1]``."""
    pairs = np.array([(address(array), array.size) for array in flags], np.int64).reshape(-1, 2)
    found = np.empty(1, np.int64)
    words = np.array((address(pairs), len(pairs), address(found)), np.int64)
    launch(_compiled(_any_set), words, 1, pairs, flags, found)
    return found
