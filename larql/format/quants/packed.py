"""Packed rows: the blocks of 16 rows interleaved, so that one vector holds the same word of each.

Rows are cut into slabs of 16; slab ``s`` holds rows ``16 s`` to ``16 s + 15`` and takes the bytes
of as many plain rows. In a slab, block column after block column, stand the 16 rows' blocks:

1. each float16 of the block (``d``, then ``m`` or ``dmin``) as 16 of them, row after row;
2. then each word of what is left as 16 of them, row after row, in the order of :data:`_FIELDS`. A
   word has 32 bits, of Q8_0, whose steps are bytes, 8.

The 32 fifth bits of Q5_0 and Q5_1 are rewritten on the way, with bit ``k`` at bit
``8 * (k % 4) + k // 4``. All of it is a bijection of the stored bytes: nothing is rounded, and any
bytes come back.

Private: use :mod:`larql.format.codec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from larql.format.encoding import Encoding
from larql.format.quants.blocks import Bytes

__all__ = ["gather", "pack", "unpack"]

_HALF = 2


@dataclass(frozen=True)
class _Fields:
    """Where a block's float16s and words are, in the order in which a slab stores them.

    Attributes
    ----------
    halves : tuple of int
        Byte at which each float16 begins.
    words : tuple of (int, int)
        First byte and number of each run of words.
    word : int
        Bytes of a word.
    fifth_bits : bool
        Whether the first word holds fifth bits.
    """

    halves: tuple[int, ...]
    words: tuple[tuple[int, int], ...]
    word: int = 4
    fifth_bits: bool = False

    @property
    def order(self) -> npt.NDArray[np.intp]:
        """Positions in the block of the bytes in the order in which they are stored."""
        runs = [np.arange(at, at + _HALF) for at in self.halves]
        runs += [np.arange(at, at + self.word * count) for at, count in self.words]
        return np.concatenate(runs)


_FIELDS: Mapping[str, _Fields] = MappingProxyType(
    {
        "q8_0": _Fields((0,), ((2, 32),), word=1),
        "q4_0": _Fields((0,), ((2, 4),)),
        "q4_1": _Fields((0, 2), ((4, 4),)),
        "q5_0": _Fields((0,), ((2, 1), (6, 4)), fifth_bits=True),
        "q5_1": _Fields((0, 2), ((4, 1), (8, 4)), fifth_bits=True),
        "q4_k": _Fields((0, 2), ((4, 3), (16, 32))),
        "q5_k": _Fields((0, 2), ((4, 3), (16, 8), (48, 32))),
        "q6_k": _Fields((208,), ((192, 4), (0, 32), (128, 16))),
    }
)
"""By the name of the encoding whose rows are packed."""


def pack(enc: Encoding, rows: Bytes) -> Bytes:
    """Interleave whole slabs of rows.

    Parameters
    ----------
    enc : Encoding
        The packed encoding.
    rows : ndarray of uint8, shape [16 * n, row_bytes]
        Rows in ``enc.unpacked``.

    Returns
    -------
    ndarray of uint8, shape [16 * n, row_bytes]
        The slabs, one after another.
    """
    fields = _FIELDS[enc.unpacked or enc.name]
    slabs, columns = len(rows) // enc.slab_rows, rows.shape[1] // enc.block_bytes
    blocks = rows.reshape(slabs, enc.slab_rows, columns, enc.block_bytes)
    ordered = blocks[..., fields.order].swapaxes(1, 2)
    split = _HALF * len(fields.halves)
    out = np.empty((slabs, columns, enc.slab_rows * enc.block_bytes), np.uint8)
    halves, words = _views(enc, fields, out)
    halves.swapaxes(2, 3)[...] = ordered[..., :split].reshape(halves.swapaxes(2, 3).shape)
    words.swapaxes(2, 3)[...] = ordered[..., split:].reshape(words.swapaxes(2, 3).shape)
    if fields.fifth_bits:
        words[:, :, 0] = _exchange_bits(words[:, :, 0], 8, 4)
    return out.reshape(rows.shape)


def unpack(enc: Encoding, slabs: Bytes) -> Bytes:
    """Undo :func:`pack`.

    Parameters
    ----------
    enc : Encoding
        The packed encoding.
    slabs : ndarray of uint8, shape [16 * n, row_bytes]
        Whole slabs.

    Returns
    -------
    ndarray of uint8, shape [16 * n, row_bytes]
        Rows in ``enc.unpacked``.
    """
    fields = _FIELDS[enc.unpacked or enc.name]
    halves, words = _views(enc, fields, _by_column(enc, slabs))
    order = (0, 3, 1, 2, 4)
    return _rows(enc, fields, halves.transpose(order), words.transpose(order)).reshape(slabs.shape)


def gather(enc: Encoding, slabs: Bytes, ids: npt.NDArray[np.intp]) -> Bytes:
    """Take single rows out of slabs, reading no other rows' bytes.

    Parameters
    ----------
    enc : Encoding
        The packed encoding.
    slabs : ndarray of uint8, shape [16 * n, row_bytes]
        Whole slabs.
    ids : ndarray of intp, shape [m]
        Rows, each in ``[0, 16 * n)``.

    Returns
    -------
    ndarray of uint8, shape [m, row_bytes]
        Those rows in ``enc.unpacked``.
    """
    fields = _FIELDS[enc.unpacked or enc.name]
    halves, words = _views(enc, fields, _by_column(enc, slabs))
    slab, row = np.divmod(ids, enc.slab_rows)
    return _rows(enc, fields, halves[slab, :, :, row], words[slab, :, :, row])


def _by_column(enc: Encoding, slabs: Bytes) -> Bytes:
    # [slabs, block columns, bytes of 16 blocks]
    columns = slabs.shape[1] // enc.block_bytes
    count = len(slabs) // enc.slab_rows
    return slabs.reshape(count, columns, enc.slab_rows * enc.block_bytes)


def _views(enc: Encoding, fields: _Fields, packed: Bytes) -> tuple[Bytes, Bytes]:
    # The float16s [slabs, columns, halves, 16, 2] and words [slabs, columns, words, 16, size].
    split = enc.slab_rows * _HALF * len(fields.halves)
    lead = packed.shape[:2]
    halves = packed[..., :split].reshape(*lead, len(fields.halves), enc.slab_rows, _HALF)
    count = (packed.shape[2] - split) // (enc.slab_rows * fields.word)
    return halves, packed[..., split:].reshape(*lead, count, enc.slab_rows, fields.word)


def _rows(enc: Encoding, fields: _Fields, halves: Bytes, words: Bytes) -> Bytes:
    # Blocks of rows, [..., columns, halves, 2] and [..., columns, words, size], put together.
    lead, split = halves.shape[:-2], _HALF * len(fields.halves)
    words = words.copy()
    if fields.fifth_bits:
        words[..., 0, :] = _exchange_bits(words[..., 0, :], 4, 8)
    blocks = np.empty((*lead, enc.block_bytes), np.uint8)
    blocks[..., fields.order[:split]] = halves.reshape(*lead, split)
    blocks[..., fields.order[split:]] = words.reshape(*lead, enc.block_bytes - split)
    return blocks.reshape(*lead[:-1], lead[-1] * enc.block_bytes)


def _exchange_bits(words: Bytes, outer: int, inner: int) -> Bytes:
    # Bit inner * a + b of each word goes to bit outer * b + a: a transposition of its 32 bits.
    bits = np.unpackbits(words, axis=-1, bitorder="little")
    crossed = bits.reshape(*words.shape[:-1], outer, inner).swapaxes(-1, -2)
    return np.packbits(crossed.reshape(bits.shape), axis=-1, bitorder="little")
