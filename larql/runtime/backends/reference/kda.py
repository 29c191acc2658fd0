"""Kimi delta attention in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from larql.format.graph import Kda
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

__all__ = ["kda"]


def kda(
    mixer: Kda,
    inputs: list[Float64],
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> list[Float64]:
    """Return the operation's output for each position, and carry its state on."""
    q_rows, k_rows, v_rows, region = whole(regions)
    heads, state = mixer.heads, region.successor()
    q = convolved(mixer.q_conv, arithmetic.linear(mixer.q, inputs), q_rows, arithmetic)
    k = convolved(mixer.k_conv, arithmetic.linear(mixer.k, inputs), k_rows, arithmetic)
    v = convolved(mixer.v_conv, arithmetic.linear(mixer.v, inputs), v_rows, arithmetic)
    for stage, rows in (("q", q), ("k", k), ("v", v)):
        tell(taps, stage, rows)
    raw = arithmetic.linear(mixer.decay_up, arithmetic.linear(mixer.decay_down, inputs))
    gates = arithmetic.linear(mixer.gate_up, arithmetic.linear(mixer.gate_down, inputs))
    rate = pace(mixer, arithmetic)[:, None]
    bias = arithmetic.vector(mixer.decay_bias)
    betas = [ACTIVATIONS["sigmoid"](row) for row in arithmetic.linear(mixer.beta, inputs)]
    decays = [np.exp(rate * softplus(row + bias).reshape(heads, -1)) for row in raw]
    flat = [decay.reshape(-1) for decay in decays]
    for stage, rows in (("beta", betas), ("decay", flat), ("gate", gates)):
        tell(taps, stage, rows)
    outputs, reads = [], []
    for query, key, value, gate, beta, decay in zip(
        per_head(q, heads, heads),
        per_head(k, heads, heads),
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
            decay,
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
