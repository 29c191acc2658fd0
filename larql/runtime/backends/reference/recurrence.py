"""What recurrent operations are made of, in float64: convolutions, decays and the delta rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from larql.format.graph import Convolution, GatedDelta, Kda, Ssm
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.dense_ffn import ACTIVATIONS
from larql.runtime.regions import Region
from larql.runtime.whole_regions import WholeRegion

__all__ = ["convolved", "delta_step", "pace", "per_head", "softplus", "unit", "whole"]


def whole(regions: Sequence[Region]) -> list[WholeRegion]:
    """Return an operation's regions, all of which change with every position."""
    found = [region for region in regions if isinstance(region, WholeRegion)]
    assert len(found) == len(regions)
    return found


def convolved(
    conv: Convolution, inputs: list[Float64], region: WholeRegion, arithmetic: Arithmetic
) -> list[Float64]:
    """Return the convolution of each position's input ``[channels]``, and keep the last inputs."""
    weight = arithmetic.rows(conv.weight, np.arange(conv.channels))
    bias = 0.0 if conv.bias is None else arithmetic.vector(conv.bias)
    outputs, rows = [], region.successor()
    for x in inputs:
        seen = np.concatenate([rows, x[None]])
        y = bias + sum(weight[:, tap] * seen[tap] for tap in range(conv.taps))
        y = y if conv.activation is None else ACTIVATIONS[conv.activation](y)
        outputs.append(x + y if conv.residual else y)
        rows[...] = seen[1:]
    return outputs


def per_head(
    inputs: list[Float64], heads: int, total: int, *, tiled: bool = False
) -> list[Float64]:
    """Return ``[total, dim]`` of rows ``[heads * dim]``, each head repeated for those it serves.

    These are neighbours, or where ``tiled`` every ``heads``-th.
    """
    numbers = np.arange(total)
    serving = numbers % heads if tiled else numbers * heads // total
    return [x.reshape(heads, -1)[serving] for x in inputs]


def pace(mixer: GatedDelta | Kda | Ssm, arithmetic: Arithmetic) -> Float64:
    """Return the numbers below 0 that steps are multiplied by, whichever way they are stored."""
    stored = arithmetic.vector(mixer.decay_rate)
    return stored if mixer.rates == "negated" else -np.exp(stored)


def softplus(x: Float64) -> Float64:
    """Return ``log(1 + exp(x))``."""
    return np.logaddexp(0.0, x)


def unit(x: Float64, eps: float) -> Float64:
    """Return each row of ``x`` divided by its length, of which ``eps`` is added to the square."""
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps))


def delta_step(
    state: Float64, q: Float64, k: Float64, v: Float64, decay: Float64, beta: Float64
) -> Float64:
    """Change a state by one position, and return what its queries read.

    Parameters
    ----------
    state : float64 ``[heads, keys, values]``
        Changed in place.
    q, k : float64 ``[heads, keys]``
    v : float64 ``[heads, values]``
    decay : float64 ``[heads, keys]`` or ``[heads, 1]``
    beta : float64 ``[heads, 1]``

    Returns
    -------
    float64 ``[heads, values]``
    """
    state *= decay[:, :, None]
    known = (k[:, :, None] * state).sum(axis=1)
    state += k[:, :, None] * (beta * (v - known))[:, None, :]
    return np.asarray((q[:, :, None] * state).sum(axis=1))
