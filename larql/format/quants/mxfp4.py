"""MXFP4: 32 four-bit floats (E2M1) that share one power-of-two scale (E8M0).

Element values are 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives; the scale byte ``e`` means
``2 ** (e - 127)``, and 255 means NaN (OCP Microscaling Formats specification 1.0). As in ggml the
code of negative zero decodes to zero.

Two orders of the 16 nibble bytes exist. GGUF puts ``e`` first, then byte ``j`` holds elements ``j``
(low) and ``j + 16`` (high). Checkpoints keep scales in a tensor of their own, and byte ``j`` holds
elements ``2 j`` (low) and ``2 j + 1`` (high).
"""

from __future__ import annotations

import numpy as np

from larql.format.quants.blocks import BlockError, Bytes, Floats, join_nibbles, split_nibbles

__all__ = ["decode_mxfp4", "encode_mxfp4", "repack", "unpack"]

_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_MIDPOINTS = np.array([0.5, 1.5, 2.5, 3.5, 5, 7, 10], np.float32)
"""Between neighbouring magnitudes of the doubled table; a value on one goes to the smaller."""
_HALF_SCALES = np.ldexp(np.float32(1), np.arange(-128, 128, dtype=np.int32))
"""Half the value of each scale byte, to meet the doubled table."""


def _check_scales(scales: Bytes) -> None:
    bad = scales == 255
    if bad.any():
        raise BlockError(
            int(np.argmax(bad)), "its scale byte is 255, which is no number; expected 0 to 254"
        )


def decode_mxfp4(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 17]`` into ``float32 [n, 32]``; refuse a scale of 255."""
    _check_scales(blocks[:, 0])
    out[...] = _DOUBLED[split_nibbles(blocks[:, 1:])].reshape(-1, 32)
    out *= _HALF_SCALES[blocks[:, :1]]


def encode_mxfp4(values: Floats, out: Bytes) -> None:
    """Encode ``float32 [n, 32]`` into ``uint8 [n, 17]``.

    The scale's exponent is that of the largest magnitude less two, so that the magnitude lands in
    ``[4, 8)``, and above 6 is clipped to 6; each element goes to the nearest value.
    """
    largest = np.abs(values).max(axis=1)
    _, exponent = np.frexp(largest)
    scales = np.where(largest > 0, np.clip(exponent + (127 - 3), 0, 254), 0)
    out[:, 0] = scales
    bounds = _HALF_SCALES[scales][:, None] * _MIDPOINTS
    magnitude = np.abs(values)
    codes = np.zeros(values.shape, np.uint8)
    for level in range(_MIDPOINTS.size):
        codes += magnitude > bounds[:, level, None]
    codes |= ((values < 0) & (codes > 0)).astype(np.uint8) << 3
    out[:, 1:] = join_nibbles(codes.reshape(-1, 2, 16))


def repack(nibbles: Bytes, scales: Bytes, out: Bytes) -> None:
    """Turn checkpoint nibbles ``[n, 16]`` and scales ``[n]`` into GGUF blocks ``[n, 17]``.

    Every bit of the input is kept, the code of negative zero included; a scale of 255 is refused.
    """
    _check_scales(scales)
    out[:, 0] = scales
    in_order = split_nibbles(nibbles).swapaxes(1, 2).reshape(-1, 2, 16)
    out[:, 1:] = join_nibbles(in_order)


def unpack(blocks: Bytes, nibbles: Bytes, scales: Bytes) -> None:
    """Undo :func:`repack`: GGUF blocks ``[n, 17]`` into nibbles ``[n, 16]`` and scales ``[n]``."""
    scales[...] = blocks[:, 0]
    halves = split_nibbles(blocks[:, 1:]).reshape(-1, 16, 2).swapaxes(1, 2)
    nibbles[...] = join_nibbles(halves)
