"""Rotary position embedding by kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from larql.format.graph import Rope
from larql.kernels.rope import inverse_frequencies, rotation_table
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
        rotations[rope] = found
    return found


def _radians(rope: Rope, arithmetic: Arithmetic) -> npt.NDArray[np.float64]:
    """Return radians per position of each rotated pair; + - * / of exact frequencies only."""
    known = arithmetic.frequencies.get(rope)
    if known is not None:
        return known
    frequencies = inverse_frequencies(rope.theta, rope.dims)
    scaling = rope.scaling
    if scaling is not None and scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling is not None:
        frequencies = np.array(_llama3(frequencies, rope))
    if rope.factors is not None:
        frequencies = frequencies / arithmetic.vectors[rope.factors].astype(np.float64)
    if rope.turning is not None:
        frequencies[rope.turning :] = 0.0
    arithmetic.frequencies[rope] = np.ascontiguousarray(frequencies)
    return arithmetic.frequencies[rope]


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
