"""Kimi delta attention by kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from larql.format.graph import Kda
from larql.kernels.activation import activate
from larql.kernels.forgetting import forget
from larql.kernels.recurrence import recur
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.recurrence import convolved, gated_norm, unit, whole
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["kda"]


def kda(
    mixer: Kda,
    x: Float32,
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> Float32:
    """Return the operation's output for each position, and carry its state on."""
    q_rows, k_rows, v_rows, state = whole(regions)
    q, k, v, beta, low_decay, low_gate = arithmetic.linears(
        [mixer.q, mixer.k, mixer.v, mixer.beta, mixer.decay_down, mixer.gate_down],
        arithmetic.inputs(x),
    )
    decay = arithmetic.linear(mixer.decay_up, low_decay)
    gate = arithmetic.linear(mixer.gate_up, low_gate)
    q, k, v = convolved(
        [(mixer.q_conv, q_rows, q), (mixer.k_conv, k_rows, k), (mixer.v_conv, v_rows, v)],
        arithmetic,
    )
    for stage, rows in (("q", q), ("k", k), ("v", v)):
        tell(taps, stage, rows)
    v = v.reshape(len(x), mixer.heads, mixer.value_dim)
    activate(beta, "sigmoid", beta)
    rate = np.repeat(arithmetic.vectors[mixer.decay_rate], mixer.key_dim)
    bias, negated = arithmetic.vectors[mixer.decay_bias], mixer.rates == "negated"
    forget(decay, bias, rate, (0.0, math.inf), None, decay, negated=negated)
    for stage, rows in (("beta", beta), ("decay", decay), ("gate", gate)):
        tell(taps, stage, rows)
    out = arithmetic.memory.take(v.shape)
    recur(
        "delta",
        unit(q, mixer.heads, mixer.unit_eps, mixer.scale),
        unit(k, mixer.heads, mixer.unit_eps, 1.0),
        v, decay.reshape(len(x), mixer.heads, mixer.key_dim), beta, None, state.halves,
        state.turn, out,
    )  # fmt: skip
    tell(taps, "recurrence", out)
    normed = gated_norm(mixer.norm, out, gate, mixer.gate_activation, arithmetic)
    tell(taps, "gated", normed)
    output = arithmetic.linear(mixer.o, normed)
    tell(taps, "o", output)
    return output
