"""Rotary position embedding in float64."""

from __future__ import annotations

import math

import numpy as np

from larql.format.graph import Rope
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64

__all__ = ["frequencies", "rotate"]


def frequencies(rope: Rope | None, arithmetic: Arithmetic) -> Float64:
    """Return radians per position of each rotated pair."""
    if rope is None:
        return np.empty(0)
    frequencies = rope.theta ** (-np.arange(0, rope.dims, 2) / rope.dims)
    scaling = rope.scaling
    if scaling is not None and scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling is not None:
        frequencies = np.array([_llama3(f, rope) for f in frequencies])
    if rope.factors is not None:
        frequencies = frequencies / arithmetic.vector(rope.factors)
    if rope.turning is not None:
        frequencies[rope.turning :] = 0.0
    return frequencies


def rotate(x: Float64, rope: Rope, frequencies: Float64, position: int) -> Float64:
    """Turn the first ``rope.dims`` elements of each head of ``x`` (``[heads, dim]``)."""
    angle = position * frequencies
    cos, sin = np.cos(angle), np.sin(angle)
    turned = x.copy()
    if rope.layout == "half":
        first, second = slice(0, rope.dims // 2), slice(rope.dims // 2, rope.dims)
    else:
        first, second = slice(0, rope.dims, 2), slice(1, rope.dims, 2)
    turned[:, first] = x[:, first] * cos - x[:, second] * sin
    turned[:, second] = x[:, second] * cos + x[:, first] * sin
    return turned


def _llama3(frequency: float, rope: Rope) -> float:
    scaling = rope.scaling
    assert scaling is not None and scaling.low_freq_factor and scaling.high_freq_factor
    assert scaling.original_context
    wavelength = 2.0 * math.pi / frequency
    low = scaling.original_context / scaling.low_freq_factor
    high = scaling.original_context / scaling.high_freq_factor
    if wavelength > low:
        return frequency / scaling.factor
    if wavelength < high:
        return frequency
    share = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1.0 - share) * frequency / scaling.factor + share * frequency
