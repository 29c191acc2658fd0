"""Decoding again, one element at a time, from the block layouts of ggml.

Slow on purpose and sharing nothing with :mod:`larql.format.codec`: float16 is taken apart bit by
bit, and each float32 operation is a NumPy scalar's, in the order in which ggml's reference routines
write it. :mod:`tests.naive.codec_encode` is the way back.
"""

from __future__ import annotations

import math
import struct

import numpy as np

F = np.float32
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def half(block: bytes, at: int) -> np.float32:
    word = block[at] | block[at + 1] << 8
    sign = -1.0 if word & 0x8000 else 1.0
    exponent, mantissa = word >> 10 & 31, word & 1023
    if exponent == 31:
        return F(math.nan) if mantissa else F(sign * math.inf)
    if exponent == 0:
        return F(math.copysign(mantissa * 2.0**-24, sign))
    return F(sign * (1024 + mantissa) * 2.0 ** (exponent - 25))


def nibble(byte: int, high: bool) -> int:
    return byte >> 4 if high else byte & 15


def scale_min(packed: bytes, j: int) -> tuple[int, int]:
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return (
        packed[j + 4] & 15 | packed[j - 4] >> 6 << 4,
        packed[j + 4] >> 4 | packed[j] >> 6 << 4,
    )


def q3_scale(packed: bytes, j: int) -> int:
    low = nibble(packed[j % 8], j >= 8)
    return (low | (packed[8 + j % 4] >> 2 * (j // 4) & 3) << 4) - 32


def decode_element(name: str, block: bytes, i: int) -> np.float32:
    half_row, j = divmod(i, 16)  # of a 32-element block
    half_super, k = divmod(i, 128)  # of a 256-element block
    run, lane = divmod(k, 32)
    match name:
        case "f32":
            return np.frombuffer(block, "<f4")[0]
        case "f16":
            return half(block, 0)
        case "bf16":
            return np.frombuffer(b"\0\0" + block, "<f4")[0]
        case "q8_0":
            return F(struct.unpack_from("b", block, 2 + i)[0]) * half(block, 0)
        case "q4_0":
            return F(nibble(block[2 + j], half_row == 1) - 8) * half(block, 0)
        case "q4_1":
            q = nibble(block[4 + j], half_row == 1)
            return F(q) * half(block, 0) + half(block, 2)
        case "q5_0":
            q = nibble(block[6 + j], half_row == 1) | (block[2 + i // 8] >> i % 8 & 1) << 4
            return F(q - 16) * half(block, 0)
        case "q5_1":
            q = nibble(block[8 + j], half_row == 1) | (block[4 + i // 8] >> i % 8 & 1) << 4
            return F(q) * half(block, 0) + half(block, 2)
        case "q2_k":
            pair = block[i // 16]
            q = block[16 + 32 * half_super + lane] >> 2 * run & 3
            return half(block, 80) * F(pair & 15) * F(q) - half(block, 82) * F(pair >> 4)
        case "q3_k":
            q = block[32 + 32 * half_super + lane] >> 2 * run & 3
            q -= 0 if block[lane] >> (i // 32) & 1 else 4
            return half(block, 108) * F(q3_scale(block[96:108], i // 16)) * F(q)
        case "q4_k":
            scale, low = scale_min(block[4:16], i // 32)
            q = nibble(block[16 + 32 * (i // 64) + lane], i // 32 % 2 == 1)
            return half(block, 0) * F(scale) * F(q) - half(block, 2) * F(low)
        case "q5_k":
            scale, low = scale_min(block[4:16], i // 32)
            q = nibble(block[48 + 32 * (i // 64) + lane], i // 32 % 2 == 1)
            q += 16 if block[16 + lane] >> (i // 32) & 1 else 0
            return half(block, 0) * F(scale) * F(q) - half(block, 2) * F(low)
        case "q6_k":
            q = nibble(block[64 * half_super + 32 * (run % 2) + lane], run >= 2)
            q |= (block[128 + 32 * half_super + lane] >> 2 * run & 3) << 4
            scale = struct.unpack_from("b", block, 192 + i // 16)[0]
            return half(block, 208) * F(scale) * F(q - 32)
        case "iq4_nl":
            return half(block, 0) * F(IQ4_LEVELS[nibble(block[2 + j], half_row == 1)])
        case "iq4_xs":
            sub = i // 32
            scale = nibble(block[4 + sub // 2], sub % 2 == 1)
            scale |= ((block[2] | block[3] << 8) >> 2 * sub & 3) << 4
            level = IQ4_LEVELS[nibble(block[8 + 16 * sub + i % 16], i // 16 % 2 == 1)]
            return half(block, 0) * F(scale - 32) * F(level)
        case "mxfp4":
            code = nibble(block[1 + j], half_row == 1)
            value = E2M1[code & 7] * 2.0 ** (block[0] - 127)
            return F(-value if code > 8 else value)
    raise AssertionError(name)


def decode_block(name: str, block: bytes, elements: int) -> list[np.float32]:
    with np.errstate(all="ignore"):
        return [decode_element(name, block, i) for i in range(elements)]
