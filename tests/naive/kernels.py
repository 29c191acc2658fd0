"""NumPy twins of the kernels, written to be read.

They use no code of `larql`. Fused multiply-add in float32 is built from float64: the product of two
float32 is exact there, and rounding the sum to odd before rounding to float32 makes the two
roundings one (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
LANES = 16


def fma(a: F32, b: F32, c: F32) -> F32:
    """a*b + c rounded once to float32."""
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        addend = np.broadcast_to(c, product.shape).astype(np.float64)
        total = product + addend
        part = total - product
        error = (product - (total - part)) + (addend - part)
        bits = total.view(np.int64)
        inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
        towards = np.where((error > 0) == (total > 0), 1, -1)
        odd = np.where(inexact, bits + towards, bits).view(np.float64)
        return odd.astype(np.float32)


def lane_sum(lanes: F32) -> F32:
    """Sum of the last axis: lane i with lane i + n/2 until one is left."""
    with np.errstate(all="ignore"):
        while lanes.shape[-1] > 1:
            half = lanes.shape[-1] // 2
            lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def product(weights: F32, x: F32) -> F32:
    """weights [rows, columns], x [C, columns] -> [C, rows], in the order kernels promise."""
    rows, columns = weights.shape
    padded = -(-columns // LANES) * LANES
    w = np.zeros((rows, padded), np.float32)
    v = np.zeros((x.shape[0], padded), np.float32)
    w[:, :columns], v[:, :columns] = weights, x
    sums = np.zeros((x.shape[0], rows, LANES), np.float32)
    for at in range(0, padded, LANES):
        sums = fma(w[None, :, at : at + LANES], v[:, None, at : at + LANES], sums)
    return lane_sum(sums)
