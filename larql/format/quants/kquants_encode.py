"""Encoding Q4_K, Q5_K and Q6_K: a search for good sub-scales, then rounding against stored ones.

The searches are those of ggml's reference quantisers (``make_qkx2_quants``, ``make_qx_quants``).
Arrays are laid out elements first, ``[elements, sub-blocks]``, and sums run over elements in order:
each sub-block's float32 result is then the same however many are searched at once.
"""

from __future__ import annotations

import numpy as np

from larql.format.quants.blocks import (
    BlockError,
    Bytes,
    Floats,
    clip_whole,
    first_extreme,
    inverse,
    join_nibbles,
    write_half,
)
from larql.format.quants.kquants import unpack_scale_min

__all__ = ["encode_q4_k", "encode_q5_k", "encode_q6_k"]

_NEGLIGIBLE = np.float32(1e-15)
"""A block whose largest sub-scale is below this is stored as zeros."""


def _total(terms: Floats) -> Floats:
    # np.sum may choose another order with the shape; this one is fixed.
    total: Floats = terms[0].copy()
    for term in terms[1:]:
        total += term
    return total


def _fit_scale_and_min(
    x: Floats, top: int, first: float, step: float, steps: int
) -> tuple[Floats, Floats]:
    """Fit ``x ~ scale * q - low`` with whole ``q`` in ``[0, top]`` and ``low >= 0``.

    Tries ``steps + 1`` trial scales around the plain one, each time solving the weighted least
    squares for the steps found, and keeps the best. Large elements weigh more.

    Parameters
    ----------
    x : ndarray of float32, shape [elements, m]
    top : int
        Largest step.
    first, step : float
        Trial ``i`` divides the range into ``top + first + i * step`` steps.
    steps : int
        Index of the last trial.

    Returns
    -------
    scale, low : ndarray of float32, shape [m]
    """
    average = np.sqrt(_total(x * x) / np.float32(len(x)))
    weight = average + np.abs(x)
    sum_w = _total(weight)
    sum_x = _total(weight * x)
    high = x.max(axis=0)
    low = np.minimum(x.min(axis=0), np.float32(0))

    def quantise(divisions: np.float32, low: Floats) -> tuple[Floats, Floats]:
        inverse_scale = divisions / (high - low)
        return clip_whole(np.rint(inverse_scale * (x - low)), 0, top), inverse_scale

    def error(q: Floats, scale: Floats, low: Floats) -> Floats:
        difference = scale * q
        difference += low
        difference -= x
        difference *= difference
        return _total(weight * difference)

    q, inverse_scale = quantise(np.float32(top), low)
    scale = np.float32(1) / inverse_scale
    best = error(q, scale, low)
    for trial in range(steps + 1):
        divisions = np.float32(first) + np.float32(step) * np.float32(trial) + np.float32(top)
        q, _ = quantise(divisions, low)
        wq = weight * q
        sum_q, sum_qq, sum_xq = _total(wq), _total(wq * q), _total(wq * x)
        determinant = sum_w * sum_qq - sum_q * sum_q
        trial_scale: Floats = np.divide(sum_w * sum_xq - sum_x * sum_q, determinant)
        trial_low: Floats = np.divide(sum_qq * sum_x - sum_q * sum_xq, determinant)
        above = trial_low > 0
        trial_scale[above] = (sum_xq / sum_qq)[above]
        trial_low[above] = 0
        trial_error = error(q, trial_scale, trial_low)
        better = (determinant > 0) & (trial_error < best)
        best = np.where(better, trial_error, best)
        scale = np.where(better, trial_scale, scale)
        low = np.where(better, trial_low, low)
    return scale, -low


def _at_least_zero(values: Floats) -> Floats:
    # Unlike np.maximum, never -0.
    return np.where(values <= 0, np.float32(0), values)


def _six_bits(values: Floats, largest: Floats) -> Bytes:
    per_unit = np.where(largest > 0, np.float32(63) / largest, np.float32(0))
    return clip_whole(np.rint(per_unit[:, None] * values), 0, 63).astype(np.uint8)


def _pack_scale_min(scales: Bytes, mins: Bytes) -> Bytes:
    return np.concatenate(
        (
            scales[:, :4] | ((scales[:, 4:] >> 4) << 6),
            mins[:, :4] | ((mins[:, 4:] >> 4) << 6),
            (scales[:, 4:] & 15) | ((mins[:, 4:] & 15) << 4),
        ),
        axis=1,
    )


def _encode_scale_min(
    values: Floats, out: Bytes, top: int, first: float, step: float, steps: int
) -> Bytes:
    # Writes the 16 header bytes and returns the steps [n, 8, 32].
    n = len(values)
    x = np.ascontiguousarray(values.reshape(n * 8, 32).T)
    scale, low = _fit_scale_and_min(x, top, first, step, steps)
    scale, low = scale.reshape(n, 8), low.reshape(n, 8)
    max_scale, max_low = _at_least_zero(scale.max(axis=1)), _at_least_zero(low.max(axis=1))
    out[:, 4:16] = _pack_scale_min(_six_bits(scale, max_scale), _six_bits(low, max_low))
    d = write_half(out, 0, max_scale / np.float32(63))
    dmin = write_half(out, 2, max_low / np.float32(63))
    sub_scales, sub_mins = unpack_scale_min(out[:, 4:16])
    unit = (d[:, None] * sub_scales)[:, :, None]
    shifted = values.reshape(n, 8, 32) + (dmin[:, None] * sub_mins)[:, :, None]
    return _round_steps(shifted, unit, 0, top).astype(np.uint8)


def _round_steps(values: Floats, unit: Floats, low: int, high: int) -> Floats:
    # A unit of zero decodes every step to the same value, so the lowest step is as good as any.
    steps = np.full(values.shape, low, np.float32)
    np.divide(values, unit, out=steps, where=unit != 0)
    return clip_whole(np.rint(steps, out=steps), low, high)


def encode_q4_k(values: Floats, out: Bytes) -> None:
    """Encode ``float32 [n, 256]`` into ``uint8 [n, 144]``."""
    steps = _encode_scale_min(values, out, 15, -1.0, 0.1, 20)
    out[:, 16:] = join_nibbles(steps.reshape(-1, 4, 2, 32)).reshape(-1, 128)


def encode_q5_k(values: Floats, out: Bytes) -> None:
    """Encode ``float32 [n, 256]`` into ``uint8 [n, 176]``."""
    steps = _encode_scale_min(values, out, 31, -0.5, 0.1, 15)
    out[:, 16:48] = np.packbits(steps >> 4, axis=1, bitorder="little").reshape(-1, 32)
    out[:, 48:] = join_nibbles(steps.reshape(-1, 4, 2, 32)).reshape(-1, 128)


def _fit_scale(x: Floats, half: int) -> Floats:
    """Fit ``x ~ scale * q`` with whole ``q`` in ``[-half, half - 1]``, weighted by ``x * x``.

    Parameters
    ----------
    x : ndarray of float32, shape [elements, m]
    half : int
        Number of negative steps.

    Returns
    -------
    ndarray of float32, shape [m]
        Scale, of either sign; zero for a sub-block of zeros.
    """
    extreme = first_extreme(x, axis=0)
    wx = x * x * x
    weight = x * x
    scale = np.zeros_like(extreme)
    best = np.zeros_like(extreme)
    for trial in (0, *range(-9, 0), *range(1, 10)):
        divisions = np.float32(half) + np.float32(0.1) * np.float32(trial)
        q = clip_whole(np.rint(-divisions / extreme * x), -half, half - 1)
        sum_xq = _total(wx * q)
        sum_qq = _total(weight * q * q)
        better = (sum_qq > 0) & ((sum_xq * sum_xq > best * sum_qq) | (trial == 0))
        scale = np.where(better, sum_xq / sum_qq, scale)
        best = np.where(better, scale * sum_xq, best)
    return scale


def encode_q6_k(values: Floats, out: Bytes) -> None:
    """Encode ``float32 [n, 256]`` into ``uint8 [n, 210]``."""
    n = len(values)
    x = np.ascontiguousarray(values.reshape(n * 16, 16).T)
    scale = _fit_scale(x, 32).reshape(n, 16)
    lost = ~np.isfinite(scale).all(axis=1)
    if lost.any():
        raise BlockError(int(np.argmax(lost)), "values too large for its scale; use bf16 or f32")
    extreme = first_extreme(scale, axis=1)
    extreme[np.abs(extreme) < _NEGLIGIBLE] = 0
    per_unit = np.float32(-128) * inverse(extreme)
    d = write_half(out, 208, inverse(per_unit))
    sub_scales = clip_whole(np.rint(per_unit[:, None] * scale), -128, 127).astype(np.int8)
    out[:, 192:208] = sub_scales.view(np.uint8)
    unit = (d[:, None] * sub_scales)[:, :, None]
    steps = _round_steps(values.reshape(n, 16, 16), unit, -32, 31)
    stored = (steps + np.float32(32)).astype(np.uint8).reshape(n, 2, 4, 32)
    out[:, :128] = join_nibbles(stored.reshape(n, 2, 2, 64)).reshape(n, 128)
    high = stored >> 4
    out[:, 128:192] = (
        high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    ).reshape(n, 64)
