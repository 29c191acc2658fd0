"""Plain floats: f32, f16 and bf16, little-endian."""

from __future__ import annotations

import numpy as np

from larql.format.quants.blocks import Bytes, Floats

__all__ = ["decode_bf16", "decode_f16", "decode_f32", "encode_bf16", "encode_f16", "encode_f32"]


def decode_f32(blocks: Bytes, out: Floats) -> None:
    """Copy float32 bits, NaN payloads included."""
    out[...] = blocks.view("<f4")


def encode_f32(values: Floats, out: Bytes) -> None:
    """Copy float32 bits, NaN payloads included."""
    out.view("<f4")[...] = values


def decode_f16(blocks: Bytes, out: Floats) -> None:
    """Widen float16, which is exact."""
    out[...] = blocks.view("<f2")


def encode_f16(values: Floats, out: Bytes) -> None:
    """Round to the nearest float16, ties to even; overflow is infinity, NaN becomes 0x7e00."""
    half = values.astype("<f2")
    half[np.isnan(values)] = np.nan
    out.view("<f2")[...] = half


def decode_bf16(blocks: Bytes, out: Floats) -> None:
    """Put 16 zero bits below each bfloat16, which is exact."""
    np.left_shift(blocks.view("<u2"), np.uint32(16), out=out.view(np.uint32))


def encode_bf16(values: Floats, out: Bytes) -> None:
    """Round to the nearest bfloat16, ties to even; overflow is infinity, NaN becomes 0x7fc0."""
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    rounded[np.isnan(values)] = 0x7FC0
    out.view("<u2")[...] = rounded
