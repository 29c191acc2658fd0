"""Products of rows of units, operation by operation, in float32.

A unit is some neighbouring weights of one scale: weight i is scale * (bits_i + first) + shift. Four
lanes add up the bits times the vector, each byte of a word in its place; the sum of a unit, and not
each of its weights, is scaled and shifted. It uses no code of `larql`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.naive.kernels import F32, F, fma

LANES = 4


@dataclass(frozen=True, eq=False)
class Units:
    """Some rows, as their units.

    Attributes
    ----------
    bits : float32 [rows, units, weights]
        Unsigned, or signed bytes where `signed`.
    first : float
        What is added to the bits.
    scales : float32 [rows, units]
    shifts : float32 [rows, units] or None
    signed : bool
    """

    bits: F32
    first: float
    scales: F32
    shifts: F32 | None
    signed: bool

    @property
    def placed(self) -> F32:
        """The bits where they are in a 32-bit word; signed bytes are no part of one."""
        if self.signed:
            return self.bits
        return self.bits * np.tile(np.array([1, 2**8, 2**16, 2**24], F), self.bits.shape[2] // 4)


def product(rows: Units, x: F32) -> F32:
    """Rows of units and x [C, columns] -> [C, rows], in the order kernels promise.

    Units that begin behind the columns are none of the row's.
    """
    with np.errstate(all="ignore"):
        count, columns = x.shape
        placed = rows.placed
        size = placed.shape[2]
        taken = -(-columns // size)
        v = np.zeros((count, 1, taken * size), F)
        v[:, 0, :columns] = x
        v = v.reshape(count, 1, taken, size)
        lanes = np.zeros((count, len(placed), taken, LANES), F)
        for i in range(0, size, LANES):
            lanes = fma(placed[None, :, :taken, i : i + LANES], v[..., i : i + LANES], lanes)
        sums, values = _joined(lanes, rows.signed), _vector_sums(v)
        if rows.first:
            sums = fma(np.full_like(sums, rows.first), values, sums)
        total = np.zeros((count, len(placed)), F)
        for u in range(taken):
            total = fma(sums[..., u], rows.scales[None, :, u], total)
            if rows.shifts is not None:
                total = fma(values[..., u], rows.shifts[None, :, u], total)
        return total


def _joined(lanes: F32, signed: bool) -> F32:
    """Four lanes -> the sum of a unit."""
    low, second, third, high = (lanes[..., j] for j in range(LANES))
    if signed:
        return (low + third) + (second + high)
    small = np.full_like(low, 2.0**-16)
    even, odd = fma(third, small, low), fma(high, small, second)
    return fma(odd, np.full_like(odd, 2.0**-8), even)


def _vector_sums(v: F32) -> F32:
    """The sum of each unit's values."""
    lanes = v[..., :LANES]
    for i in range(LANES, v.shape[-1], LANES):
        lanes = lanes + v[..., i : i + LANES]
    return (lanes[..., 0] + lanes[..., 2]) + (lanes[..., 1] + lanes[..., 3])
