"""Encoding again, one block at a time, as ggml's reference quantisers search and round.

Shares nothing with :mod:`larql.format.codec`; every float32 operation is a NumPy scalar's, in
ggml's order. Where a sub-block's stored scale is zero, all steps decode alike and the lowest is
taken.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from tests.naive.codec import E2M1, F, half, scale_min


def half_bytes(value: np.float32) -> bytes:
    try:
        return struct.pack("<e", float(value))
    except OverflowError:
        return b"\x00\x7c" if value > 0 else b"\x00\xfc"


def clip(value: np.float32, low: int, high: int) -> int:
    if math.isnan(value):
        return low
    return int(max(float(low), min(float(high), float(value))))


def nearest(value: np.float32, low: int, high: int) -> int:
    return clip(np.rint(value), low, high)


def inverse(scale: np.float32) -> np.float32:
    out = F(1) / scale
    return F(0) if math.isinf(out) else out


def extreme(values: list[np.float32]) -> np.float32:
    found = F(0)
    for value in values:
        if abs(value) > abs(found):
            found = value
    return found


def total(terms: list[np.float32]) -> np.float32:
    out = F(0)
    for term in terms:
        out = out + term
    return out


def pack_nibbles(steps: list[int]) -> bytes:
    half_count = len(steps) // 2
    return bytes((steps[j] & 15) | (steps[j + half_count] & 15) << 4 for j in range(half_count))


def pack_fifth(steps: list[int]) -> bytes:
    word = sum((step >> 4) << j for j, step in enumerate(steps))
    return struct.pack("<I", word)


def encode_q8_0(x: list[np.float32]) -> bytes:
    scale = abs(extreme(x)) / F(127)
    out = half_bytes(scale)
    for value in x:
        scaled = float(value * inverse(scale))
        out += struct.pack("b", int(math.copysign(math.floor(abs(scaled) + 0.5), scaled)))
    return out


def encode_centred(x: list[np.float32], centre: int) -> bytes:
    scale = extreme(x) / F(-centre)
    steps = [clip(v * inverse(scale) + F(centre + 0.5), 0, 2 * centre - 1) for v in x]
    return half_bytes(scale) + (pack_fifth(steps) if centre == 16 else b"") + pack_nibbles(steps)


def encode_offset(x: list[np.float32], top: int) -> bytes:
    low, high = min(x) + F(0), max(x) + F(0)
    scale = (high - low) / F(top)
    steps = [clip((v - low) * inverse(scale) + F(0.5), 0, top) for v in x]
    fifth = pack_fifth(steps) if top == 31 else b""
    return half_bytes(scale) + half_bytes(low) + fifth + pack_nibbles(steps)


def fit_scale_min(
    x: list[np.float32], top: int, first: float, trials: int
) -> tuple[np.float32, np.float32]:
    average = np.sqrt(total([v * v for v in x]) / F(len(x)))
    w = [average + abs(v) for v in x]
    sum_w, sum_x = total(w), total([a * v for a, v in zip(w, x, strict=True)])
    low, high = min(*x, F(0)), max(x)
    if low == high:
        return F(0), -low
    n = range(len(x))

    def error(q: list[int], scale: np.float32, low: np.float32) -> np.float32:
        terms = []
        for i in n:
            difference = scale * F(q[i]) + low - x[i]
            terms.append(w[i] * (difference * difference))
        return total(terms)

    per_step = F(top) / (high - low)
    scale = F(1) / per_step
    best = error([nearest(per_step * (v - low), 0, top) for v in x], scale, low)
    for trial in range(trials):
        per_step = (F(first) + F(0.1) * F(trial) + F(top)) / (high - low)
        q = [nearest(per_step * (v - low), 0, top) for v in x]
        sum_q = total([w[i] * F(q[i]) for i in n])
        sum_qq = total([w[i] * F(q[i]) * F(q[i]) for i in n])
        sum_xq = total([w[i] * F(q[i]) * x[i] for i in n])
        determinant = sum_w * sum_qq - sum_q * sum_q
        if not determinant > 0:
            continue
        new_scale = (sum_w * sum_xq - sum_x * sum_q) / determinant
        new_low = (sum_qq * sum_x - sum_q * sum_xq) / determinant
        if new_low > 0:
            new_scale, new_low = sum_xq / sum_qq, F(0)
        new_error = error(q, new_scale, new_low)
        if new_error < best:
            best, scale, low = new_error, new_scale, new_low
    return scale, -low


def encode_scale_min(x: list[np.float32], top: int, first: float, trials: int) -> bytes:
    fits = [fit_scale_min(x[j : j + 32], top, first, trials) for j in range(0, 256, 32)]
    max_scale = max(F(0), *(scale for scale, _ in fits))
    max_low = max(F(0), *(low for _, low in fits))
    packed = bytearray(12)
    for j, (scale, low) in enumerate(fits):
        ls = nearest(F(63) / max_scale * scale, 0, 63) if max_scale > 0 else 0
        lm = nearest(F(63) / max_low * low, 0, 63) if max_low > 0 else 0
        if j < 4:
            packed[j] |= ls
            packed[j + 4] |= lm
        else:
            packed[j + 4] = ls & 15 | (lm & 15) << 4
            packed[j - 4] |= ls >> 4 << 6
            packed[j] |= lm >> 4 << 6
    head = half_bytes(max_scale / F(63)) + half_bytes(max_low / F(63))
    steps = []
    for i, value in enumerate(x):
        scale, low = scale_min(bytes(packed), i // 32)
        unit = half(head, 0) * F(scale)
        shifted = value + half(head, 2) * F(low)
        steps.append(nearest(shifted / unit, 0, top) if unit else 0)
    fifth = b""
    if top == 31:
        fifth = bytes(
            sum((steps[32 * run + lane] >> 4) << run for run in range(8)) for lane in range(32)
        )
    nibbles = b"".join(pack_nibbles(steps[j : j + 64]) for j in range(0, 256, 64))
    return head + bytes(packed) + fifth + nibbles


def fit_scale(x: list[np.float32]) -> np.float32:
    largest = extreme(x)
    if abs(largest) < F(1e-15):
        return F(0)
    scale = best = F(0)
    for trial in [0, *range(-9, 0), *range(1, 10)]:
        per_step = -(F(32) + F(0.1) * F(trial)) / largest
        q = [F(nearest(per_step * v, -32, 31)) for v in x]
        sum_xq = total([v * v * v * step for v, step in zip(x, q, strict=True)])
        sum_qq = total([v * v * step * step for v, step in zip(x, q, strict=True)])
        if sum_qq > 0 and (trial == 0 or sum_xq * sum_xq > best * sum_qq):
            scale = sum_xq / sum_qq
            best = scale * sum_xq
    return scale


def encode_q6_k(x: list[np.float32]) -> bytes:
    scales = [fit_scale(x[j : j + 16]) for j in range(0, 256, 16)]
    largest = extreme(scales)
    if abs(largest) < F(1e-15):
        return bytes(210)
    per_unit = F(-128) / largest
    stored = [nearest(per_unit * scale, -128, 127) for scale in scales]
    tail = half_bytes(F(1) / per_unit)
    steps = []
    for i, value in enumerate(x):
        unit = half(tail, 0) * F(stored[i // 16])
        steps.append((nearest(value / unit, -32, 31) if unit else -32) + 32)
    low, high = bytearray(128), bytearray(64)
    for i, step in enumerate(steps):
        half_super, k = divmod(i, 128)
        run, lane = divmod(k, 32)
        low[64 * half_super + 32 * (run % 2) + lane] |= (step & 15) << (4 if run >= 2 else 0)
        high[32 * half_super + lane] |= step >> 4 << 2 * run
    return bytes(low) + bytes(high) + struct.pack("16b", *stored) + tail


def encode_mxfp4(x: list[np.float32]) -> bytes:
    largest = float(max(abs(v) for v in x))
    exponent = max(0, math.frexp(largest)[1] - 3 + 127) if largest else 0
    codes = []
    for value in x:
        magnitude = abs(float(value)) / 2.0 ** (exponent - 127)
        distances = [abs(level - magnitude) for level in E2M1]
        code = distances.index(min(distances))
        codes.append(code | 8 if code and value < 0 else code)
    return bytes([exponent]) + pack_nibbles(codes)


def encode_block(name: str, values: np.ndarray) -> bytes:
    x = [F(v) for v in values]
    with np.errstate(all="ignore"):
        match name:
            case "q8_0":
                return encode_q8_0(x)
            case "q4_0":
                return encode_centred(x, 8)
            case "q5_0":
                return encode_centred(x, 16)
            case "q4_1":
                return encode_offset(x, 15)
            case "q5_1":
                return encode_offset(x, 31)
            case "q4_k":
                return encode_scale_min(x, 15, -1.0, 21)
            case "q5_k":
                return encode_scale_min(x, 31, -0.5, 16)
            case "q6_k":
                return encode_q6_k(x)
            case "mxfp4":
                return encode_mxfp4(x)
    raise AssertionError(name)
