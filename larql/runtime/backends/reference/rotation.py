"""Rotary position embedding in float64."""

from __future__ import annotations

import math

import numpy as np

from larql.format.graph import Rope, RopeScaling
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64

__all__ = ["frequencies", "rotate"]


def frequencies(rope: Rope | None, arithmetic: Arithmetic) -> Float64:
    """Return radians per position of each rotated pair."""
    if rope is None:
        return np.empty(0)
    frequencies = rope.theta ** (-np.arange(0, rope.dims, 2) / rope.dims)
    scaling = rope.scaling
    if scaling is not None:
        frequencies = _stretched(frequencies, rope, scaling)
    if rope.factors is not None:
        frequencies = frequencies / arithmetic.vector(rope.factors)
    if rope.turning is not None:
        frequencies[rope.turning :] = 0.0
    return frequencies


def rotate(x: Float64, rope: Rope, frequencies: Float64, position: int) -> Float64:
    """Turn the first ``rope.dims`` elements of each head of ``x`` (``[heads, dim]``)."""
    angle = position * frequencies
    cos, sin = np.cos(angle), np.sin(angle)
    if rope.scaling is not None and rope.scaling.magnitude is not None:
        cos, sin = rope.scaling.magnitude * cos, rope.scaling.magnitude * sin
    turned = x.copy()
    if rope.layout == "half":
        first, second = slice(0, rope.dims // 2), slice(rope.dims // 2, rope.dims)
    else:
        first, second = slice(0, rope.dims, 2), slice(1, rope.dims, 2)
    turned[:, first] = x[:, first] * cos - x[:, second] * sin
    turned[:, second] = x[:, second] * cos + x[:, first] * sin
    return turned


def _stretched(frequencies: Float64, rope: Rope, scaling: RopeScaling) -> Float64:
    match scaling.kind:
        case "linear":
            return frequencies / scaling.factor
        case "llama3":
            return np.array([_llama3(f, rope) for f in frequencies])
        case "yarn":
            return _yarn(frequencies, rope, scaling)
        case "longrope":
            assert rope.limit is None  # the session has chosen one of two lists
            return np.asarray(frequencies / np.array(scaling.divisors or (1.0,)))


def _yarn(frequencies: Float64, rope: Rope, scaling: RopeScaling) -> Float64:
    """Blend kept and divided frequencies by a ramp over the pairs (arXiv:2309.00071, 3.2)."""
    assert scaling.original_context and scaling.beta_fast and scaling.beta_slow
    low, high = (
        rope.dims
        * math.log(scaling.original_context / (turns * 2.0 * math.pi))
        / (2.0 * math.log(rope.theta))
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dims - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(rope.dims // 2) - low) / (high - low), 0.0, 1.0)
    return np.asarray(frequencies / scaling.factor * ramp + frequencies * (1.0 - ramp))


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
