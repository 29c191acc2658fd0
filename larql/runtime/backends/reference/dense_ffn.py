"""Feed-forward operations in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from larql.format.graph import DenseFfn
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["ACTIVATIONS", "dense_ffn"]


def _sigmoid(x: Float64) -> Float64:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu_tanh(x: Float64) -> Float64:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1.0 + np.tanh(inner))


def _gelu(x: Float64) -> Float64:
    return 0.5 * x * (1.0 + np.array([math.erf(v / math.sqrt(2.0)) for v in x]))


ACTIVATIONS: Mapping[str, Callable[[Float64], Float64]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "sigmoid": _sigmoid,
}


def dense_ffn(
    mixer: DenseFfn,
    inputs: list[Float64],
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> list[Float64]:
    """Return the operation's output for each position."""
    act = ACTIVATIONS[mixer.activation]
    ups = arithmetic.linear(mixer.up, inputs)
    if mixer.gate is None:
        tell(taps, "up", ups)
        inner = [act(up) for up in ups]
    else:
        gates = arithmetic.linear(mixer.gate, inputs)
        tell(taps, "gate", gates)
        tell(taps, "up", ups)
        inner = [act(gate) * up for gate, up in zip(gates, ups, strict=True)]
    tell(taps, "activation", inner)
    outputs = arithmetic.linear(mixer.down, inner)
    if mixer.scale is not None:
        outputs = [output * arithmetic.vector(mixer.scale) for output in outputs]
    tell(taps, "down", outputs)
    return outputs
