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
from larql.runtime.taps import BlockTaps

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
    rate = pace(mixer, arithmetic)
    bias, skip = arithmetic.vector(mixer.step_bias), arithmetic.vector(mixer.skip)
    most = math.inf if mixer.step_most is None else mixer.step_most
    outputs = []
    for x, b, c, gate, raw in zip(
        per_head(xs, heads, heads),
        per_head(bs, groups, heads),
        per_head(cs, groups, heads),
        arithmetic.linear(mixer.gate, inputs),
        arithmetic.linear(mixer.step, inputs),
        strict=True,
    ):
        step = np.clip(softplus(raw + bias), mixer.step_least, most)
        state *= np.exp(rate * step)[:, None, None]
        state += b[:, :, None] * (step[:, None] * x)[:, None, :]
        y = (c[:, :, None] * state).sum(axis=1) + skip[:, None] * x
        gated = y.reshape(-1) * ACTIVATIONS[mixer.gate_activation](gate)
        outputs.append(_grouped_norm(mixer.norm, gated, groups, arithmetic))
    return arithmetic.linear(mixer.o, outputs)


def _grouped_norm(norm: Norm, x: Float64, groups: int, arithmetic: Arithmetic) -> Float64:
    """Normalise each of ``groups`` equal runs of ``x`` by itself."""
    plain = arithmetic.norm(replace(norm, weight=None), x.reshape(groups, -1)).reshape(-1)
    return plain if norm.weight is None else plain * (arithmetic.vector(norm.weight) + norm.offset)
