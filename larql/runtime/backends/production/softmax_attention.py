"""Softmax attention by kernels."""

from __future__ import annotations

from collections.abc import Sequence

from larql.format.graph import Norm, SoftmaxAttention
from larql.kernels.activation import gate
from larql.kernels.attention import attend
from larql.kernels.copy import copy
from larql.kernels.ring import write_rows
from larql.kernels.rope import rotate
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.rotation import rotation
from larql.runtime.regions import KvRegion, Region
from larql.runtime.taps import BlockTaps

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
    (region,) = regions
    assert isinstance(region, KvRegion)
    count = len(x)
    wanted = [mixer.q, mixer.k, mixer.v] + ([] if mixer.gate is None else [mixer.gate])
    q, k, v, *gates = arithmetic.linears(wanted, arithmetic.inputs(x))
    q = _heads(q, mixer.heads, mixer.q_norm, arithmetic)
    k = _heads(k, mixer.kv_heads, mixer.k_norm, arithmetic)
    v = v.reshape(count, mixer.kv_heads, mixer.value_dim)
    if mixer.rope is not None:
        turned = rotation(mixer.rope, start, count, arithmetic)
        rotate(q, turned.cos, turned.sin, mixer.rope.layout)
        rotate(k, turned.cos, turned.sin, mixer.rope.layout)
    write_rows(k, v, region.keys, region.values, start)
    out = arithmetic.memory.take((count, mixer.heads, mixer.value_dim))
    attend(
        q, region.keys, region.values, start, mixer.window or 0, mixer.scale,
        mixer.softcap or 0.0, None, out,
    )  # fmt: skip
    if taps is not None and taps.heads is not None:
        copy(out, taps.heads)
    if taps is not None and taps.queries is not None:
        copy(q, taps.queries)
    mixed = out.reshape(count, -1)
    for gates_of_heads in gates:
        gate(gates_of_heads, mixed, "sigmoid", mixed)
    return arithmetic.linear(mixer.o, mixed)


def _heads(x: Float32, heads: int, norm: Norm | None, arithmetic: Arithmetic) -> Float32:
    """Return ``[T, heads, dim]`` of projections ``[T, heads * dim]``, each head normalised."""
    rows = arithmetic.norm(norm, x.reshape(len(x) * heads, -1))
    return rows.reshape(len(x), heads, -1)
