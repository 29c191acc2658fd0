"""How far one softmax is from another, row by row, in float64, with the same bits everywhere.

The Kullback-Leibler divergence of softmaxes p and q of logits x and y is the mean of x - y under p,
less the logarithms of their sums: it is exactly 0 where the rows are equal.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address, float_matrix
from larql.kernels.exponentials import exponential_difference, falling_series
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.likelihood import exp_double, powers_of_two
from larql.kernels.memory import load_f32, load_f64, load_i64, store_f64
from larql.kernels.threads import launch

__all__ = ["weighted_difference"]


@kernel
def _row(variant: Any, p: int, task: int, worker: int) -> None:
    width = load_i64(p + 16)
    row, other = load_i64(p) + task * width * 4, load_i64(p + 8) + task * width * 4
    most, out = load_f64(load_i64(p + 24) + task * 8), load_i64(p + 32) + task * 8
    whole = width // 16 * 16
    total = exponential_difference(
        row, other, whole // 16, most, load_i64(p + 48), load_i64(p + 56)
    )
    for i in range(whole, width):
        x, y = np.float64(load_f32(row + i * 4)), np.float64(load_f32(other + i * 4))
        total += exp_double(x - most, load_i64(p + 40)) * (x - y)
    store_f64(out, total)


@cache
def _compiled() -> int:
    return compiled_address(_row, Variant(setup.current().level))


def weighted_difference(
    x: npt.NDArray[np.float32], y: npt.NDArray[np.float32], largest: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the sum of exp(x - largest) * (x - y) of each row.

    Parameters
    ----------
    x, y : float32 [T, columns], C-contiguous
        Finite numbers.
    largest : float64 [T]
        The largest of each row of `x`.

    Returns
    -------
    float64 [T]

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    if x.ndim != 2 or largest.shape != x.shape[:1]:
        raise ValueError(f"x must be rows, each with its largest, found shape {x.shape}")
    out = np.empty(len(x), np.float64)
    largest = np.ascontiguousarray(largest, np.float64)
    arrays: tuple[npt.NDArray[Any], ...] = (largest, out, powers_of_two(), falling_series())
    parameters = np.array(
        [
            float_matrix(x, x.shape, "x"), float_matrix(y, x.shape, "y"), x.shape[1],
            *[address(array) for array in arrays], len(falling_series()),
        ],
        np.int64,
    )  # fmt: skip
    launch(_compiled(), parameters, len(x))
    return out
