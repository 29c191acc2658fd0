"""Writing a LYRW version 2 file: tables first, then one region at a time.

The writer holds an offset and a length for each region and never a payload.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from larql.errors import ContainerError
from larql.format.lyrw.checks import check_tables
from larql.format.lyrw.codes import Layout, Packing, encoding_of, packing_of, packing_text
from larql.format.lyrw.extents import pack_numbers
from larql.format.lyrw.pieces import Pieces, open_output, write_pieces
from larql.format.lyrw.tables import (
    Bank,
    RegionSchema,
    Tables,
    entry_table_bytes,
)
from larql.format.lyrw.v2 import ALIGNMENT, pair_problem, segments_with_banks

__all__ = ["BankWriter", "check_plan", "planned_regions", "write_banks"]


class BankWriter:
    """Takes the regions of a file in its order; made by :func:`write_banks`."""

    def __init__(self, stream: BinaryIO, tables: Tables, where: str) -> None:
        self._stream = stream
        self._where = where
        self._planned = planned_regions(tables)
        self._next = next(self._planned, None)
        self._total = tables.region_count
        self._position = len(tables.to_bytes()) + entry_table_bytes(tables)
        self.numbers = array("Q")

    def region(self, bank_id: int, entry: int, schema: RegionSchema, pieces: Pieces) -> None:
        """Write the next region.

        Regions are written bank by bank in the order of the tables, in a bank entry by entry, and
        in an entry schema by schema.

        Parameters
        ----------
        bank_id, entry : int
        schema : RegionSchema
            One of the bank's.
        pieces : iterable of bytes or memoryview
            Its stored bytes.

        Raises
        ------
        ContainerError
            If another region is due, or the bytes are not as many as format and shape imply.
        """
        given = f"bank {bank_id}, entry {entry}, {schema.label}"
        if self._next is None:
            raise ContainerError(f"{self._where}: {given} is one region more than planned")
        due_bank, due_entry, due_schema = self._next
        if (due_bank.bank_id, due_entry, due_schema) != (bank_id, entry, schema):
            raise ContainerError(
                f"{self._where}: {given} was given where bank {due_bank.bank_id}, entry "
                f"{due_entry}, {due_schema.label} is due"
            )
        padding = -self._position % ALIGNMENT
        self._stream.write(bytes(padding))
        self._position += padding
        length = write_pieces(self._stream, pieces, schema.nbytes, f"{self._where}: {given}")
        self.numbers.extend((self._position, length))
        self._position += length
        self._next = next(self._planned, None)

    def finish(self) -> None:
        """Refuse to end before the last region was given.

        Raises
        ------
        ContainerError
            If regions are missing, naming both counts and the first one missing.
        """
        if self._next is not None:
            bank, entry, schema = self._next
            raise ContainerError(
                f"{self._where}: {len(self.numbers) // 2} of {self._total} regions were given; "
                f"bank {bank.bank_id}, entry {entry}, {schema.label} is missing"
            )


def planned_regions(tables: Tables) -> Iterator[tuple[Bank, int, RegionSchema]]:
    """Yield bank, entry and schema of each region in the order in which a file holds them."""
    for segment, bank in segments_with_banks(tables):
        for entry in range(segment.first_entry, segment.end):
            for schema in bank.schemas:
                yield bank, entry, schema


def check_plan(tables: Tables, where: str) -> None:
    """Refuse tables that larql does not write.

    Raises
    ------
    ContainerError
        What :func:`check_tables` refuses; a layout, which index schema 3 cannot state; an encoding
        under a packing that is not its own; block values without scales of the same shape, or
        another pair that is none; a segment file with two segments of a bank, or with different
        segment indices.
    """
    check_tables(tables, where)
    for bank in tables.banks:
        for schema in bank.schemas:
            _check_schema(bank, schema, f"{where}: bank {bank.bank_id}, {schema.label}")
    indices = {segment.segment_index for segment in tables.segments}
    expected = indices if tables.one_of_several else {0}
    banks = [segment.bank_id for segment in tables.segments]
    if len(indices) != 1 or indices != expected or len(set(banks)) != len(banks):
        raise ContainerError(
            f"{where}: has segments {sorted(indices)[:8]} of banks {banks[:8]}; expected one "
            "segment of each bank, all of one index, which is 0 in a file that is whole"
        )


def _check_schema(bank: Bank, schema: RegionSchema, place: str) -> None:
    if schema.layout != Layout.UNSPECIFIED:
        raise ContainerError(
            f"{place} states layout {schema.layout}, which a container of index schema 3 cannot"
        )
    encoding = encoding_of(schema.format)
    halves = schema.packing in (Packing.BLOCK_VALUES, Packing.BLOCK_SCALES)
    if encoding is not None and not (
        schema.packing == packing_of(encoding) or (halves and schema.nbytes is not None)
    ):
        raise ContainerError(
            f"{place} is {encoding.name} packed as {packing_text(schema.packing)}; expected "
            f"{packing_text(packing_of(encoding))}"
        )
    if schema.pair_id is None:
        if halves:
            raise ContainerError(f"{place} holds {packing_text(schema.packing)} but has no pair id")
        return
    pair = [other for other in bank.schemas if other.pair_id == schema.pair_id]
    if len(pair) != 2:
        raise ContainerError(
            f"{place} has pair id {schema.pair_id} with {len(pair)} regions, expected two"
        )
    values, scales = sorted(pair, key=lambda item: item.packing)
    problem = pair_problem(values, scales)
    if problem is not None:
        raise ContainerError(f"{place}: pair {schema.pair_id} is none: {problem}")


@contextmanager
def write_banks(path: Path, tables: Tables) -> Iterator[BankWriter]:
    """Yield a writer of one file, which appears when the body has given every region.

    Parameters
    ----------
    path : Path
        The file; replaced if it exists.
    tables : Tables
        What it will hold.

    Raises
    ------
    ContainerError
        Before anything is written: tables that :func:`check_plan` refuses. At the end: regions
        that were not given.
    OutputError
        If the file cannot be written.
    """
    where = str(path)
    check_plan(tables, where)
    with open_output(path) as stream:
        head = tables.to_bytes()
        stream.write(head)
        stream.write(bytes(entry_table_bytes(tables)))
        writer = BankWriter(stream, tables, where)
        yield writer
        writer.finish()
        stream.seek(len(head))
        stream.write(pack_numbers(writer.numbers))
