"""Cutting a file of expert banks: some of its regions, of some of its entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

from larql.errors import ContainerError, UnsupportedRefusal
from larql.format.lyrw.codes import BankKind, Layout
from larql.format.lyrw.tables import Bank, BankSegment, Tables, entry_table_bytes
from larql.format.lyrw.v2 import ALIGNMENT, BankFile
from larql.format.lyrw.v2_writer import planned_regions, write_banks
from larql.format.progress import Progress
from larql.format.untrusted import chunks_at, open_regular

__all__ = ["cut_tables", "file_size", "write_cut"]


def cut_tables(
    file: BankFile, kept: Collection[tuple[int, int]], experts: tuple[int, int] | None
) -> Tables | None:
    """Return what a file's tables become; None where none of its entries is kept.

    The population stays what it was: a file of some of its entries is one of several.

    Parameters
    ----------
    file : BankFile
    kept : collection of (int, int)
        Bank and schema index of the regions that are kept. The partner of a pair is kept with it.
    experts : (int, int) or None
        Half-open range of the entries of routed banks; None: all that the file holds.

    Raises
    ------
    UnsupportedRefusal
        If regions of the file state a layout, which larql does not write.
    """
    tables = file.tables
    banks = tuple(cut for bank in tables.banks if (cut := _bank(file, bank, kept)) is not None)
    known = {bank.bank_id: bank for bank in banks}
    segments = []
    for segment in tables.segments:
        bank = known.get(segment.bank_id)
        if bank is None:
            continue
        routed = bank.kind is BankKind.ROUTED and experts is not None
        first, end = experts if routed and experts is not None else (0, bank.num_entries)
        first, end = max(first, segment.first_entry), min(end, segment.end)
        if first < end:
            segments.append(BankSegment(bank.bank_id, segment.segment_index, first, end - first))
    here = {segment.bank_id for segment in segments}
    banks = tuple(bank for bank in banks if bank.bank_id in here)
    if not banks:
        return None
    found = Tables(tables.logical_layer, banks, tuple(segments), tables.one_of_several)
    if found.one_of_several or _is_whole(found):
        return found
    # Cut from a whole: its number is the one that it has among pieces of its own width.
    routed_segment = next(s for s in segments if known[s.bank_id].kind is BankKind.ROUTED)
    number = -(-routed_segment.first_entry // routed_segment.entry_count)
    numbered = tuple(dataclasses.replace(s, segment_index=number) for s in segments)
    return Tables(tables.logical_layer, banks, numbered, one_of_several=True)


def _bank(file: BankFile, bank: Bank, kept: Collection[tuple[int, int]]) -> Bank | None:
    pairs = {s.pair_id for s in bank.schemas if (bank.bank_id, s.schema_index) in kept} - {None}
    schemas = tuple(
        s
        for s in bank.schemas
        if (bank.bank_id, s.schema_index) in kept or (s.pair_id is not None and s.pair_id in pairs)
    )
    for schema in schemas:
        if schema.layout != Layout.UNSPECIFIED:
            raise UnsupportedRefusal(
                f"{file.path}: bank {bank.bank_id}, {schema.label} states layout {schema.layout}, "
                f"which only index schema 4 can; this build writes schema 3 and cannot cut it"
            )
    return dataclasses.replace(bank, schemas=schemas) if schemas else None


def _is_whole(tables: Tables) -> bool:
    held = {segment.bank_id: 0 for segment in tables.segments}
    for segment in tables.segments:
        held[segment.bank_id] += segment.entry_count
    return all(held[bank.bank_id] == bank.num_entries for bank in tables.banks)


def file_size(file: BankFile, tables: Tables) -> int:
    """Return the bytes of the file that :func:`write_cut` would write."""
    position = len(tables.to_bytes()) + entry_table_bytes(tables)
    for bank, entry, schema in planned_regions(tables):
        extent = file.extent(bank.bank_id, entry, schema)
        position += -position % ALIGNMENT + extent.length
    return position


def write_cut(path: Path, file: BankFile, tables: Tables, progress: Progress) -> None:
    """Write the regions of ``tables`` as another file, byte for byte.

    Parameters
    ----------
    path : Path
        The new file.
    file : BankFile
        That holds them.
    tables : Tables
        From :func:`cut_tables`.
    progress : Progress
        Told of the bytes written.

    Raises
    ------
    ContainerError
        If the file ends before a region does.
    OutputError
        If the new file cannot be written.
    """
    with (
        open_regular(file.path, ContainerError) as (descriptor, _status),
        write_banks(path, tables) as writer,
    ):
        for bank, entry, schema in planned_regions(tables):
            extent = file.extent(bank.bank_id, entry, schema)
            where = f"{extent.path}: entry {entry}"
            data = chunks_at(descriptor, extent.offset, extent.length, where, ContainerError)
            writer.region(bank.bank_id, entry, schema, data)
            progress.advance(extent.length)
