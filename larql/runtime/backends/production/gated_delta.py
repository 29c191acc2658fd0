"""The gated delta rule by kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from larql.format.graph import GatedDelta
from larql.kernels.activation import activate
from larql.kernels.forgetting import forget
from larql.kernels.recurrence import recur
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.recurrence import convolved, gated_norm, unit, whole
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["gated_delta"]


def gated_delta(
    mixer: GatedDelta,
    x: Float32,
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> Float32:
    """Return the operation's output for each position, and carry its state on."""
    q_rows, k_rows, v_rows, state = whole(regions)
    q, k, v, gate, beta, decay = arithmetic.linears(
        [mixer.q, mixer.k, mixer.v, mixer.gate, mixer.beta, mixer.decay], arithmetic.inputs(x)
    )
    q, k, v = convolved(
        [(mixer.q_conv, q_rows, q), (mixer.k_conv, k_rows, k), (mixer.v_conv, v_rows, v)],
        arithmetic,
    )
    for stage, rows in (("q", q), ("k", k), ("v", v)):
        tell(taps, stage, rows)
    v = v.reshape(len(x), mixer.value_heads, mixer.value_dim)
    activate(beta, "sigmoid", beta)
    bias, rate = arithmetic.vectors[mixer.decay_bias], arithmetic.vectors[mixer.decay_rate]
    forget(decay, bias, rate, (0.0, math.inf), None, decay, negated=mixer.rates == "negated")
    for stage, rows in (("beta", beta), ("decay", decay), ("gate", gate)):
        tell(taps, stage, rows)
    out = arithmetic.memory.take(v.shape)
    recur(
        "delta",
        unit(q, mixer.key_heads, mixer.unit_eps, mixer.scale),
        unit(k, mixer.key_heads, mixer.unit_eps, 1.0),
        v, decay, beta, None, state.halves, state.turn, out, tiled=mixer.value_order == "tiled",
    )  # fmt: skip
    tell(taps, "recurrence", out)
    normed = gated_norm(mixer.norm, out, gate, mixer.gate_activation, arithmetic)
    tell(taps, "gated", normed)
    output = arithmetic.linear(mixer.o, normed)
    tell(taps, "o", output)
    return output
