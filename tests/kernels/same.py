"""Comparing results by their bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def same(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> bool:
    """Whether all elements have equal bits; a NaN equals any NaN."""
    assert a.shape == b.shape and a.dtype == b.dtype == np.float32
    equal = a.view(np.uint32) == b.view(np.uint32)
    return bool((equal | (np.isnan(a) & np.isnan(b))).all())


def normal(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Ordinary numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
