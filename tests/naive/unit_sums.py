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
        Unsigned.
    first : float
        What is added to the bits.
    scales : float32 [rows, units]
    shifts : float32 [rows, units] or None
    """

    bits: F32
    first: float
    scales: F32
    shifts: F32 | None

    @property
    def placed(self) -> F32:
        """The bits where they are in a 32-bit word."""
        return self.bits * np.tile(np.array([1, 2**8, 2**16, 2**24], F), self.bits.shape[2] // 4)


def product(rows: Units, x: F32) -> F32:
    """Rows of units and x [C, columns] -> [C, rows], in the order kernels promise.

    Where the units go on behind the columns, x goes on with zeros.
    """
    with np.errstate(all="ignore"):
        count, columns = x.shape
        placed = rows.placed
        height, length, size = placed.shape
        v = np.zeros((count, 1, length * size), F)
        v[:, 0, :columns] = x
        v = v.reshape(count, 1, length, size)
        lanes = np.zeros((count, height, length, LANES), F)
        for i in range(0, size, LANES):
            lanes = fma(placed[None, ..., i : i + LANES], v[..., i : i + LANES], lanes)
        sums, values = _joined(lanes), _vector_sums(v)
        if rows.first:
            sums = fma(np.full_like(sums, rows.first), values, sums)
        total = np.zeros((count, height), F)
        for u in range(length):
            total = fma(sums[..., u], rows.scales[None, :, u], total)
            if rows.shifts is not None:
                total = fma(values[..., u], rows.shifts[None, :, u], total)
        return total


def _joined(lanes: F32) -> F32:
    """Four lanes -> the sum of a unit."""
    small = np.full_like(lanes[..., 0], 2.0**-16)
    even = fma(lanes[..., 2], small, lanes[..., 0])
    odd = fma(lanes[..., 3], small, lanes[..., 1])
    return fma(odd, np.full_like(odd, 2.0**-8), even)


def _vector_sums(v: F32) -> F32:
    """The sum of each unit's values."""
    lanes = v[..., :LANES]
    for i in range(LANES, v.shape[-1], LANES):
        lanes = lanes + v[..., i : i + LANES]
    return (lanes[..., 0] + lanes[..., 2]) + (lanes[..., 1] + lanes[..., 3])
