"""Attention weights for observers: float64 sums, products and quotients only, in a fixed order.

The attention kernel never has the weights of a position side by side. They are computed again here
from the same queries and keys, apart from the kernel, so they are close to what it used and not
its bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from larql.format.graph import LatentAttention, SoftmaxAttention
from larql.kernels.likelihood import LN2_HIGH, LN2_LOW, LOG2_E, SERIES
from larql.runtime.regions import KvRegion
from larql.runtime.sums import tree_sum

__all__ = ["attention_weights"]

Float64 = npt.NDArray[np.float64]


def attention_weights(
    mixer: SoftmaxAttention | LatentAttention,
    queries: npt.NDArray[np.float32],
    region: KvRegion,
    start: int,
    sinks: npt.NDArray[np.float32] | None,
    near: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None = None,
) -> list[Float64]:
    """Return the weights of positions ``start, start + 1, …``, float64 ``[heads, n]`` each.

    With ``sinks`` (``[heads]``) the weights of a position add up to less than 1. ``near`` is how
    heads mix the profiles of a distance bias, ``[T, heads, profiles]``, and these, ``[profiles,
    extent]``.
    """
    group = mixer.heads // mixer.kv_heads
    found = []
    for t, query in enumerate(queries.astype(np.float64)):
        position = start + t
        first = 0 if mixer.window is None else max(0, position - mixer.window + 1)
        keys = region.key_rows(np.arange(first, position + 1)).astype(np.float64)
        by_head = np.repeat(keys.transpose(1, 0, 2), group, axis=0)
        scores = tree_sum(by_head * query[:, None, :]) * mixer.scale
        if near is not None:
            mixes, profiles = (part.astype(np.float64) for part in near)
            seen = min(len(keys), profiles.shape[1])
            added = tree_sum(mixes[t][:, None, :] * profiles.T[None, :seen])
            scores[:, len(keys) - seen :] += added[:, ::-1]
        if mixer.softcap is not None:
            scores = mixer.softcap * _tanh(scores / mixer.softcap)
        top = scores.max(axis=1, keepdims=True)
        if sinks is not None:
            top = np.maximum(top, sinks.astype(np.float64)[:, None])
        weights = _exp(scores - top)
        total = tree_sum(weights)[:, None]
        if sinks is not None:
            total = total + _exp(sinks.astype(np.float64)[:, None] - top)
        found.append(weights / total)
    return found


def _exp(x: Float64) -> Float64:
    """Return e to the power of x <= 0."""
    x = np.maximum(x, -700.0)
    count = np.rint(x * LOG2_E)
    r = (x - count * LN2_HIGH) - count * LN2_LOW
    p = np.full_like(r, SERIES[-1])
    for coefficient in reversed(SERIES[:-1]):
        p = p * r + coefficient
    return np.ldexp(p, count.astype(np.int32))


def _tanh(x: Float64) -> Float64:
    small = _exp(-2.0 * np.abs(x))
    return np.copysign((1.0 - small) / (1.0 + small), x)
