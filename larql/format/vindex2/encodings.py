"""In what encoding a VINDEX2 directory stores what comes from a checkpoint.

Without a wish for another one every number is carried exactly: as f16 where the checkpoint has all
its matrices in f16, else as f32, which holds whatever f16, bf16 and block encodings say. So a
checkpoint that is quantised already is decoded, and grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from larql.format.encoding import ENCODINGS, Encoding
from larql.format.source.binding import Binding
from larql.format.source.extract_banks import padded_columns
from larql.format.source.pieces import BankBinding
from larql.format.source.recode import Recoding, choose_encoding
from larql.format.vindex2.layout import ATTENTION, DOWN, HEAD, UP

__all__ = ["dtype_of", "entry_recodings", "tensor_recoding"]

_REENCODED = (ATTENTION, UP, DOWN, HEAD)
_F32, _F16 = ENCODINGS["f32"], ENCODINGS["f16"]


def dtype_of(bindings: Iterable[Binding], banks: Iterable[BankBinding]) -> Encoding:
    """Return the dtype of a directory: f16 if every matrix of the checkpoint is, else f32.

    Raises
    ------
    EncodingError, UnsupportedRefusal
        If a tensor is stored in a form that this build does not decode.
    """
    found = {b.source.encoding for b in bindings if len(b.shape) > 1}
    found |= {bank.encoding for bank in banks if len(bank.shape) > 2}
    return _F16 if found == {_F16} else _F32


def tensor_recoding(
    source: Encoding, shape: tuple[int, ...], dtype: Encoding, quant: str | None, file: str
) -> Recoding:
    """Choose how a tensor of a file without a header is stored.

    Gate vectors, embeddings, norms and routers are never re-encoded: they are searched, and small.

    Raises
    ------
    UsageError
        If ``quant`` is not a choice.
    """
    plain = dtype if len(shape) > 1 or source == _F16 else _F32
    if quant is None or len(shape) != 2 or file not in _REENCODED:
        return Recoding(plain, verbatim=plain == source)
    chosen = choose_encoding(source, shape[-1], quant)
    if chosen.encoding.is_block:
        return chosen
    return Recoding(plain, verbatim=plain == source, requested=chosen.requested)


def entry_recodings(
    sources: Sequence[tuple[Encoding, int]], dtype: Encoding, quant: str | None, *, padded: bool
) -> tuple[Recoding, ...]:
    """Choose how the matrices of a layer file are stored, which has one encoding for all.

    Parameters
    ----------
    sources : sequence of (Encoding, int)
        Encoding and columns of each.
    dtype : Encoding
    quant : str or None
    padded : bool
        Whether rows may be filled up to whole blocks where that takes no more bytes than the next
        wider encoding.

    Raises
    ------
    UsageError
        If ``quant`` is not a choice.
    """
    wanted = [choose_encoding(dtype, columns, quant) for _, columns in sources]
    stored = [None] * len(sources) if quant is None else [
        padded_columns(ENCODINGS[quant], choice.encoding, columns)
        if padded and choice.requested is not None
        else None
        for choice, (_, columns) in zip(wanted, sources, strict=True)
    ]  # fmt: skip
    encodings = {
        ENCODINGS[str(quant)] if columns is not None else choice.encoding
        for choice, columns in zip(wanted, stored, strict=True)
    }
    encoding = _one_for_all(encodings, [columns for _, columns in sources], dtype)
    requested = quant if quant is not None and encoding.name != quant else None
    return tuple(
        Recoding(
            encoding,
            verbatim=encoding == source and filled is None,
            requested=requested,
            stored_columns=filled if encoding.name == quant else None,
        )
        for (source, _), filled in zip(sources, stored, strict=True)
    )


def _one_for_all(found: set[Encoding], columns: Sequence[int], dtype: Encoding) -> Encoding:
    """Return the smallest wider encoding that fits all rows, of those that some of them have."""
    if len(found) == 1:
        return next(iter(found))
    fitting = [
        enc for enc in found if enc.is_block and not any(n % enc.block_elements for n in columns)
    ]
    return min(fitting, key=lambda enc: enc.bits_per_weight, default=dtype)
