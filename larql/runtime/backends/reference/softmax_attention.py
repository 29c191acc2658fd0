"""Softmax attention in float64, one query at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from larql.format.graph import SoftmaxAttention
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.rotation import frequencies, rotate
from larql.runtime.regions import Region, RowRegion
from larql.runtime.taps import BlockTaps

__all__ = ["head_weights", "seen", "softmax_attention"]


def softmax_attention(
    mixer: SoftmaxAttention,
    inputs: list[Float64],
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> list[Float64]:
    """Return the operation's output for positions ``start, start + 1, …``, and store their rows."""
    (region,) = regions
    assert isinstance(region, RowRegion)
    queries = arithmetic.linear(mixer.q, inputs)
    keys = arithmetic.linear(mixer.k, inputs)
    values = arithmetic.linear(mixer.v, inputs)
    turning = frequencies(mixer.rope, arithmetic)
    mixed = []
    for t, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        position = start + t
        query = arithmetic.norm(mixer.q_norm, q.reshape(mixer.heads, mixer.key_dim))
        key = arithmetic.norm(mixer.k_norm, k.reshape(mixer.kv_heads, mixer.key_dim))
        if mixer.rope is not None:
            query = rotate(query, mixer.rope, turning, position)
            key = rotate(key, mixer.rope, turning, position)
        region.write(position, key[None], v.reshape(1, mixer.kv_heads, mixer.value_dim))
        mixed.append(_attend(mixer, query, region, position))
        if taps is not None and taps.queries is not None:
            taps.queries[t] = query
        if taps is not None and taps.heads is not None:
            taps.heads[t] = mixed[-1].reshape(mixer.heads, mixer.value_dim)
    if mixer.gate is not None:
        gates = arithmetic.linear(mixer.gate, inputs)
        mixed = [row / (1.0 + np.exp(-gate)) for row, gate in zip(mixed, gates, strict=True)]
    return arithmetic.linear(mixer.o, mixed)


def seen(mixer: SoftmaxAttention, position: int) -> npt.NDArray[np.int64]:
    """Return the positions that a position sees."""
    first = 0 if mixer.window is None else max(0, position - mixer.window + 1)
    return np.arange(first, position + 1)


def head_weights(mixer: SoftmaxAttention, query: Float64, keys: Float64, head: int) -> Float64:
    """Return one head's softmax over keys ``[n, kv_heads, key_dim]``."""
    scores = keys[:, head // (mixer.heads // mixer.kv_heads)] @ query * mixer.scale
    if mixer.softcap is not None:
        scores = mixer.softcap * np.tanh(scores / mixer.softcap)
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def _attend(mixer: SoftmaxAttention, query: Float64, region: RowRegion, position: int) -> Float64:
    """Return the mixed values of one position, all heads side by side."""
    visible = seen(mixer, position)
    keys = region.key_rows(visible).astype(np.float64)
    values = region.value_rows(visible).astype(np.float64)
    group = mixer.heads // mixer.kv_heads
    mixed = np.empty((mixer.heads, mixer.value_dim))
    for head in range(mixer.heads):
        mixed[head] = head_weights(mixer, query[head], keys, head) @ values[:, head // group]
    return mixed.reshape(-1)
