"""Rotary position embedding by kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from larql.format.graph import Rope, RopeScaling
from larql.kernels.elementwise import scale
from larql.kernels.rope import inverse_frequencies, pair_that_turns, rotation_table
from larql.runtime.backends.production.arithmetic import Arithmetic, Rotation

__all__ = ["rotation"]


def rotation(rope: Rope, start: int, count: int, arithmetic: Arithmetic) -> Rotation:
    """Return cos and sin of positions ``start .. start + count``, shared by all layers."""
    rotations = arithmetic.calls.rotations
    found = rotations.get(rope)
    if found is None or found.start != start or len(found.cos) != count:
        shape = (count, rope.dims // 2)
        found = Rotation(start, np.empty(shape, np.float32), np.empty(shape, np.float32))
        rotation_table(_radians(rope, arithmetic), start, count, found.cos, found.sin)
        if rope.scaling is not None and rope.scaling.magnitude is not None:
            scale(found.cos, rope.scaling.magnitude)
            scale(found.sin, rope.scaling.magnitude)
        rotations[rope] = found
    return found


def _radians(rope: Rope, arithmetic: Arithmetic) -> npt.NDArray[np.float64]:
    """Return radians per position of each rotated pair; + - * / of exact frequencies only."""
    known = arithmetic.frequencies.get(rope)
    if known is not None:
        return known
    frequencies = inverse_frequencies(rope.theta, rope.dims)
    if rope.scaling is not None:
        frequencies = _stretched(frequencies, rope, rope.scaling)
    if rope.factors is not None:
        frequencies = frequencies / arithmetic.vectors[rope.factors].astype(np.float64)
    if rope.turning is not None:
        frequencies[rope.turning :] = 0.0
    arithmetic.frequencies[rope] = np.ascontiguousarray(frequencies)
    return arithmetic.frequencies[rope]


def _stretched(
    frequencies: npt.NDArray[np.float64], rope: Rope, scaling: RopeScaling
) -> npt.NDArray[np.float64]:
    match scaling.kind:
        case "linear":
            return frequencies / scaling.factor
        case "llama3":
            return np.array(_llama3(frequencies, rope))
        case "yarn":
            return _yarn(frequencies, rope, scaling)
        case "longrope":
            assert rope.limit is None  # the session has chosen one of two lists
            return frequencies if scaling.divisors is None else frequencies / scaling.divisors


def _yarn(
    frequencies: npt.NDArray[np.float64], rope: Rope, scaling: RopeScaling
) -> npt.NDArray[np.float64]:
    """Return kept frequencies of pairs below a ramp, divided ones above it, a blend on it."""
    assert scaling.original_context and scaling.beta_fast and scaling.beta_slow
    low, high = (
        pair_that_turns(turns, scaling.original_context, rope.theta, rope.dims)
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, rope.dims - 1.0)
    if low == high:
        high += 0.001
    found = []
    for pair, frequency in enumerate(map(float, frequencies)):
        share = min(1.0, max(0.0, (pair - low) / (high - low)))
        found.append(frequency / scaling.factor * share + frequency * (1.0 - share))
    return np.array(found)


def _llama3(frequencies: Sequence[float] | npt.NDArray[np.float64], rope: Rope) -> list[float]:
    """Return frequencies with long wavelengths stretched, short ones kept, a blend between."""
    scaling = rope.scaling
    assert scaling is not None and scaling.low_freq_factor and scaling.high_freq_factor
    assert scaling.original_context
    found = []
    for frequency in map(float, frequencies):
        turns = scaling.original_context * frequency / (2.0 * math.pi)
        blend = (turns - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        blend = min(1.0, max(0.0, blend))
        found.append((1.0 - blend) * frequency / scaling.factor + blend * frequency)
    return found
