"""NumPy twins of the kernels, written to be read.

They use no code of `larql`. Fused multiply-add in float32 is built from float64: the product of two
float32 is exact there, and rounding the sum to odd before rounding to float32 makes the two
roundings one (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F = np.float32
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
    rows = len(weights)
    w, v = _padded(weights), _padded(x)
    sums = np.zeros((x.shape[0], rows, LANES), np.float32)
    for at in range(0, w.shape[1], LANES):
        sums = fma(w[None, :, at : at + LANES], v[:, None, at : at + LANES], sums)
    return lane_sum(sums)


def rms_norm(x: F32, weight: F32 | None, offset: float, eps: float) -> F32:
    """x [T, H] -> [T, H], each operation rounded to float32."""
    rate = F(1) / np.sqrt(lane_sum(_lanes(x, x)) / F(x.shape[1]) + F(eps))
    factor = F(1) if weight is None else weight + F(offset)
    return (x * rate[:, None]) * factor


def layer_norm(x: F32, weight: F32 | None, bias: F32 | None, offset: float, eps: float) -> F32:
    """x [T, H] -> [T, H], each operation rounded to float32."""
    padded = _padded(x)
    lanes = np.zeros((len(x), LANES), F)
    for at in range(0, padded.shape[1], LANES):
        lanes = lanes + padded[:, at : at + LANES]
    centred = x - (lane_sum(lanes) / F(x.shape[1]))[:, None]
    rate = F(1) / np.sqrt(lane_sum(_lanes(centred, centred)) / F(x.shape[1]) + F(eps))
    factor = np.ones(x.shape[1], F) if weight is None else weight + F(offset)
    shift = np.zeros(x.shape[1], F) if bias is None else bias
    return fma(centred * rate[:, None], factor[None, :], shift[None, :])


def rotate(x: F32, cos: F32, sin: F32, layout: str) -> F32:
    """x [T, heads, dim], cos and sin [T, n] -> rotated copy."""
    out = x.copy()
    for t in range(x.shape[0]):
        for head in range(x.shape[1]):
            for i in range(cos.shape[1]):
                j, k = (i, i + cos.shape[1]) if layout == "half" else (2 * i, 2 * i + 1)
                a, b = x[t, head, j : j + 1], x[t, head, k : k + 1]
                c, s = cos[t, i : i + 1], sin[t, i : i + 1]
                out[t, head, j] = fma(a, c, -(b * s))[0]
                out[t, head, k] = fma(b, c, a * s)[0]
    return out


def attend(
    q: F32, keys: F32, values: F32, start: int, window: int, scale: float, softcap: float,
    sinks: F32 | None,
) -> npt.NDArray[np.float64]:  # fmt: skip
    """Softmax attention over a ring, in float64."""
    tokens, heads, _ = q.shape
    capacity, kv_heads, _ = keys.shape
    out = np.empty((tokens, heads, values.shape[2]))
    for t in range(tokens):
        position = start + t
        first = max(0, position - window + 1) if window else 0
        rows = [p % capacity for p in range(first, position + 1)]
        for head in range(heads):
            kv = head // (heads // kv_heads)
            score = keys[rows, kv].astype(float) @ q[t, head].astype(float) * scale
            if softcap:
                score = softcap * np.tanh(score / softcap)
            most = max(score.max(), -np.inf if sinks is None else sinks[head])
            weight = np.exp(score - most)
            total = weight.sum() + (0 if sinks is None else np.exp(sinks[head] - most))
            out[t, head] = weight @ values[rows, kv].astype(float) / total
    return out


def keep(
    new_keys: F32, new_values: F32, keys: npt.NDArray[Any], values: npt.NDArray[Any], start: int
) -> None:
    """Write rows of positions from `start` on into blocks of 64, keys with positions innermost."""
    with np.errstate(over="ignore"):
        for t in range(len(new_keys)):
            block, place = (start + t) // 64 % len(keys), (start + t) % 64
            keys[block, :, :, place] = new_keys[t]
            values[block, :, place] = 0
            values[block, :, place, : new_values.shape[2]] = new_values[t]


def _padded(x: F32) -> F32:
    wide = np.zeros((len(x), -(-x.shape[1] // LANES) * LANES), F)
    wide[:, : x.shape[1]] = x
    return wide


def _lanes(x: F32, y: F32) -> F32:
    x, y = _padded(x), _padded(y)
    lanes = np.zeros((len(x), LANES), F)
    for at in range(0, x.shape[1], LANES):
        lanes = fma(x[:, at : at + LANES], y[:, at : at + LANES], lanes)
    return lanes
