"""Latent attention by kernels, over the latent rows themselves.

``q · (K c) = (Kᵀ q) · c`` and ``Σ w (V c) = V Σ w c``: each head's query is carried over to the
latent rows, which all heads share as keys of one head and as its values, and what it mixes of them
is made a value once. No key or value of a head is ever made.
"""

from __future__ import annotations

from collections.abc import Sequence

from larql.format.graph import LatentAttention
from larql.kernels.attention import attend
from larql.kernels.copy import copy
from larql.kernels.latent import absorb, join, raise_heads
from larql.kernels.ring import write_rows
from larql.kernels.rope import rotate
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.rotation import rotation
from larql.runtime.latent_region import LatentRegion
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["latent_attention"]


def latent_attention(
    mixer: LatentAttention,
    x: Float32,
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> Float32:
    """Return the operation's output for positions ``start, start + 1, …``, and store their rows."""
    (region,) = regions
    assert isinstance(region, LatentRegion)
    count, heads, memory = len(x), mixer.heads, arithmetic.memory
    inputs = arithmetic.inputs(x)
    if mixer.q_down is None:
        latent, tail, nope, turned = arithmetic.linears(
            [mixer.latent, mixer.k_rope, mixer.q_nope, mixer.q_rope], inputs
        )
    else:
        latent, tail, narrow = arithmetic.linears(
            [mixer.latent, mixer.k_rope, mixer.q_down], inputs
        )
        narrow = arithmetic.norm(mixer.q_norm, narrow)
        nope, turned = arithmetic.linears([mixer.q_nope, mixer.q_rope], arithmetic.inputs(narrow))
    latent = arithmetic.norm(mixer.latent_norm, latent)
    turned = turned.reshape(count, heads, mixer.rope_dim)
    if mixer.rope is not None:
        angles = rotation(mixer.rope, start, count, arithmetic)
        rotate(turned, angles.cos, angles.sin, mixer.rope.layout)
        rotate(tail.reshape(count, 1, -1), angles.cos, angles.sin, mixer.rope.layout)
    rows = memory.take((count, mixer.key_dim))
    join(latent, tail, rows)
    tell(taps, "latent", rows)
    tell(taps, "q_nope", nope)
    tell(taps, "q_rope", turned)
    keys, values = region.kept.keys, region.kept.values
    write_rows(rows.reshape(count, 1, -1), latent.reshape(count, 1, -1), keys, values, start)
    query = memory.take((count, heads, mixer.key_dim))
    up = arithmetic.by_rows(mixer.k_up.weight)
    nope = nope.reshape(count, heads, mixer.nope_dim)
    if mixer.k_up_rows is None:
        absorb(nope, turned, up.data, up.encoding.name, mixer.latent_dim, query)
    else:
        carried = memory.take((count, heads, mixer.latent_dim))
        raise_heads(nope, up.data, up.encoding.name, carried)
        whole = count * heads
        join(carried.reshape(whole, -1), turned.reshape(whole, -1), query.reshape(whole, -1))
    mixed = memory.take((count, heads, mixer.latent_dim))
    attend(query, keys, values, start, 0, mixer.scale, 0.0, None, mixed)
    out = memory.take((count, heads, mixer.value_dim))
    up = arithmetic.by_rows(mixer.v_up.weight)
    raise_heads(mixed, up.data, up.encoding.name, out)
    tell(taps, "heads", out)
    if taps is not None and taps.heads is not None:
        copy(out, taps.heads)
    if taps is not None and taps.queries is not None:
        copy(query, taps.queries)
    output = arithmetic.linear(mixer.o, out.reshape(count, -1))
    tell(taps, "o", output)
    return output
