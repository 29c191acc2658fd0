"""What the encodings share: float16 scales, nibble order, rounding, and how a block is rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "BlockError",
    "Bytes",
    "Decoder",
    "Encoder",
    "Floats",
    "bit_field",
    "clip_whole",
    "first_extreme",
    "inverse",
    "join_nibbles",
    "read_half",
    "round_half_away",
    "split_nibbles",
    "write_half",
]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]
Decoder: TypeAlias = Callable[[Bytes, Floats], None]
Encoder: TypeAlias = Callable[[Floats, Bytes], None]


class BlockError(Exception):
    """A block that cannot be decoded or encoded; the caller knows its row and tells the user.

    Attributes
    ----------
    index : int
        Position of the block in the batch.
    reason : str
        What is wrong with it, and what to do.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason


def read_half(blocks: Bytes, at: int) -> Floats:
    """Return the float16 at byte ``at`` of each block as float32 ``[n, 1]``."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def write_half(blocks: Bytes, at: int, values: Floats) -> Floats:
    """Store ``values [n]`` as float16 at byte ``at`` of each block.

    Returns
    -------
    ndarray of float32, shape [n]
        The values as a reader will see them, rounded to float16.

    Raises
    ------
    BlockError
        For the first value that is not finite in float16: the block would decode to no number.
    """
    half = values.astype("<f2")
    bad = ~np.isfinite(half)
    if bad.any():
        raise BlockError(
            int(np.argmax(bad)), "values too large for its float16 scale; use bf16 or f32"
        )
    blocks[:, at : at + 2] = half[:, None].view(np.uint8)
    return half.astype(np.float32)


def bit_field(packed: Bytes, shift: int | Bytes, width: int) -> Bytes:
    """Return ``width`` bits of each byte, from bit ``shift`` up."""
    field: Bytes = np.right_shift(packed, shift)
    field &= np.uint8((1 << width) - 1)
    return field


def split_nibbles(packed: Bytes) -> Bytes:
    """Turn bytes ``[..., m]`` into nibbles ``[..., 2, m]``: all low halves, then all high ones."""
    out = np.empty((*packed.shape[:-1], 2, packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0, :])
    np.right_shift(packed, 4, out=out[..., 1, :])
    return out


def join_nibbles(nibbles: Bytes) -> Bytes:
    """Undo :func:`split_nibbles`: low four bits of ``[..., 2, m]`` into bytes ``[..., m]``."""
    packed: Bytes = np.left_shift(nibbles[..., 1, :], 4)
    packed |= nibbles[..., 0, :] & 15
    return packed


def round_half_away(values: Floats) -> Floats:
    """Round to whole numbers, halves away from zero, as C's ``roundf`` does."""
    whole = np.trunc(values)
    whole += np.copysign(np.abs(values - whole) >= 0.5, values)
    return whole


def clip_whole(values: Floats, low: int, high: int) -> Floats:
    """Clip in place to ``[low, high]``; NaN, from a scale too small to invert, becomes ``low``."""
    np.fmax(values, np.float32(low), out=values)
    return np.fmin(values, np.float32(high), out=values)


def inverse(scale: Floats) -> Floats:
    """Return ``1 / scale``, or zero where the scale is zero or too small to invert."""
    out: Floats = np.divide(np.float32(1), scale)
    out[np.isinf(out)] = 0
    return out


def first_extreme(values: Floats, axis: int) -> Floats:
    """Return the signed value of largest magnitude along an axis, the first of equals."""
    at = np.expand_dims(np.argmax(np.abs(values), axis=axis), axis)
    # Adding zero turns -0 into +0: a stored scale must not hang on a zero's sign.
    return np.take_along_axis(values, at, axis=axis).squeeze(axis) + np.float32(0)
