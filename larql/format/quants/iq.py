"""Non-linear four-bit blocks, decode only: IQ4_NL (32 elements) and IQ4_XS (256).

A nibble picks one of 16 levels from a fixed table. IQ4_NL has one float16 scale for 32 elements;
IQ4_XS has eight sub-blocks of 32, whose 6-bit scales (offset by 32) are split into high bit pairs
(a little-endian word) and low nibbles.
"""

from __future__ import annotations

import numpy as np

from larql.format.quants.blocks import Bytes, Floats, read_half, split_nibbles

__all__ = ["decode_iq4_nl", "decode_iq4_xs"]

_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
_HIGH_SHIFTS = np.arange(0, 16, 2, dtype=np.uint16)


def decode_iq4_nl(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 18]`` into ``float32 [n, 32]``."""
    out[...] = _LEVELS[split_nibbles(blocks[:, 2:])].reshape(-1, 32)
    out *= read_half(blocks, 0)


def decode_iq4_xs(blocks: Bytes, out: Floats) -> None:
    """Decode ``uint8 [n, 136]`` into ``float32 [n, 256]``."""
    high = (blocks[:, 2:4].view("<u2") >> _HIGH_SHIFTS) & 3
    low = split_nibbles(blocks[:, 4:8]).swapaxes(1, 2).reshape(-1, 8)
    scale = read_half(blocks, 0) * ((low | (high << 4)).astype(np.float32) - np.float32(32))
    grouped = out.reshape(-1, 8, 32)
    grouped[...] = _LEVELS[split_nibbles(blocks[:, 8:].reshape(-1, 8, 16))].reshape(grouped.shape)
    grouped *= scale[:, :, None]
