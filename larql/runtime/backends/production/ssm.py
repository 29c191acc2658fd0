"""The state-space operation by kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from larql.format.graph import Ssm
from larql.kernels.forgetting import forget
from larql.kernels.recurrence import recur
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.recurrence import convolved, gated, whole
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["ssm"]


def ssm(
    mixer: Ssm,
    x: Float32,
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> Float32:
    """Return the operation's output for each position, and carry its state on."""
    x_rows, b_rows, c_rows, state = whole(regions)
    count = len(x)
    gate, inner, b, c, step = arithmetic.linears(
        [mixer.gate, mixer.x, mixer.b, mixer.c, mixer.step], arithmetic.inputs(x)
    )
    inner, b, c = convolved(
        [(mixer.x_conv, x_rows, inner), (mixer.b_conv, b_rows, b), (mixer.c_conv, c_rows, c)],
        arithmetic,
    )
    for stage, rows in (("x", inner), ("b", b), ("c", c)):
        tell(taps, stage, rows)
    decay = arithmetic.memory.take(step.shape)
    most = math.inf if mixer.step_most is None else mixer.step_most
    bias, rate = arithmetic.vectors[mixer.step_bias], arithmetic.vectors[mixer.decay_rate]
    negated = mixer.rates == "negated"
    forget(step, bias, rate, (mixer.step_least, most), step, decay, negated=negated)
    for stage, rows in (("step", step), ("decay", decay), ("gate", gate)):
        tell(taps, stage, rows)
    out = arithmetic.memory.take((count, mixer.heads, mixer.head_dim))
    recur(
        "sum",
        c.reshape(count, mixer.groups, mixer.state_dim),
        b.reshape(count, mixer.groups, mixer.state_dim),
        inner.reshape(out.shape), decay, step, arithmetic.vectors[mixer.skip], state.halves,
        state.turn, out,
    )  # fmt: skip
    tell(taps, "recurrence", out)
    y = gated(out.reshape(count, -1), gate, mixer.gate_activation)
    normed = arithmetic.norm(mixer.norm, y.reshape(count * mixer.groups, -1))
    normed = normed.reshape(count, -1)
    tell(taps, "gated", normed)
    output = arithmetic.linear(mixer.o, normed)
    tell(taps, "o", output)
    return output
