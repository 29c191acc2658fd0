"""Writing the banks of routed experts: one file for each layer, one region at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from larql.errors import CompileError, EncodingError, LarqlError
from larql.format.banks import BANK_SCHEMA, region_name
from larql.format.encoding import ENCODINGS, Encoding
from larql.format.index import FileEntry, Representation, SourceBinding
from larql.format.lyrw.codes import BankKind, Role, format_code, packing_of
from larql.format.lyrw.tables import Bank, BankSegment, RegionSchema, Tables
from larql.format.lyrw.v2 import bank_file_name
from larql.format.lyrw.v2_writer import write_banks
from larql.format.moe.from_graph import ROUTED_BANK
from larql.format.progress import Progress
from larql.format.rows import RowSelection, row_count
from larql.format.segment import hash_file
from larql.format.source.checkpoint import Checkpoint
from larql.format.source.pieces import BankBinding, piece_chunks
from larql.format.source.recode import Recoding, choose_encoding, recoded

__all__ = [
    "bank_file_of",
    "bank_recoding",
    "bank_representation",
    "entry_chunks",
    "padded_columns",
    "write_layer_banks",
]

Digest = Any  # hashlib's objects have no public type

_READABLE = 16  # logical columns of padded rows are a multiple, or no production kernel reads them


def bank_file_of(binding: BankBinding) -> str:
    """Return the file that holds an operand's regions."""
    return bank_file_name(binding.layer, component=binding.component)


def bank_recoding(binding: BankBinding, quant: str | None) -> Recoding:
    """Choose how the experts of one operand are stored; vectors are carried as they are.

    Where blocks do not divide the rows, these are filled up to whole blocks if that takes no more
    bytes than what would be stored instead.

    Raises
    ------
    EncodingError, UnsupportedRefusal
        As :attr:`BankBinding.encoding`.
    """
    matrix = len(binding.shape) == 3
    chosen = choose_encoding(binding.encoding, binding.columns, quant if matrix else None)
    if chosen.requested is None:
        return chosen
    wanted = ENCODINGS[chosen.requested]
    stored = padded_columns(wanted, chosen.encoding, binding.columns)
    return chosen if stored is None else Recoding(wanted, verbatim=False, stored_columns=stored)


def padded_columns(wanted: Encoding, instead: Encoding, columns: int) -> int | None:
    """Return how far rows are filled up for an encoding; None where another one is smaller."""
    stored = -(-columns // wanted.block_elements) * wanted.block_elements
    smaller = wanted.row_bytes(stored) <= instead.row_bytes(columns)
    return stored if smaller and columns % _READABLE == 0 else None


def bank_representation(binding: BankBinding, recoding: Recoding, sha256: str) -> Representation:
    """Return what the index says of one operand."""
    exact = "source-equivalent" if binding.turned else "source-exact"
    return Representation(
        id=binding.operand,
        operand=binding.operand,
        encoding=recoding.encoding,
        fidelity=exact if recoding.verbatim else recoding.fidelity,
        shape=binding.shape,
        segment=bank_file_of(binding),
        tensor=region_name(ROUTED_BANK, binding.number),
        source=_source(binding, sha256),
        requested=recoding.requested,
        stored_columns=recoding.stored_columns,
    )


def _source(binding: BankBinding, sha256: str) -> SourceBinding:
    first = binding.pieces[0]
    values, second = first.sources[0], first.sources[1].name if len(first.sources) > 1 else None
    scales, behind = (None, second) if first.form == "stacked" else (second, None)
    encoding = binding.encoding.name
    if any(piece.sources != first.sources for piece in binding.pieces):
        # Each entry has tensors of its own, which the name's placeholder tells apart.
        shape = None if values.shape == binding.shape[1:] else values.shape
        return SourceBinding(binding.source, encoding, sha256, None, shape, first.form, scales)
    shape = None if values.shape == binding.shape else values.shape
    return SourceBinding(
        values.name, encoding, sha256, _rows(binding), shape, first.form, scales, behind=behind
    )


def _rows(binding: BankBinding) -> RowSelection | None:
    """Return which rows of one tensor the entries are, each a run; None where it is all."""
    spans = [piece.rows[0] for piece in binding.pieces]
    first, length = spans[0].first, spans[0].count
    stride = spans[1].first - first if len(spans) > 1 else length
    found = RowSelection(first, length, stride, len(spans))
    if found.spans() != [(rows.first, rows.count) for rows in spans]:
        raise CompileError(
            f"{binding.source}: the experts of {binding.operand} do not lie at equal distances"
        )
    return None if found.count == row_count(binding.pieces[0].sources[0].shape) else found


def entry_chunks(
    checkpoint: Checkpoint, binding: BankBinding, entry: int, recoding: Recoding, digest: Digest
) -> Iterator[bytes]:
    """Yield the stored bytes of one expert's region; ``digest`` is given those of the checkpoint.

    Raises
    ------
    EncodingError
        Naming the operand, if its values cannot be encoded.
    """
    chunks = piece_chunks(
        checkpoint, binding.pieces[entry], binding.rows, binding.columns, digest.update
    )
    if recoding.verbatim:
        yield from chunks
        return
    try:
        yield from recoded(
            chunks, binding.encoding, recoding.encoding, binding.columns, recoding.stored_columns
        )
    except LarqlError as error:
        raise EncodingError(f"{binding.operand}, expert {entry}: {error}") from None


def _tables(bindings: Sequence[BankBinding], recodings: Mapping[str, Recoding]) -> Tables:
    down = next(b for b in bindings if b.role == Role.DOWN)
    population = down.shape[0]
    schemas = tuple(
        RegionSchema(
            b.number,
            b.role,
            format_code(recodings[b.operand].encoding),
            packing_of(recodings[b.operand].encoding),
            b.rows,
            recodings[b.operand].stored_columns or b.columns,
        )
        for b in bindings
    )
    bank = Bank(
        ROUTED_BANK, BankKind.ROUTED, population, down.rows, down.columns, down.rows, schemas
    )
    return Tables(down.layer, (bank,), (BankSegment(ROUTED_BANK, 0, 0, population),))


def write_layer_banks(
    directory: Path,
    checkpoint: Checkpoint,
    bindings: Sequence[BankBinding],
    recodings: Mapping[str, Recoding],
    progress: Progress,
) -> tuple[str, FileEntry, dict[str, str]]:
    """Write the bank of one layer.

    Parameters
    ----------
    directory : Path
        The container; ``routed/`` in it exists.
    checkpoint : Checkpoint
    bindings : sequence of BankBinding
        Those of one layer, in the order of their schemas.
    recodings : mapping
        By operand.
    progress : Progress
        Told of the bytes written.

    Returns
    -------
    tuple
        The file's name, its entry for the index, and by operand the sha256 of its bytes in the
        checkpoint, expert after expert.

    Raises
    ------
    CompileError, EncodingError, SourceError
        If a region cannot be read or encoded.
    """
    name = bank_file_of(bindings[0])
    tables = _tables(bindings, recodings)
    if len({b.shape[0] for b in bindings}) != 1:
        raise CompileError(f"{name}: the operands of a bank are of different populations")
    digests: dict[str, Digest] = {b.operand: hashlib.sha256() for b in bindings}
    (bank,) = tables.banks
    with write_banks(directory / name, tables) as writer:
        for entry in range(bank.num_entries):
            for binding, schema in zip(bindings, bank.schemas, strict=True):
                recoding = recodings[binding.operand]
                digest = digests[binding.operand]
                writer.region(
                    ROUTED_BANK,
                    entry,
                    schema,
                    entry_chunks(checkpoint, binding, entry, recoding, digest),
                )
                progress.advance(schema.nbytes or 0)
    written = hash_file(directory / name)
    entry_of_file = FileEntry(written.size, written.sha256, {"schema": BANK_SCHEMA})
    return name, entry_of_file, {key: digest.hexdigest() for key, digest in digests.items()}
