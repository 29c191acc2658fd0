"""Sums of float64 in an order that no library, machine or batch decides."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["tree_sum"]

Float64 = npt.NDArray[np.float64]


def tree_sum(x: Float64) -> Float64:
    """Sum the last axis: the second half is added to the first until one number is left.

    Parameters
    ----------
    x : float64 ``[..., n]``
        Where n is odd the middle element stays as it is.

    Returns
    -------
    float64 ``[...]``
    """
    count = x.shape[-1]
    if count == 0:
        return np.zeros(x.shape[:-1])
    while count > 1:
        half = (count + 1) // 2
        folded = x[..., :half].copy()
        folded[..., : count - half] += x[..., half:count]
        x, count = folded, half
    return np.asarray(x[..., 0])
