"""How a tensor's bytes go from checkpoint to container: verbatim, or re-encoded on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from larql.errors import EncodingError, UsageError
from larql.format.encoding import ENCODINGS, Encoding
from larql.format.source.binding import Binding
from larql.format.source.checkpoint import Checkpoint

__all__ = [
    "QUANT_CHOICES",
    "Recoding",
    "choose_encoding",
    "choose_recoding",
    "fallback_notes",
    "recoded",
    "source_chunks",
    "stored_chunks",
]

QUANT_CHOICES = ("q8_0", "q4_0", "q4_k", "q6_k", "mxfp4")

# Where rows do not hold whole blocks of 256, the 32-element encoding of the next width up.
_NARROWER_BLOCK = {"q4_k": "q5_0", "q6_k": "q8_0"}
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Recoding:
    """What an operand is stored as.

    Attributes
    ----------
    encoding : Encoding
        Stored encoding.
    verbatim : bool
        Whether the checkpoint's bytes are carried as they are.
    requested : str or None
        The encoding that was asked for, where another one had to be taken.
    stored_columns : int or None
        The last extent as stored, where rows are filled up to whole blocks.
    """

    encoding: Encoding
    verbatim: bool
    requested: str | None = None
    stored_columns: int | None = None

    @property
    def fidelity(self) -> str:
        """Fidelity of the stored bytes to the source."""
        return "source-exact" if self.verbatim else "numerically-approximate"

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the stored size of an operand of some shape."""
        return self.encoding.nbytes((*shape[:-1], self.stored_columns or shape[-1]))


def choose_recoding(binding: Binding, quant: str | None) -> Recoding:
    """Choose how one operand is stored.

    Parameters
    ----------
    binding : Binding
        The operand and its tensor.
    quant : str or None
        One of ``QUANT_CHOICES`` for matrices, or None to carry every tensor verbatim. Vectors are
        always carried verbatim.

    Raises
    ------
    UsageError
        If ``quant`` is not a choice.
    """
    if quant is not None and quant not in QUANT_CHOICES:
        raise UsageError(f"--quant {quant!r}: expected one of {', '.join(QUANT_CHOICES)}")
    matrix = len(binding.shape) >= 2
    return choose_encoding(binding.source.encoding, binding.shape[-1], quant if matrix else None)


def choose_encoding(source: Encoding, columns: int, quant: str | None) -> Recoding:
    """Choose how rows of ``columns`` elements are stored that come in ``source``.

    Raises
    ------
    UsageError
        If ``quant`` is neither a choice nor None.
    """
    if quant is not None and quant not in QUANT_CHOICES:
        raise UsageError(f"--quant {quant!r}: expected one of {', '.join(QUANT_CHOICES)}")
    if quant is None or quant == source.name:
        return Recoding(source, verbatim=True)
    for name in (quant, _NARROWER_BLOCK.get(quant)):
        if name is not None and columns % ENCODINGS[name].block_elements == 0:
            chosen = ENCODINGS[name]
            requested = None if name == quant else quant
            return Recoding(chosen, verbatim=chosen == source, requested=requested)
    return Recoding(source, verbatim=True, requested=quant)


def fallback_notes(found: Iterable[tuple[str | None, str]]) -> Iterator[str]:
    """Yield what a user should know of tensors that are not stored as was asked for.

    Parameters
    ----------
    found : iterable of (str or None, str)
        Of each tensor what was asked for, where another encoding had to be taken, and that one.
    """
    counts = Counter((wanted, stored) for wanted, stored in found if wanted is not None)
    for (requested, stored), count in sorted(counts.items()):
        yield (
            f"{count} tensors are {stored} instead of {requested}, whose block does not divide "
            f"their rows"
        )


def source_chunks(checkpoint: Checkpoint, binding: Binding, size: int = 8 << 20) -> Iterator[bytes]:
    """Yield the bytes that an operand is made of, as the checkpoint has them."""
    return checkpoint.chunks(binding.source.name, size, binding.rows)


def stored_chunks(checkpoint: Checkpoint, binding: Binding, recoding: Recoding) -> Iterator[bytes]:
    """Yield an operand's stored bytes, a block of rows at a time.

    Raises
    ------
    EncodingError
        Naming the tensor, if its values cannot be encoded.
    """
    source = binding.source
    if recoding.verbatim:
        yield from source_chunks(checkpoint, binding)
        return
    columns = binding.shape[-1]
    rows_at_once = max(1, _CHUNK // (4 * columns))
    size = rows_at_once * source.encoding.row_bytes(columns)
    chunks = source_chunks(checkpoint, binding, size)
    try:
        yield from recoded(chunks, source.encoding, recoding.encoding, columns)
    except EncodingError as error:
        raise EncodingError(f"{source.file}: tensor {source.name}: {error}") from None


def recoded(
    chunks: Iterable[bytes],
    source: Encoding,
    target: Encoding,
    columns: int,
    stored_columns: int | None = None,
) -> Iterator[bytes]:
    """Encode rows anew, given some whole ones at a time, filled up with zeros to stored columns.

    Raises
    ------
    EncodingError
        If the values cannot be encoded.
    """
    import numpy as np

    from larql.format.codec import decode, encode

    row_bytes = source.row_bytes(columns)
    for chunk in chunks:
        rows = np.frombuffer(chunk, dtype=np.uint8).reshape(-1, row_bytes)
        values = decode(source, rows, columns)
        if stored_columns is not None:
            values = np.pad(values, ((0, 0), (0, stored_columns - columns)))
        yield encode(target, values).tobytes()
