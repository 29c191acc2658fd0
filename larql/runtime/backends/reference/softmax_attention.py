"""Softmax attention in float64, one query at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from larql.format.graph import LatentAttention, Norm, SoftmaxAttention
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.recurrence import convolved, whole
from larql.runtime.backends.reference.rotation import frequencies, rotate
from larql.runtime.regions import Region, RowRegion
from larql.runtime.taps import BlockTaps, tell

__all__ = ["biases", "head_weights", "seen", "softmax_attention"]


def softmax_attention(
    mixer: SoftmaxAttention,
    inputs: list[Float64],
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> list[Float64]:
    """Return the operation's output for positions ``start, start + 1, …``, and store their rows."""
    region, convolutions = regions[0], iter(regions[1:])
    assert isinstance(region, RowRegion)
    queries = arithmetic.linear(mixer.q, inputs)
    turning = frequencies(mixer.rope, arithmetic)
    sinks = None if mixer.sinks is None else arithmetic.vector(mixer.sinks)

    def turned(rows: Float64, position: int) -> Float64:
        return rows if mixer.rope is None else rotate(rows, mixer.rope, turning, position)

    asked = []
    for t, q in enumerate(queries):
        query = _heads(q, mixer.heads, mixer.q_norm, mixer.clip, arithmetic)
        asked.append(turned(query, start + t) * _position_factor(mixer, start + t))
    tell(taps, "q", asked)
    if mixer.k is not None:
        raw = arithmetic.linear(mixer.k, inputs)
        if mixer.k_conv is not None:
            (rows,) = whole([next(convolutions)])
            raw = convolved(mixer.k_conv, raw, rows, arithmetic)
        other = raw if mixer.v is None else arithmetic.linear(mixer.v, inputs)
        if mixer.v_conv is not None:
            (rows,) = whole([next(convolutions)])
            other = convolved(mixer.v_conv, other, rows, arithmetic)
        heads, norms = mixer.kv_heads, (mixer.k_norm, mixer.v_norm)
        keys = [_heads(k, heads, norms[0], mixer.clip, arithmetic) for k in raw]
        keys = [turned(key, start + t) for t, key in enumerate(keys)]
        values = [_heads(v, heads, norms[1], mixer.clip, arithmetic) for v in other]
        tell(taps, "k", keys)
        tell(taps, "v", values)
        for t, (key, value) in enumerate(zip(keys, values, strict=True)):
            region.write(start + t, key[None], value[None])
    mixes = None if mixer.distance is None else arithmetic.linear(mixer.distance.mix, inputs)
    mixed = []
    for t, query in enumerate(asked):
        added = None
        if mixes is not None:
            mix = mixes[t].reshape(mixer.heads, -1) * _position_factor(mixer, start + t)
            added = biases(mixer, mix, len(seen(mixer, start + t)), arithmetic)
            if taps is not None and taps.mixes is not None:
                taps.mixes[t] = mix
        mixed.append(_attend(mixer, query, region, start + t, sinks, added))
        if taps is not None and taps.queries is not None:
            taps.queries[t] = query
        if taps is not None and taps.heads is not None:
            taps.heads[t] = mixed[-1].reshape(mixer.heads, mixer.value_dim)
    tell(taps, "heads", [row.reshape(mixer.heads, -1) for row in mixed])
    if mixer.gate is not None:
        gates = arithmetic.linear(mixer.gate, inputs)
        mixed = [row / (1.0 + np.exp(-gate)) for row, gate in zip(mixed, gates, strict=True)]
        tell(taps, "gated", mixed)
    outputs = arithmetic.linear(mixer.o, mixed)
    tell(taps, "o", outputs)
    return outputs


def seen(mixer: SoftmaxAttention | LatentAttention, position: int) -> npt.NDArray[np.int64]:
    """Return the positions that a position sees."""
    first = 0 if mixer.window is None else max(0, position - mixer.window + 1)
    return np.arange(first, position + 1)


def head_weights(
    mixer: SoftmaxAttention | LatentAttention,
    query: Float64,
    keys: Float64,
    head: int,
    sinks: Float64 | None,
    added: Float64 | None = None,
) -> Float64:
    """Return one head's softmax over keys ``[n, kv_heads, key_dim]``, its sink's share left out.

    ``added``, ``[n]``, is the head's distance bias.
    """
    scores = keys[:, head // (mixer.heads // mixer.kv_heads)] @ query * mixer.scale
    if added is not None:
        scores = scores + added
    if mixer.softcap is not None:
        scores = mixer.softcap * np.tanh(scores / mixer.softcap)
    if sinks is not None:
        scores = np.append(scores, sinks[head])
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())[: len(keys)]


def biases(mixer: SoftmaxAttention, mix: Float64, count: int, arithmetic: Arithmetic) -> Float64:
    """Return what is added to the scores of the last ``count`` keys, ``[heads, count]``.

    ``mix`` is ``[heads, profiles]``; the last key is the query's own position.
    """
    assert mixer.distance is not None
    profiles = arithmetic.rows(mixer.distance.profiles, np.arange(mixer.distance.count))
    near = min(count, mixer.distance.extent)
    found = np.zeros((mixer.heads, count))
    found[:, count - near :] = (mix @ profiles[:, :near])[:, ::-1]
    return found


def _position_factor(mixer: SoftmaxAttention, position: int) -> float:
    scale = mixer.position_scale
    if scale is None:
        return 1.0
    return 1.0 + scale.rate * math.log(max((position + 1) / scale.floor, 1.0))


def _heads(
    x: Float64, heads: int, norm: Norm | None, clip: float | None, arithmetic: Arithmetic
) -> Float64:
    """Return ``[heads, dim]`` of a projection, normalised and cut."""
    if norm is not None:
        x = arithmetic.norm(norm, x.reshape(-1, norm.width))
    if clip is not None:
        x = np.clip(x, -clip, clip)
    return x.reshape(heads, -1)


def _attend(
    mixer: SoftmaxAttention,
    query: Float64,
    region: RowRegion,
    position: int,
    sinks: Float64 | None,
    added: Float64 | None,
) -> Float64:
    """Return the mixed values of one position, all heads side by side."""
    visible = seen(mixer, position)
    keys = region.key_rows(visible).astype(np.float64)
    values = region.value_rows(visible).astype(np.float64)
    group = mixer.heads // mixer.kv_heads
    mixed = np.empty((mixer.heads, mixer.value_dim))
    for head in range(mixer.heads):
        bias = None if added is None else added[head]
        weights = head_weights(mixer, query[head], keys, head, sinks, bias)
        mixed[head] = weights @ values[:, head // group]
    return mixed.reshape(-1)
