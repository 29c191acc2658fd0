"""Writing layer files: the experts of a layer, or its dense network as one entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from larql.errors import CompileError
from larql.format.encoding import Encoding
from larql.format.lyrw.v1_writer import write_layer
from larql.format.segment import hash_file
from larql.format.source.binding import Binding
from larql.format.source.checkpoint import Checkpoint
from larql.format.source.extract_banks import entry_chunks
from larql.format.source.pieces import BankBinding
from larql.format.source.recode import Recoding, stored_chunks
from larql.format.vindex2.encodings import entry_recodings

__all__ = ["bank_vector_chunks", "write_dense_entry", "write_experts"]


class _NoDigest:
    """Takes bytes whose hash nobody asks for."""

    def update(self, _data: bytes) -> None:
        """Do nothing."""


def _halves(chunks: Iterator[bytes], rows: int) -> Iterator[bytes]:
    """Yield the even rows of a matrix, then the odd ones."""
    import numpy as np

    data = np.frombuffer(b"".join(chunks), np.uint8).reshape(rows, -1)
    yield np.ascontiguousarray(data[0::2]).tobytes()
    yield np.ascontiguousarray(data[1::2]).tobytes()


def write_experts(
    path: Path,
    checkpoint: Checkpoint,
    banks: Mapping[str, BankBinding],
    dtype: Encoding,
    quant: str | None,
    noted: list[Recoding],
    *,
    interleaved: bool,
) -> str:
    """Write the experts of one layer, one matrix at a time, and return the file's sha256.

    Parameters
    ----------
    path : Path
        The file to create.
    checkpoint : Checkpoint
    banks : mapping
        By part: ``gate`` and ``up``, or ``gate_up``; and ``down``.
    dtype : Encoding
        Of a directory that is not re-encoded.
    quant : str or None
    noted : list of Recoding
        Given how each matrix is stored.
    interleaved : bool
        Whether the rows of ``gate_up`` are of gate and up in turn.

    Raises
    ------
    CompileError
        If the parts are of different populations, naming both counts.
    EncodingError, SourceError
        If a matrix cannot be read or encoded.
    """
    down = banks["down"]
    for name, bank in banks.items():
        if bank.shape[0] != down.shape[0]:
            raise CompileError(
                f"layer {down.layer}: {name} is there of {bank.shape[0]} experts and down of "
                f"{down.shape[0]}; a layer must have all of its experts"
            )
    recodings = dict(
        zip(
            banks,
            entry_recodings(
                [(bank.encoding, bank.columns) for bank in banks.values()], dtype, quant,
                padded=True,
            ),
            strict=True,
        )
    )  # fmt: skip
    for recoding in recodings.values():
        noted.extend([recoding] * down.shape[0])

    def part(name: str, entry: int) -> Iterator[bytes]:
        return entry_chunks(checkpoint, banks[name], entry, recodings[name], _NoDigest())

    with write_layer(
        path, recodings["down"].encoding, num_entries=down.shape[0], intermediate=down.columns,
        hidden=down.rows,
    ) as writer:  # fmt: skip
        for entry in range(down.shape[0]):
            if "gate_up" not in banks:
                writer.entry(part("gate", entry), part("up", entry), part("down", entry))
                continue
            both = part("gate_up", entry)
            if interleaved:
                both = _halves(both, banks["gate_up"].rows)
            writer.fused_entry(both, part("down", entry))
    return hash_file(path).sha256


def write_dense_entry(
    path: Path,
    checkpoint: Checkpoint,
    bindings: Mapping[str, Binding],
    dtype: Encoding,
    quant: str | None,
    noted: list[Recoding],
) -> str:
    """Write the dense network of one layer as one entry, and return the file's sha256.

    Parameters
    ----------
    bindings : mapping
        By part: ``gate``, ``up`` and ``down``.
    path, checkpoint, dtype, quant, noted
        As for :func:`write_experts`.

    Raises
    ------
    EncodingError, SourceError
        If a matrix cannot be read or encoded.
    """
    parts = ("gate", "up", "down")
    recodings = entry_recodings(
        [(bindings[p].source.encoding, bindings[p].shape[-1]) for p in parts], dtype, quant,
        padded=False,
    )  # fmt: skip
    noted.extend(recodings)
    hidden, intermediate = bindings["down"].shape
    with write_layer(
        path, recodings[0].encoding, num_entries=1, intermediate=intermediate, hidden=hidden
    ) as writer:
        writer.entry(
            *(
                stored_chunks(checkpoint, bindings[p], recoding)
                for p, recoding in zip(parts, recodings, strict=True)
            )
        )
    return hash_file(path).sha256


def bank_vector_chunks(
    checkpoint: Checkpoint, bank: BankBinding, encoding: Encoding, *, interleaved: bool
) -> Iterator[bytes]:
    """Yield the vectors of a layer's experts, one expert after another."""
    recoding = Recoding(encoding, verbatim=encoding == bank.encoding)
    for entry in range(bank.shape[0]):
        chunks = entry_chunks(checkpoint, bank, entry, recoding, _NoDigest())
        yield from _halves(chunks, bank.columns) if interleaved else chunks
