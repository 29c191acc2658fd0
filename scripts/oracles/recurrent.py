"""Random weights for recurrent layers."""

from __future__ import annotations

import numpy as np
from recipe import Values, usual

__all__ = ["recurrent_weights"]


def recurrent_weights(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> Values:
    """Draw as :func:`recipe.usual`, with decays that neither keep nor forget everything at once.

    Norms that store ``w`` and mean ``1 + w`` are drawn as the others: far from either reading.
    """
    values = usual(name, shape, generator)
    if name.endswith("A_log"):
        return (0.5 * generator.standard_normal(shape) - 0.5).astype(np.float32)
    if len(shape) == 3 and "experts" not in name:
        return (0.8 * generator.standard_normal(shape)).astype(np.float32)
    return values
