"""Statistics of carrier writes: float64 sums in a fixed order, the same for any chunk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.runtime.observe.basis import Basis
from larql.runtime.sums import tree_sum

__all__ = ["WriteStatistics", "norms", "write_statistics"]

Float64 = npt.NDArray[np.float64]
_ELEMENTS = 1 << 21  # of a temporary array, so that memory does not grow with positions


@dataclass(frozen=True)
class WriteStatistics:
    """Of all writes of some positions.

    Attributes
    ----------
    carrier : float64 ``[writes, T]``
        Euclidean norm of the carrier after the write.
    delta : float64 ``[writes, T]``
        Euclidean norm of the carrier after the write less the carrier before it; before the
        first write it is zero.
    projection : float64 ``[writes, T, dims]``
        The carrier after the write times the basis; ``dims`` is 0 without one.
    """

    carrier: Float64
    delta: Float64
    projection: Float64


def norms(x: npt.NDArray[np.float32] | Float64) -> Float64:
    """Return the Euclidean norms of the last axis, float64 ``[...]``."""
    wide = x.astype(np.float64)
    return np.sqrt(tree_sum(wide * wide))


def write_statistics(carriers: npt.NDArray[np.float32], basis: Basis | None) -> WriteStatistics:
    """Compute the statistics of carriers ``[writes, T, hidden]``."""
    writes, count, hidden = carriers.shape
    dims = 0 if basis is None else len(basis.rows)
    carrier, delta = np.empty((writes, count)), np.empty((writes, count))
    projection = np.empty((writes, count, dims))
    with np.errstate(all="ignore"):
        step = max(1, _ELEMENTS // (count * hidden))
        for first in range(0, writes, step):
            wide = carriers[first : first + step].astype(np.float64)
            before = np.zeros_like(wide)
            low = max(first, 1)
            before[low - first :] = carriers[low - 1 : first + len(wide) - 1]
            some = slice(first, first + len(wide))
            carrier[some], delta[some] = norms(wide), norms(wide - before)
        if basis is not None:
            step = max(1, _ELEMENTS // (dims * hidden))
            rows = carriers.reshape(-1, hidden)
            flat = projection.reshape(-1, dims)
            for first in range(0, len(rows), step):
                wide = rows[first : first + step, None, :].astype(np.float64)
                flat[first : first + step] = tree_sum(wide * basis.rows.astype(np.float64))
    return WriteStatistics(carrier, delta, projection)
