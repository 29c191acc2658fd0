"""Softmax attention by kernels."""

from __future__ import annotations

from collections.abc import Sequence

from larql.format.graph import Norm, SoftmaxAttention
from larql.kernels.activation import gate
from larql.kernels.attention import Distances, attend
from larql.kernels.copy import copy
from larql.kernels.elementwise import clamp
from larql.kernels.lengthening import lengthen
from larql.kernels.ring import write_rows
from larql.kernels.rope import rotate
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.recurrence import convolved, whole
from larql.runtime.backends.production.rotation import rotation
from larql.runtime.regions import KvRegion, Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["softmax_attention"]


def softmax_attention(
    mixer: SoftmaxAttention,
    x: Float32,
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> Float32:
    """Return the operation's output for positions ``start, start + 1, …``, and store their rows."""
    region = regions[0]
    assert isinstance(region, KvRegion)
    count = len(x)
    near = None if mixer.distance is None else mixer.distance.mix
    linears = (mixer.q, mixer.k, mixer.v, near, mixer.gate)
    wanted = [linear for linear in linears if linear is not None]
    made = iter(arithmetic.linears(wanted, arithmetic.inputs(x)))
    q = _heads(next(made), mixer.heads, mixer.q_norm, arithmetic)
    turned = []
    if mixer.k is not None:
        raw, values = _convolved(
            mixer, next(made), next(made) if mixer.v is not None else None, regions[1:], arithmetic
        )
        v = _values(mixer, raw, values, arithmetic)
        k = _heads(raw, mixer.kv_heads, mixer.k_norm, arithmetic)
        turned.append(k)
    turned.append(q)
    if mixer.clip is not None:
        for rows in turned:
            clamp(rows, mixer.clip)
    if mixer.rope is not None:
        angles = rotation(mixer.rope, start, count, arithmetic)
        for rows in turned:
            rotate(rows, angles.cos, angles.sin, mixer.rope.layout)
    mixes = None if near is None else next(made).reshape(count, mixer.heads, -1)
    if mixer.position_scale is not None:
        for rows in (q,) if mixes is None else (q, mixes):
            lengthen(rows, start, mixer.position_scale.floor, mixer.position_scale.rate)
    distances = None
    if mixer.distance is not None and mixes is not None:
        distances = Distances(mixes, arithmetic.profiles(mixer.distance.profiles))
    tell(taps, "q", q)
    if mixer.k is not None:
        tell(taps, "k", k)
        tell(taps, "v", v)
        write_rows(k, v, region.keys, region.values, start)
    sinks = None if mixer.sinks is None else arithmetic.vectors[mixer.sinks]
    out = arithmetic.memory.take((count, mixer.heads, mixer.value_dim))
    attend(
        q, region.keys, region.values, start, mixer.window or 0, mixer.scale,
        mixer.softcap or 0.0, sinks, out, distances,
    )  # fmt: skip
    if taps is not None and taps.heads is not None:
        copy(out, taps.heads)
    if taps is not None and taps.queries is not None:
        copy(q, taps.queries)
        if mixes is not None and taps.mixes is not None:
            copy(mixes, taps.mixes)
    tell(taps, "heads", out)
    mixed = out.reshape(count, -1)
    if mixer.gate is not None:
        gate(next(made), mixed, "sigmoid", mixed)
        tell(taps, "gated", mixed)
    output = arithmetic.linear(mixer.o, mixed)
    tell(taps, "o", output)
    return output


def _convolved(
    mixer: SoftmaxAttention,
    keys: Float32,
    values: Float32 | None,
    regions: Sequence[Region],
    arithmetic: Arithmetic,
) -> tuple[Float32, Float32 | None]:
    """Return the projections to keys and values after their convolutions, if there are any."""
    wanted = []
    rows = iter(whole(regions))
    if mixer.k_conv is not None:
        wanted.append((mixer.k_conv, next(rows), keys))
    if mixer.v_conv is not None and values is not None:
        wanted.append((mixer.v_conv, next(rows), values))
    found = iter(convolved(wanted, arithmetic))
    return (
        keys if mixer.k_conv is None else next(found),
        values if mixer.v_conv is None else next(found),
    )


def _heads(x: Float32, heads: int, norm: Norm | None, arithmetic: Arithmetic) -> Float32:
    """Return ``[T, heads, dim]`` of projections ``[T, heads * dim]``, normalised."""
    rows = x if norm is None else arithmetic.norm(norm, x.reshape(-1, norm.width))
    return rows.reshape(len(x), heads, -1)


def _values(
    mixer: SoftmaxAttention, keys: Float32, values: Float32 | None, arithmetic: Arithmetic
) -> Float32:
    """Return values ``[T, kv_heads, value_dim]``, which are the raw keys where there are none."""
    source = keys if values is None else values
    made = _heads(source, mixer.kv_heads, mixer.v_norm, arithmetic)
    if values is None and mixer.v_norm is None:
        kept = arithmetic.memory.take(made.shape)
        copy(made, kept)  # the keys are turned where they lie
        made = kept
    if mixer.clip is not None:
        clamp(made, mixer.clip)
    return made
