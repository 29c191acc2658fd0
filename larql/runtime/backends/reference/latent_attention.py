"""Latent attention in float64: every position's keys and values are made from its latent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from larql.format.graph import LatentAttention
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.rotation import frequencies, rotate
from larql.runtime.latent_region import LatentRegion
from larql.runtime.regions import Region, RowRegion
from larql.runtime.taps import BlockTaps, tell

__all__ = ["latent_attention"]


def latent_attention(
    mixer: LatentAttention,
    inputs: list[Float64],
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> list[Float64]:
    """Return the operation's output for positions ``start, start + 1, …``, and store their rows."""
    (region,) = regions
    assert isinstance(region, LatentRegion)
    assert isinstance(region.kept, RowRegion)
    turning = frequencies(mixer.rope, arithmetic)

    def turned(rows: Float64, position: int) -> Float64:
        return rows if mixer.rope is None else rotate(rows, mixer.rope, turning, position)

    latents = arithmetic.linear(mixer.latent, inputs)
    tails = arithmetic.linear(mixer.k_rope, inputs)
    made = []
    for t, (latent, tail) in enumerate(zip(latents, tails, strict=True)):
        latent = arithmetic.norm(mixer.latent_norm, latent)
        row = np.concatenate([latent, turned(tail[None], start + t)[0]])
        region.kept.write(start + t, row[None, None], latent[None, None])
        made.append(row)
    tell(taps, "latent", made)
    rows = region.kept.key_rows(np.arange(start + len(inputs)))[:, 0].astype(np.float64)
    kept = list(rows[:, : mixer.latent_dim])
    keys = _keys(mixer, kept, arithmetic)
    values = np.stack(arithmetic.linear(mixer.v_up, kept)).reshape(len(rows), mixer.heads, -1)
    narrow = inputs
    if mixer.q_down is not None:
        narrow = [
            arithmetic.norm(mixer.q_norm, row) for row in arithmetic.linear(mixer.q_down, inputs)
        ]
    nopes = arithmetic.linear(mixer.q_nope, narrow)
    ropes = [
        turned(rope.reshape(mixer.heads, mixer.rope_dim), start + t)
        for t, rope in enumerate(arithmetic.linear(mixer.q_rope, narrow))
    ]
    tell(taps, "q_nope", nopes)
    tell(taps, "q_rope", ropes)
    mixed = []
    for t, (nope, rope) in enumerate(zip(nopes, ropes, strict=True)):
        seen = start + t + 1
        nope = nope.reshape(mixer.heads, mixer.nope_dim)
        out = np.empty((mixer.heads, mixer.value_dim))
        for head in range(mixer.heads):
            scores = keys[:seen, head] @ nope[head] + rows[:seen, mixer.latent_dim :] @ rope[head]
            weights = np.exp(scores * mixer.scale - (scores * mixer.scale).max())
            out[head] = weights / weights.sum() @ values[:seen, head]
        mixed.append(out.reshape(-1))
        if taps is not None and taps.heads is not None:
            taps.heads[t] = out
        if taps is not None and taps.queries is not None:
            taps.queries[t] = _carried_over(mixer, nope, rope, arithmetic)
    tell(taps, "heads", [row.reshape(mixer.heads, -1) for row in mixed])
    output = arithmetic.linear(mixer.o, mixed)
    tell(taps, "o", output)
    return output


def _carried_over(
    mixer: LatentAttention, nope: Float64, rope: Float64, arithmetic: Arithmetic
) -> Float64:
    """Return each head's query ``[heads, latent_dim + rope_dim]`` for latent rows."""
    up = _key_rows(mixer, arithmetic)
    return np.concatenate([np.einsum("hn,hnd->hd", nope, up), rope], axis=1)


def _keys(mixer: LatentAttention, latents: list[Float64], arithmetic: Arithmetic) -> Float64:
    """Return each head's unrotated keys ``[T, heads, nope_dim]``."""
    if mixer.k_up_rows is None:
        keys = np.stack(arithmetic.linear(mixer.k_up, latents))
        return keys.reshape(len(latents), mixer.heads, -1)
    up = _key_rows(mixer, arithmetic)
    # One product at a time: its sum then hangs on nothing but the two vectors.
    return np.array([[matrix @ latent for matrix in up] for latent in latents])


def _key_rows(mixer: LatentAttention, arithmetic: Arithmetic) -> Float64:
    """Return each head's ``[nope_dim, latent_dim]``, whichever way they are stored."""
    up = arithmetic.rows(mixer.k_up.weight, np.arange(mixer.k_up.outputs))
    up = up.reshape(mixer.heads, -1, mixer.k_up.inputs)
    return up if mixer.k_up_rows is None else up.swapaxes(1, 2)
