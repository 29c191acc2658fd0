"""Blocks of 32 elements with one float16 scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.

==== ============================================ =================
name stored                                       element
==== ============================================ =================
Q8_0 d f16, 32 int8                               ``q * d``
Q4_0 d f16, 16 bytes of nibbles                   ``(q - 8) * d``
Q4_1 d f16, m f16, 16 bytes of nibbles            ``q * d + m``
Q5_0 d f16, 32 fifth bits, 16 bytes of nibbles    ``(q - 16) * d``
Q5_1 d f16, m f16, 32 fifth bits, nibbles         ``q * d + m``
==== ============================================ =================

Byte ``j`` of the nibbles holds element ``j`` (low) and element ``j + 16`` (high); bit ``j`` of the
fifth bits, a little-endian word, belongs to element ``j``.
"""

from __future__ import annotations

import numpy as np

from larql.format.quants.blocks import (
    Bytes,
    Floats,
    clip_whole,
    first_extreme,
    inverse,
    join_nibbles,
    read_half,
    round_half_away,
    split_nibbles,
    write_half,
)

__all__ = [
    "decode_q4_0",
    "decode_q4_1",
    "decode_q5_0",
    "decode_q5_1",
    "decode_q8_0",
    "encode_q4_0",
    "encode_q4_1",
    "encode_q5_0",
    "encode_q5_1",
    "encode_q8_0",
]


def decode_q8_0(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 34]`` into ``float32 [n, 32]``."""
    out[...] = blocks[:, 2:].view(np.int8)
    out *= read_half(blocks, 0)


def encode_q8_0(values: Floats, out: Bytes) -> None:
    """Scale the largest magnitude to 127 and round halves away from zero."""
    scale = np.abs(values).max(axis=1) / np.float32(127)
    write_half(out, 0, scale)
    steps = round_half_away(values * inverse(scale)[:, None])
    out[:, 2:] = clip_whole(steps, -127, 127).astype(np.int8).view(np.uint8)


def _read_steps(blocks: Bytes, at: int, fifth: int | None) -> Bytes:
    steps = split_nibbles(blocks[:, at:]).reshape(-1, 32)
    if fifth is not None:
        high = np.unpackbits(blocks[:, fifth : fifth + 4], axis=1, bitorder="little")
        steps |= high << 4
    return steps


def _write_steps(out: Bytes, at: int, fifth: int | None, steps: Bytes) -> None:
    if fifth is not None:
        out[:, fifth : fifth + 4] = np.packbits(steps >> 4, axis=1, bitorder="little")
    out[:, at:] = join_nibbles(steps.reshape(-1, 2, 16))


def _decode_centred(blocks: Bytes, out: Floats, at: int, fifth: int | None, centre: int) -> None:
    out[...] = _read_steps(blocks, at, fifth)
    out -= np.float32(centre)
    out *= read_half(blocks, 0)


def _decode_offset(blocks: Bytes, out: Floats, at: int, fifth: int | None) -> None:
    out[...] = _read_steps(blocks, at, fifth)
    out *= read_half(blocks, 0)
    out += read_half(blocks, 2)


def _encode_centred(values: Floats, out: Bytes, at: int, fifth: int | None, centre: int) -> None:
    # The element of largest magnitude gets step 0, the one end that has no mirror image, so the
    # scale's sign is opposite to that element's.
    scale = first_extreme(values, axis=1) / np.float32(-centre)
    write_half(out, 0, scale)
    steps = values * inverse(scale)[:, None]
    steps += np.float32(centre + 0.5)
    _write_steps(out, at, fifth, clip_whole(steps, 0, 2 * centre - 1).astype(np.uint8))


def _encode_offset(values: Floats, out: Bytes, at: int, fifth: int | None, top: int) -> None:
    # Which of -0 and +0 is the extreme one is open: adding zero makes it +0.
    low = values.min(axis=1) + np.float32(0)
    high = values.max(axis=1) + np.float32(0)
    scale = (high - low) / np.float32(top)
    write_half(out, 0, scale)
    write_half(out, 2, low)
    steps = (values - low[:, None]) * inverse(scale)[:, None]
    steps += np.float32(0.5)
    _write_steps(out, at, fifth, clip_whole(steps, 0, top).astype(np.uint8))


def decode_q4_0(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 18]`` into ``float32 [n, 32]``."""
    _decode_centred(blocks, out, 2, None, 8)


def encode_q4_0(values: Floats, out: Bytes) -> None:
    """Put the element of largest magnitude on step 0 of 16."""
    _encode_centred(values, out, 2, None, 8)


def decode_q4_1(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 20]`` into ``float32 [n, 32]``."""
    _decode_offset(blocks, out, 4, None)


def encode_q4_1(values: Floats, out: Bytes) -> None:
    """Spread 16 steps from the smallest to the largest element."""
    _encode_offset(values, out, 4, None, 15)


def decode_q5_0(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 22]`` into ``float32 [n, 32]``."""
    _decode_centred(blocks, out, 6, 2, 16)


def encode_q5_0(values: Floats, out: Bytes) -> None:
    """Put the element of largest magnitude on step 0 of 32."""
    _encode_centred(values, out, 6, 2, 16)


def decode_q5_1(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 24]`` into ``float32 [n, 32]``."""
    _decode_offset(blocks, out, 8, 4)


def encode_q5_1(values: Floats, out: Bytes) -> None:
    """Spread 32 steps from the smallest to the largest element."""
    _encode_offset(values, out, 8, 4, 31)
