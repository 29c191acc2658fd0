"""The gated delta rule in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from larql.format.graph import GatedDelta
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.dense_ffn import ACTIVATIONS
from larql.runtime.backends.reference.recurrence import (
    convolved,
    delta_step,
    pace,
    per_head,
    softplus,
    unit,
    whole,
)
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["gated_delta"]


def gated_delta(
    mixer: GatedDelta,
    inputs: list[Float64],
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> list[Float64]:
    """Return the operation's output for each position, and carry its state on."""
    q_rows, k_rows, v_rows, region = whole(regions)
    state = region.successor()
    heads, key_heads = mixer.value_heads, mixer.key_heads
    q = convolved(mixer.q_conv, arithmetic.linear(mixer.q, inputs), q_rows, arithmetic)
    k = convolved(mixer.k_conv, arithmetic.linear(mixer.k, inputs), k_rows, arithmetic)
    v = convolved(mixer.v_conv, arithmetic.linear(mixer.v, inputs), v_rows, arithmetic)
    for stage, rows in (("q", q), ("k", k), ("v", v)):
        tell(taps, stage, rows)
    rate, tiled = pace(mixer, arithmetic), mixer.value_order == "tiled"
    bias = arithmetic.vector(mixer.decay_bias)
    gates = arithmetic.linear(mixer.gate, inputs)
    betas = [ACTIVATIONS["sigmoid"](row) for row in arithmetic.linear(mixer.beta, inputs)]
    decays = [np.exp(rate * softplus(r + bias)) for r in arithmetic.linear(mixer.decay, inputs)]
    for stage, rows in (("beta", betas), ("decay", decays), ("gate", gates)):
        tell(taps, stage, rows)
    outputs, reads = [], []
    for query, key, value, gate, beta, decay in zip(
        per_head(q, key_heads, heads, tiled=tiled),
        per_head(k, key_heads, heads, tiled=tiled),
        per_head(v, heads, heads),
        gates,
        betas,
        decays,
        strict=True,
    ):
        read = delta_step(
            state,
            unit(query, mixer.unit_eps) * mixer.scale,
            unit(key, mixer.unit_eps),
            value,
            decay[:, None],
            beta[:, None],
        )
        reads.append(read)
        normed = arithmetic.norm(mixer.norm, read).reshape(-1)
        outputs.append(normed * ACTIVATIONS[mixer.gate_activation](gate))
    tell(taps, "recurrence", reads)
    tell(taps, "gated", outputs)
    projected = arithmetic.linear(mixer.o, outputs)
    tell(taps, "o", projected)
    return projected
