"""Causal depthwise convolution over positions, with the rows that it keeps between steps.

The definition, for one channel and position t: from the bias (or zero) one chain of fused
multiply-adds over the taps, the oldest input first; then the activation; then the product with
`after`. An input is x, or `before` * x. Inputs before the first position of a call are the kept
rows. Channels do not touch each other, so nothing depends on how positions are cut into calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.activation import ACTIVATIONS
from larql.kernels.check import Turn, float_matrix, turn_address
from larql.kernels.jit import Variant, chosen, compiled_address, device, kernel
from larql.kernels.memory import load_i64, load_most, store_most
from larql.kernels.parts import Job, rounded_up, run_together
from larql.kernels.threads import threads
from larql.kernels.vector import fma, splat

__all__ = ["NONE", "Convolved", "convolve"]

Float32 = npt.NDArray[np.float32]

NONE = "none"  # the activation that changes nothing
_TASKS_PER_THREAD = 4
_ZERO = np.float32(0)


@device
def _same(x: Any) -> Any:
    return x


_FUNCTIONS: Mapping[str, Any] = {**ACTIVATIONS, NONE: _same}


@chosen(_FUNCTIONS)
def _apply(variant: Any, x: Any) -> Any:
    """Apply the variant's activation to sixteen lanes."""


@device
def _input(x: int, before: int, at: int, count: int) -> Any:
    value = load_most(x + at, count)
    if before != 0:
        value = load_most(before + at, count) * value
    return value


@kernel
def _convolve(variant: Any, p: int, task: int, worker: int) -> None:
    x, weight, bias = load_i64(p), load_i64(p + 16), load_i64(p + 24)
    before, after, out = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    tokens, channels = load_i64(p + 56), load_i64(p + 64)
    taps, share = load_i64(p + 72), load_i64(p + 80)
    kept, stride = taps - 1, channels * 4
    turn = load_i64(load_i64(p + 88))
    rows = load_i64(p + 8) + turn * kept * stride
    following = load_i64(p + 8) + (1 - turn) * kept * stride
    for c in range(task * share, min(channels, (task + 1) * share), 16):
        count, column = min(16, channels - c), c * 4
        for t in range(tokens):
            total = splat(_ZERO)
            if bias != 0:
                total = load_most(bias + column, count)
            for tap in range(taps):
                source = t - kept + tap
                if source < 0:
                    value = load_most(rows + (source + kept) * stride + column, count)
                else:
                    value = _input(x, before, source * stride + column, count)
                total = fma(value, load_most(weight + tap * stride + column, count), total)
            total = _apply(variant, total)
            if after != 0:
                total = total * load_most(after + t * stride + column, count)
            store_most(out + t * stride + column, total, count)
        for row in range(kept):
            source = tokens - kept + row
            if source < 0:
                value = load_most(rows + (source + kept) * stride + column, count)
            else:
                value = _input(x, before, source * stride + column, count)
            store_most(following + row * stride + column, value, count)


@cache
def _compiled(activation: str) -> int:
    return compiled_address(_convolve, Variant(setup.current().level, activation))


@dataclass(frozen=True, eq=False)
class Convolved:
    """One convolution of a call.

    Attributes
    ----------
    x : float32 [T, C]
    rows : float32 [2, taps - 1, C]
        Inputs of the positions before, the oldest first, in one half; the last ones are written to
        the other.
    turn : int64 [1]
        Which half is read.
    weight : float32 [taps, C]
        The last row belongs to the position itself.
    out : float32 [T, C]
        Must not share memory with x or `before`.
    bias : float32 [C] or None
    before, after : float32 [T, C] or None
        Factors of the inputs and of the outputs.
    """

    x: Float32
    rows: Float32
    turn: Turn
    weight: Float32
    out: Float32
    bias: Float32 | None = None
    before: Float32 | None = None
    after: Float32 | None = None


def convolve(parts: Sequence[Convolved], activation: str) -> None:
    """Convolve, and keep the rows that the next positions need.

    Parameters
    ----------
    parts : sequence of Convolved
        Done in one job; no array may be written by two.
    activation : str
        One of `larql.kernels.activation.KINDS`, or `NONE`.

    Raises
    ------
    ValueError
        When arrays do not fit or the activation is unknown.
    """
    if activation not in _FUNCTIONS:
        raise ValueError(f"activation must be one of {', '.join(_FUNCTIONS)}, found {activation!r}")
    function = _compiled(activation)
    run_together([_job(part, function) for part in parts], *parts)


def _job(part: Convolved, function: int) -> Job:
    tokens, channels = part.x.shape
    taps = len(part.weight)
    if taps < 1:
        raise ValueError("a convolution has at least one tap")
    shape = (tokens, channels)
    share = rounded_up(-(-channels // (_TASKS_PER_THREAD * threads())), 16)
    words = (
        float_matrix(part.x, shape, "x"),
        float_matrix(part.rows, (2, taps - 1, channels), "rows"),
        float_matrix(part.weight, (taps, channels), "weight"),
        0 if part.bias is None else float_matrix(part.bias, (channels,), "bias"),
        0 if part.before is None else float_matrix(part.before, shape, "before"),
        0 if part.after is None else float_matrix(part.after, shape, "after"),
        float_matrix(part.out, shape, "out"),
        tokens, channels, taps, share, turn_address(part.turn),
    )  # fmt: skip
    return Job(function, -(-channels // share), words)
