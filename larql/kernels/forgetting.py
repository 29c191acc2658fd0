"""Step sizes and decays of recurrent states.

Elementwise, for each position: step = clip(softplus(x + bias), least, most) and
decay = exp(-exp(rate) * step), or exp(rate * step) where rates are stored as numbers below 0.
softplus(x) is max(x, 0) + log1p(exp(-|x|)), and log1p(u) for 0 <= u <= 1 is 2 atanh(s),
s = u / (2 + u), whose series in s^2 <= 1/9 ends where a term is below half a unit in the last
place.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import float_matrix
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.math import exp, softplus
from larql.kernels.memory import load_f32, load_i64, load_most, store_most
from larql.kernels.threads import launch
from larql.kernels.vector import select, splat

__all__ = ["forget"]

Float32 = npt.NDArray[np.float32]

_SHARE = 2048  # elements of a task
_ZERO = np.float32(0)


@kernel
def _forget(variant: Any, p: int, task: int, worker: int) -> None:
    x, bias, rate = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    steps, decays = load_i64(p + 24), load_i64(p + 32)
    rows, width, share = load_i64(p + 40), load_i64(p + 48), load_i64(p + 56)
    least, most = splat(load_f32(p + 64)), splat(load_f32(p + 72))
    negated = load_i64(p + 80)
    for row in range(task * share, min(rows, (task + 1) * share)):
        for at in range(0, width, 16):
            count, column, place = min(16, width - at), at * 4, (row * width + at) * 4
            step = softplus(load_most(x + place, count) + load_most(bias + column, count))
            step = select(step < least, least, step)
            step = select(step > most, most, step)
            if steps != 0:
                store_most(steps + place, step, count)
            pace = load_most(rate + column, count)
            if negated == 0:
                pace = splat(_ZERO) - exp(pace)
            store_most(decays + place, exp(pace * step), count)


@cache
def _compiled() -> int:
    return compiled_address(_forget, Variant(setup.current().level))


def forget(
    x: Float32,
    bias: Float32,
    rate: Float32,
    limits: tuple[float, float],
    steps: Float32 | None,
    decays: Float32,
    *,
    negated: bool = False,
) -> None:
    """Write clip(softplus(x + bias), *limits) to `steps` and exp(-exp(rate) * it) to `decays`.

    Parameters
    ----------
    x : float32 [T, W], C-contiguous
    bias, rate : float32 [W]
    limits : (float, float)
        Least and largest step, rounded to float32; (0, inf) changes nothing.
    steps : float32 [T, W] or None
        May be `x`.
    decays : float32 [T, W]
        May be `x` where `steps` is None.
    negated : bool
        `rate` is -exp(rate) already.

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    shape = rows, width = x.shape
    share = max(1, _SHARE // max(1, width))
    numbers = np.zeros(4, np.float32)
    numbers[[0, 2]] = limits
    words = (
        float_matrix(x, shape, "x"),
        float_matrix(bias, (width,), "bias"),
        float_matrix(rate, (width,), "rate"),
        0 if steps is None else float_matrix(steps, shape, "steps"),
        float_matrix(decays, shape, "decays"),
        rows, width, share, *map(int, numbers.view(np.int64)), int(negated),
    )  # fmt: skip
    launch(_compiled(), np.array(words, np.int64), -(-rows // share), x, bias, rate, steps, decays)
