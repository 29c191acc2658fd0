"""The state-space operation in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from larql.format.graph import Norm, Ssm
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.dense_ffn import ACTIVATIONS
from larql.runtime.backends.reference.recurrence import convolved, pace, per_head, softplus, whole
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["ssm"]


def ssm(
    mixer: Ssm,
    inputs: list[Float64],
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> list[Float64]:
    """Return the operation's output for each position, and carry its state on."""
    x_rows, b_rows, c_rows, region = whole(regions)
    state, heads, groups = region.successor(), mixer.heads, mixer.groups
    xs = convolved(mixer.x_conv, arithmetic.linear(mixer.x, inputs), x_rows, arithmetic)
    bs = convolved(mixer.b_conv, arithmetic.linear(mixer.b, inputs), b_rows, arithmetic)
    cs = convolved(mixer.c_conv, arithmetic.linear(mixer.c, inputs), c_rows, arithmetic)
    for stage, rows in (("x", xs), ("b", bs), ("c", cs)):
        tell(taps, stage, rows)
    rate = pace(mixer, arithmetic)
    bias, skip = arithmetic.vector(mixer.step_bias), arithmetic.vector(mixer.skip)
    most = math.inf if mixer.step_most is None else mixer.step_most
    steps = [
        np.clip(softplus(row + bias), mixer.step_least, most)
        for row in arithmetic.linear(mixer.step, inputs)
    ]
    decays = [np.exp(rate * step) for step in steps]
    gates = arithmetic.linear(mixer.gate, inputs)
    for stage, rows in (("step", steps), ("decay", decays), ("gate", gates)):
        tell(taps, stage, rows)
    outputs, reads = [], []
    for x, b, c, gate, step, decay in zip(
        per_head(xs, heads, heads),
        per_head(bs, groups, heads),
        per_head(cs, groups, heads),
        gates,
        steps,
        decays,
        strict=True,
    ):
        state *= decay[:, None, None]
        state += b[:, :, None] * (step[:, None] * x)[:, None, :]
        y = (c[:, :, None] * state).sum(axis=1) + skip[:, None] * x
        reads.append(y)
        gated = y.reshape(-1) * ACTIVATIONS[mixer.gate_activation](gate)
        outputs.append(_grouped_norm(mixer.norm, gated, groups, arithmetic))
    tell(taps, "recurrence", reads)
    tell(taps, "gated", outputs)
    projected = arithmetic.linear(mixer.o, outputs)
    tell(taps, "o", projected)
    return projected


def _grouped_norm(norm: Norm, x: Float64, groups: int, arithmetic: Arithmetic) -> Float64:
    """Normalise each of ``groups`` equal runs of ``x`` by itself."""
    plain = arithmetic.norm(replace(norm, weight=None), x.reshape(groups, -1)).reshape(-1)
    return plain if norm.weight is None else plain * (arithmetic.vector(norm.weight) + norm.offset)
