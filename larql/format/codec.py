"""Decode stored bytes to float32 and encode float32 to stored bytes, one row or many.

This is the plain definition of every encoding, vectorised with NumPy: kernels are held against it.
Decoded floats equal those of ggml's ``dequantize_row_*`` bit for bit (NaN payloads aside), and
NaN or infinity in a stored scale comes out as NaN or infinity. The geometry lives in
:mod:`larql.format.encoding` and is exported here again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from larql.errors import EncodingError, UnsupportedRefusal
from larql.format.encoding import (
    ENCODINGS,
    Encoding,
    encodable_names,
    encoding,
    from_ggml_type,
    packed_form,
)
from larql.format.quants import floats, iq, kquants, kquants_encode, legacy, mxfp4, packed
from larql.format.quants.blocks import BlockError, Decoder, Encoder

__all__ = [
    "ENCODINGS",
    "Encoding",
    "decode",
    "decode_mxfp4_checkpoint",
    "encodable_names",
    "encode",
    "encoding",
    "from_ggml_type",
    "pack",
    "packed_form",
    "repack_mxfp4_checkpoint",
    "take_rows",
    "unpack",
]

_BATCH_ELEMENTS = 65536
"""Elements worked on at once: temporaries stay in cache, whatever the size of the tensor."""


@dataclass(frozen=True)
class _Codec:
    decode: Decoder
    encode: Encoder | None


_CODECS: Mapping[str, _Codec] = MappingProxyType(
    {
        "f32": _Codec(floats.decode_f32, floats.encode_f32),
        "f16": _Codec(floats.decode_f16, floats.encode_f16),
        "bf16": _Codec(floats.decode_bf16, floats.encode_bf16),
        "q8_0": _Codec(legacy.decode_q8_0, legacy.encode_q8_0),
        "q4_0": _Codec(legacy.decode_q4_0, legacy.encode_q4_0),
        "q4_1": _Codec(legacy.decode_q4_1, legacy.encode_q4_1),
        "q5_0": _Codec(legacy.decode_q5_0, legacy.encode_q5_0),
        "q5_1": _Codec(legacy.decode_q5_1, legacy.encode_q5_1),
        "q2_k": _Codec(kquants.decode_q2_k, None),
        "q3_k": _Codec(kquants.decode_q3_k, None),
        "q4_k": _Codec(kquants.decode_q4_k, kquants_encode.encode_q4_k),
        "q5_k": _Codec(kquants.decode_q5_k, kquants_encode.encode_q5_k),
        "q6_k": _Codec(kquants.decode_q6_k, kquants_encode.encode_q6_k),
        "iq4_nl": _Codec(iq.decode_iq4_nl, None),
        "iq4_xs": _Codec(iq.decode_iq4_xs, None),
        "mxfp4": _Codec(mxfp4.decode_mxfp4, mxfp4.encode_mxfp4),
    }
)


def decode(enc: Encoding, data: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.float32]:
    """Decode rows of stored bytes.

    Parameters
    ----------
    enc : Encoding
        How the rows are stored.
    data : ndarray of uint8, shape [..., row_bytes]
        Stored rows; read only, and need not be contiguous (then the stored bytes are copied once).
        Of a packed encoding ``[..., 16 * n, row_bytes]``, whole slabs.
    columns : int
        Elements of a row.

    Returns
    -------
    ndarray of float32, shape [..., columns]
        Newly allocated. Besides it, working memory does not grow with the number of rows, so a
        caller who must not hold a whole tensor as float32 decodes it a few rows at a time.

    Raises
    ------
    EncodingError
        If ``columns`` is not a whole number of blocks, a row is not ``row_bytes`` long, a slab is
        cut, or a block holds no numbers (an MXFP4 scale of 255).
    TypeError
        If ``data`` is not uint8.
    """
    _check_rows(enc, data, columns)
    if enc.unpacked is not None:
        return _decode_slabs(enc, data, columns)
    out = np.empty((*data.shape[:-1], columns), np.float32)
    total = out.size // enc.block_elements
    blocks = np.ascontiguousarray(data).reshape(total, enc.block_bytes)
    elements = out.reshape(total, enc.block_elements)
    codec = _CODECS[enc.name]
    step = _BATCH_ELEMENTS // enc.block_elements
    with np.errstate(all="ignore"):
        for at in range(0, total, step):
            try:
                codec.decode(blocks[at : at + step], elements[at : at + step])
            except BlockError as fault:
                raise _block_error(enc, fault, at, columns) from None
    return out


def _check_rows(enc: Encoding, data: npt.NDArray[np.uint8], columns: int) -> None:
    if data.dtype != np.uint8:
        raise TypeError(f"stored bytes are uint8, not {data.dtype}")
    row_bytes = enc.row_bytes(columns)
    found = data.shape[-1] if data.ndim else 0
    if found != row_bytes:
        raise EncodingError(
            f"{enc.name}: a row has {found} bytes, expected {row_bytes} for {columns} columns; "
            "the data is cut short or its shape is wrong"
        )
    enc.nbytes((*data.shape[:-1], columns))


def _decode_slabs(
    enc: Encoding, data: npt.NDArray[np.uint8], columns: int
) -> npt.NDArray[np.float32]:
    out = np.empty((*data.shape[:-1], columns), np.float32)
    if not out.size:
        return out
    stored = np.ascontiguousarray(data).reshape(-1, data.shape[-1])
    rows, plain = out.reshape(-1, columns), _plain(enc)
    step = enc.slab_rows * max(1, _BATCH_ELEMENTS // (enc.slab_rows * columns))
    for at in range(0, len(rows), step):
        batch = slice(at, at + step)
        rows[batch] = decode(plain, packed.unpack(enc, stored[batch]), columns)
    return out


def take_rows(
    enc: Encoding,
    data: npt.NDArray[np.uint8],
    columns: int,
    ids: npt.NDArray[np.integer] | slice,
) -> tuple[Encoding, npt.NDArray[np.uint8]]:
    """Take some rows out of a tensor's stored bytes, reading no others.

    Parameters
    ----------
    enc : Encoding
        How the rows are stored.
    data : ndarray of uint8, shape [rows, row_bytes]
        The tensor's stored bytes, contiguous.
    columns : int
        Elements of a row.
    ids : ndarray of int, shape [m], or slice
        Which rows, each in ``[0, rows)``.

    Returns
    -------
    Encoding
        That of the rows, each of which stands alone: ``enc``, or what a packed one interleaves.
    ndarray of uint8, shape [m, row_bytes]

    Raises
    ------
    EncodingError, TypeError
        As :func:`decode`.
    """
    _check_rows(enc, data, columns)
    if enc.unpacked is None:
        return enc, data[ids]
    return _plain(enc), packed.gather(enc, data, np.arange(len(data))[ids])


def pack(enc: Encoding, rows: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.uint8]:
    """Interleave rows of stored bytes; no bit of them is lost, and none is rounded.

    Parameters
    ----------
    enc : Encoding
        A packed encoding.
    rows : ndarray of uint8, shape [16 * n, row_bytes]
        Rows in ``enc.unpacked``.
    columns : int
        Elements of a row.

    Returns
    -------
    ndarray of uint8, shape [16 * n, row_bytes]
        Slabs of 16 rows, one after another. A slab depends on its own rows only.

    Raises
    ------
    EncodingError
        If ``enc`` is not packed, ``columns`` is not a whole number of blocks, a row is not
        ``row_bytes`` long, or the rows are not a whole number of slabs.
    TypeError
        If ``rows`` is not uint8.
    """
    _plain(enc)
    _check_rows(enc, rows, columns)
    return packed.pack(enc, np.ascontiguousarray(rows))


def unpack(enc: Encoding, slabs: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.uint8]:
    """Undo :func:`pack`.

    Parameters
    ----------
    enc : Encoding
        A packed encoding.
    slabs : ndarray of uint8, shape [16 * n, row_bytes]
        Slabs of 16 rows, one after another.
    columns : int
        Elements of a row.

    Returns
    -------
    ndarray of uint8, shape [16 * n, row_bytes]
        Rows in ``enc.unpacked``.

    Raises
    ------
    EncodingError, TypeError
        As :func:`pack`.
    """
    _plain(enc)
    _check_rows(enc, slabs, columns)
    return packed.unpack(enc, np.ascontiguousarray(slabs))


def _plain(enc: Encoding) -> Encoding:
    if enc.unpacked is None:
        raise EncodingError(f"{enc.name}: its rows are not packed; expected a name like q8_0_r16")
    return ENCODINGS[enc.unpacked]


def encode(enc: Encoding, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Encode rows of float32 as ggml's reference quantisers do.

    Each block depends on its own elements only: rows encode to the same bytes alone or together.

    Parameters
    ----------
    enc : Encoding
        How to store the rows.
    values : ndarray of float32, shape [..., columns]
        Rows to store; need not be contiguous.

    Returns
    -------
    ndarray of uint8, shape [..., row_bytes]

    Raises
    ------
    UnsupportedRefusal
        If this build only decodes ``enc``.
    EncodingError
        If ``columns`` is not a whole number of blocks; if, for a block encoding, an element is NaN
        or infinite, or elements are too large for the block's float16 scale. Floats carry NaN and
        infinity, and overflow to infinity. Messages count rows over all leading axes.
    TypeError
        If ``values`` is not float32 or has no axis.
    """
    if values.dtype != np.float32:
        raise TypeError(f"values are float32, not {values.dtype}")
    if not values.ndim:
        raise TypeError("values are rows, not a scalar")
    codec = _CODECS.get(enc.name)
    if codec is None or codec.encode is None:
        raise UnsupportedRefusal(
            f"{enc.name}: this build reads {enc.name.upper()} but does not write it; choose one of "
            f"{', '.join(encodable_names())}"
        )
    columns = values.shape[-1]
    out = np.empty((*values.shape[:-1], enc.row_bytes(columns)), np.uint8)
    total = values.size // enc.block_elements
    elements = np.ascontiguousarray(values).reshape(total, enc.block_elements)
    blocks = out.reshape(total, enc.block_bytes)
    step = _BATCH_ELEMENTS // enc.block_elements
    with np.errstate(all="ignore"):
        for at in range(0, total, step):
            batch = elements[at : at + step]
            if enc.is_block:
                _require_finite(enc, batch, at, columns)
            try:
                codec.encode(batch, blocks[at : at + step])
            except BlockError as fault:
                raise _block_error(enc, fault, at, columns) from None
    return out


def _require_finite(
    enc: Encoding, batch: npt.NDArray[np.float32], first_block: int, columns: int
) -> None:
    bad = ~np.isfinite(batch)
    if bad.any():
        at = int(np.argmax(bad))
        row, column = divmod(first_block * enc.block_elements + at, columns)
        raise EncodingError(
            f"{enc.name}: row {row} column {column} is {batch.reshape(-1)[at]}, expected a finite "
            "value; repair the tensor, or keep it as f32, f16 or bf16"
        )


def _block_error(enc: Encoding, fault: BlockError, first_block: int, columns: int) -> EncodingError:
    row, block = divmod(first_block + fault.index, columns // enc.block_elements)
    return EncodingError(f"{enc.name}: row {row} block {block}: {fault.reason}")


def repack_mxfp4_checkpoint(
    blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """Join a checkpoint's MXFP4 nibbles and scales into rows of GGUF blocks, without loss.

    A checkpoint byte holds elements ``2 j`` (low) and ``2 j + 1`` (high), a GGUF byte elements
    ``j`` and ``j + 16``.

    Parameters
    ----------
    blocks : ndarray of uint8, shape [..., n, 16]
        Nibbles of ``n`` blocks of 32 elements.
    scales : ndarray of uint8, shape [..., n]
        Their E8M0 scales.

    Returns
    -------
    ndarray of uint8, shape [..., 17 * n]
        Rows of encoding ``mxfp4`` with ``32 * n`` columns.

    Raises
    ------
    EncodingError
        If the shapes do not belong together or a scale is 255 (NaN).
    TypeError
        If an array is not uint8.
    """
    if blocks.dtype != np.uint8 or scales.dtype != np.uint8:
        raise TypeError(f"stored bytes are uint8, not {blocks.dtype} and {scales.dtype}")
    expected = (*scales.shape, 16)
    if not scales.ndim or blocks.shape != expected:
        raise EncodingError(
            f"mxfp4: blocks have shape {list(blocks.shape)}, expected {list(expected)} to match "
            "the scales; check that both tensors belong together"
        )
    enc = ENCODINGS["mxfp4"]
    count = scales.shape[-1]
    out = np.empty((*scales.shape[:-1], count * enc.block_bytes), np.uint8)
    total = prod(scales.shape)
    nibbles = np.ascontiguousarray(blocks).reshape(total, 16)
    flat_scales = np.ascontiguousarray(scales).reshape(total)
    stored = out.reshape(total, enc.block_bytes)
    step = _BATCH_ELEMENTS // enc.block_elements
    for at in range(0, total, step):
        batch = slice(at, at + step)
        try:
            mxfp4.repack(nibbles[batch], flat_scales[batch], stored[batch])
        except BlockError as fault:
            raise _block_error(enc, fault, at, count * enc.block_elements) from None
    return out


def decode_mxfp4_checkpoint(
    blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float32]:
    """Decode a checkpoint's MXFP4 nibbles and scales.

    Parameters
    ----------
    blocks : ndarray of uint8, shape [..., n, 16]
        Nibbles of ``n`` blocks of 32 elements, neighbours in one byte.
    scales : ndarray of uint8, shape [..., n]
        Their E8M0 scales.

    Returns
    -------
    ndarray of float32, shape [..., 32 * n]

    Raises
    ------
    EncodingError, TypeError
        As :func:`repack_mxfp4_checkpoint`.
    """
    rows = repack_mxfp4_checkpoint(blocks, scales)
    return decode(ENCODINGS["mxfp4"], rows, scales.shape[-1] * 32)
