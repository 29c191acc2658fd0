"""Super-blocks of 256 elements with quantised sub-scales: decoding Q2_K to Q6_K.

==== ======================================================== ============================
name stored                                                   element
==== ======================================================== ============================
Q2_K 16 (scale, min) nibble pairs, 64 q, d f16, dmin f16      ``d*sc * q - dmin*mn``
Q3_K 32 high bits, 64 q, 12 packed scales, d f16              ``d*(sc - 32) * (q - 4)``
Q4_K d f16, dmin f16, 12 packed (scale, min), 128 q           ``d*sc * q - dmin*mn``
Q5_K d f16, dmin f16, 12 packed (scale, min), 32 high, 128 q  ``d*sc * q - dmin*mn``
Q6_K 128 low q, 64 high q, 16 int8 scales, d f16              ``d*sc * (q - 32)``
==== ======================================================== ============================

Q4_K and Q5_K have eight sub-blocks of 32 elements, the others sixteen of 16. A float16 has 11
significant bits, so for finite scales every product is exact in float32 and only the subtraction
rounds: a fused multiply-add gives the same bits.
"""

from __future__ import annotations

import numpy as np

from larql.format.quants.blocks import Bytes, Floats, bit_field, read_half, split_nibbles

__all__ = [
    "decode_q2_k",
    "decode_q3_k",
    "decode_q4_k",
    "decode_q5_k",
    "decode_q6_k",
    "unpack_scale_min",
]

_PAIR_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]
_BIT_SHIFTS = np.arange(8, dtype=np.uint8)[:, None]


def _bit_pairs(packed: Bytes) -> Bytes:
    # Pair i of each of m bytes belongs to run i of m elements: [..., m] -> [..., 4, m].
    return bit_field(packed[..., None, :], _PAIR_SHIFTS, 2)


def _single_bits(packed: Bytes) -> Bytes:
    # Bit i of each of m bytes belongs to run i of m elements: [n, m] -> [n, 8, m].
    return bit_field(packed[:, None, :], _BIT_SHIFTS, 1)


def _apply(out: Floats, steps: Bytes, scale: Floats, low: Floats | None, centre: int) -> None:
    grouped = out.reshape(len(out), scale.shape[1], -1)
    grouped[...] = steps.reshape(grouped.shape)
    if centre:
        grouped -= np.float32(centre)
    grouped *= scale[:, :, None]
    if low is not None:
        grouped -= low[:, :, None]


def unpack_scale_min(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack the 12 bytes that hold eight 6-bit scales and eight 6-bit mins.

    Bytes 0-3 and 4-7 hold scales and mins 0-3 in their low six bits, and in their top two the high
    bits of scales and mins 4-7, whose low nibbles are the two halves of bytes 8-11.

    Parameters
    ----------
    packed : ndarray of uint8, shape [n, 12]

    Returns
    -------
    scales, mins : ndarray of uint8, shape [n, 8]
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=1)
    mins = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=1)
    return scales, mins


def decode_q2_k(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 84]`` into ``float32 [n, 256]``."""
    pairs = blocks[:, :16]
    scale = read_half(blocks, 80) * (pairs & 15)
    low = read_half(blocks, 82) * (pairs >> 4)
    _apply(out, _bit_pairs(blocks[:, 16:80].reshape(-1, 2, 32)), scale, low, 0)


def decode_q3_k(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 110]`` into ``float32 [n, 256]``."""
    packed = blocks[:, 96:108]
    low = split_nibbles(packed[:, :8]).reshape(-1, 16)
    high = _bit_pairs(packed[:, 8:]).reshape(-1, 16)
    sub_scales = (low | (high << 4)).astype(np.float32) - np.float32(32)
    steps = _bit_pairs(blocks[:, 32:96].reshape(-1, 2, 32)).reshape(-1, 8, 32)
    steps |= _single_bits(blocks[:, :32]) << 2
    _apply(out, steps, read_half(blocks, 108) * sub_scales, None, 4)


def _scale_and_low(blocks: Bytes) -> tuple[Floats, Floats]:
    scales, mins = unpack_scale_min(blocks[:, 4:16])
    return read_half(blocks, 0) * scales, read_half(blocks, 2) * mins


def decode_q4_k(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 144]`` into ``float32 [n, 256]``."""
    scale, low = _scale_and_low(blocks)
    _apply(out, split_nibbles(blocks[:, 16:].reshape(-1, 4, 32)), scale, low, 0)


def decode_q5_k(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 176]`` into ``float32 [n, 256]``."""
    scale, low = _scale_and_low(blocks)
    steps = split_nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    steps |= _single_bits(blocks[:, 16:48]) << 4
    _apply(out, steps, scale, low, 0)


def decode_q6_k(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 210]`` into ``float32 [n, 256]``.

    In each half of 128 elements, low nibbles of 64 bytes serve the first 64 elements and high
    nibbles the rest; 32 further bytes hold the top bit pairs of the four runs of 32.
    """
    steps = split_nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    steps |= _bit_pairs(blocks[:, 128:192].reshape(-1, 2, 32)) << 4
    scale = read_half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    _apply(out, steps, scale, None, 32)
