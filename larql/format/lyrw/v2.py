"""LYRW version 2: expert banks inside VINDEX3 (``routed/layer_NNN.lyrw``), opened for reading."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import BindingDefect, ContainerError, ResidencyRefusal, UnsupportedRefusal
from larql.format.generation import Generation, SchemaVersion, require_generation
from larql.format.lyrw.checks import check_tables
from larql.format.lyrw.codes import Packing, format_text, packing_text, role_text
from larql.format.lyrw.extents import Region, RegionDefect, extent_defects, unpack_numbers
from larql.format.lyrw.mapped import MappedFile, TableReader
from larql.format.lyrw.tables import (
    Bank,
    BankSegment,
    RegionSchema,
    Tables,
    entry_table_bytes,
    read_tables,
)
from larql.format.names import bank_key
from larql.format.untrusted import open_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ALIGNMENT", "BankFile", "Extent", "bank_file_name"]

ALIGNMENT = 64
"""Every region begins at a multiple of this many bytes."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range of a file: two declarations with one extent are one allocation.

    Attributes
    ----------
    path : Path
        The file.
    offset, length : int
        Bytes, from the start of the file.
    """

    path: Path
    offset: int
    length: int


def bank_file_name(layer: int, segment: int | None = None, component: str | None = None) -> str:
    """Return the name under which larql writes a layer's banks, or one of several segments.

    Parameters
    ----------
    layer : int
    segment : int or None
    component : str or None
        Whose layer it is; None: that of the model proper.
    """
    part = "" if segment is None else f".seg{segment:02d}"
    return f"routed/{bank_key(layer, component)}{part}.lyrw"


class BankFile:
    """One file opened for reading: header and tables are checked, the rest mapped on first use.

    Parameters
    ----------
    path : Path
        The file.
    schema : SchemaVersion
        Of the index of its container.
    tolerant : bool
        Open a file of which some regions cannot be used; asking for one of these is refused.

    Attributes
    ----------
    path : Path
    size : int
        Bytes of the file.
    tables : Tables
        Banks, segments and schemas.
    region_defects : tuple of RegionDefect
        What is wrong with regions; empty unless the file was opened tolerantly.

    Raises
    ------
    ContainerError
        If the file is missing, is not LYRW, has a table that is cut short or contradicts itself,
        or, where it is not opened tolerantly, a region that is out of range, misaligned, inside the
        tables, of another length than its format and shape imply, or over another region.
    GenerationError
        If the file or the index belongs to another generation.
    UnsupportedRefusal
        If a field that decides how the tables are read has a value unknown to this build. Unknown
        roles, formats and packings are kept.
    """

    def __init__(self, path: Path, schema: SchemaVersion, *, tolerant: bool = False) -> None:
        self.path = path
        tables, numbers, defects, mapped = _read(path, schema)
        if not tolerant:
            for defect in defects:
                raise ContainerError(f"{path}: {defect.message}")
        self.region_defects = tuple(defects)
        self._unusable = {
            region: defect for defect in reversed(self.region_defects) for region in defect.regions
        }
        self.size = mapped.size
        self.tables = tables
        self._numbers = numbers
        self._mapped = mapped
        self._starts = _starts(tables)

    @staticmethod
    def defects(path: Path, schema: SchemaVersion) -> tuple[RegionDefect, ...]:
        """Return what is wrong with the regions of a file, of which opening it names the first.

        Raises
        ------
        ContainerError, UnsupportedRefusal
            If its header or tables cannot be read.
        """
        return tuple(_read(path, schema)[2])

    def bank(self, bank_id: int) -> Bank:
        """Return a bank of the file.

        Raises
        ------
        BindingDefect
            If the file has none of that id.
        """
        found = self.tables.bank(bank_id)
        if found is None:
            present = ", ".join(str(bank.bank_id) for bank in self.tables.banks[:8])
            raise BindingDefect(f"{self.path}: there is no bank {bank_id}; it has {present}")
        return found

    def schema(self, bank_id: int, role: int) -> RegionSchema:
        """Return the one schema of a bank that has a role.

        Raises
        ------
        BindingDefect
            If the bank has none or several of that role.
        """
        bank = self.bank(bank_id)
        found = [schema for schema in bank.schemas if schema.role == role]
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(str(schema.schema_index) for schema in found[:8])
            raise BindingDefect(
                f"{self.path}: bank {bank_id} has {len(found)} regions of role {role_text(role)}, "
                f"expected one; name its schema: {listed}"
            )
        listed = ", ".join(role_text(schema.role) for schema in bank.schemas[:8])
        raise BindingDefect(
            f"{self.path}: bank {bank_id} has no region of role {role_text(role)}; it has {listed}"
        )

    def partner(self, bank_id: int, schema: RegionSchema) -> RegionSchema:
        """Return the schema that is paired with another: scales for block values, and back.

        Raises
        ------
        BindingDefect
            If the schema is unpaired, its pair is not two, or the two do not fit each other.
        """
        place = f"{self.path}: bank {bank_id}, {schema.label}"
        found = [
            other
            for other in self.bank(bank_id).schemas
            if schema.pair_id is not None and other.pair_id == schema.pair_id and other != schema
        ]
        if len(found) != 1:
            raise BindingDefect(
                f"{place} has pair id {schema.pair_id} and {len(found)} partners, expected one"
            )
        values, scales = sorted((schema, found[0]), key=lambda item: item.packing)
        problem = pair_problem(values, scales)
        if problem is not None:
            raise BindingDefect(f"{place} and {found[0].label} are no pair: {problem}")
        return found[0]

    def extent(self, bank_id: int, entry: int, schema: RegionSchema) -> Extent:
        """Return where a region of one entry lies.

        Raises
        ------
        BindingDefect
            If the bank has no such schema, or the entry is outside its population.
        ResidencyRefusal
            If the entry belongs to the population but is not in this file.
        ContainerError
            If something is wrong with where it lies.
        """
        bank = self.bank(bank_id)
        try:
            column = bank.schemas.index(schema)
        except ValueError:
            raise BindingDefect(
                f"{self.path}: bank {bank_id} has no {schema.label} of {schema.describe()}"
            ) from None
        if not 0 <= entry < bank.num_entries:
            raise BindingDefect(
                f"{self.path}: bank {bank_id} has no entry {entry}, expected 0 to "
                f"{bank.num_entries - 1}"
            )
        for segment, start in self._starts[bank_id]:
            if segment.first_entry <= entry < segment.end:
                self._check_usable(bank_id, entry, schema)
                row = start + (entry - segment.first_entry) * len(bank.schemas)
                at = 2 * (row + column)
                return Extent(self.path, self._numbers[at], self._numbers[at + 1])
        held = ", ".join(
            f"{segment.first_entry}:{segment.end}" for segment, _ in self._starts[bank_id][:8]
        )
        raise ResidencyRefusal(
            f"{self.path}: entry {entry} of bank {bank_id} is not in this file, which holds "
            f"{held or 'none of the bank'} of {bank.num_entries}; fetch the segment that has it"
        )

    def usable(self, bank_id: int, entry: int, schema: RegionSchema) -> bool:
        """Return whether nothing is wrong with where a region lies."""
        return (bank_id, entry, schema.label) not in self._unusable

    def _check_usable(self, bank_id: int, entry: int, schema: RegionSchema) -> None:
        if not self.usable(bank_id, entry, schema):
            defect = self._unusable[bank_id, entry, schema.label]
            raise ContainerError(f"{self.path}: {defect.message}")

    def advise(self, advice: int) -> None:
        """Tell the system how the mapped file will be read, one of ``mmap.MADV_…``.

        Raises
        ------
        ContainerError
            If the file was changed after it was opened.
        """
        self._mapped.mapped().madvise(advice)

    def stored_bytes(self, bank_id: int, entry: int, schema: RegionSchema) -> npt.NDArray[np.uint8]:
        """Return a region as stored, a read-only mapped view ``uint8 [nbytes]``.

        Raises
        ------
        BindingDefect, ResidencyRefusal
            As :meth:`extent`.
        ContainerError
            If the file was changed after it was opened.
        """
        extent = self.extent(bank_id, entry, schema)
        return self._mapped.view(extent.offset, extent.length)

    def alone(self, bank_id: int, entry: int, schema: RegionSchema) -> npt.NDArray[np.uint8]:
        """As :meth:`stored_bytes`, of a region that is read and whose neighbours are not.

        Raises
        ------
        BindingDefect, ResidencyRefusal, ContainerError
            As :meth:`stored_bytes`.
        """
        extent = self.extent(bank_id, entry, schema)
        return self._mapped.alone(extent.offset, extent.length)

    def stored_rows(self, bank_id: int, entry: int, schema: RegionSchema) -> npt.NDArray[np.uint8]:
        """Return a region by its rows, a read-only mapped view ``uint8 [rows, row bytes]``.

        Raises
        ------
        BindingDefect, ResidencyRefusal, ContainerError
            As :meth:`stored_bytes`.
        UnsupportedRefusal
            If this build does not know how format and packing are stored together.
        """
        if schema.nbytes is None:
            raise UnsupportedRefusal(
                f"{self.path}: bank {bank_id}, {schema.label} is {format_text(schema.format)} "
                f"packed as {packing_text(schema.packing)}, which this build cannot read; use a "
                "newer larql, or extract with another encoding"
            )
        return self.stored_bytes(bank_id, entry, schema).reshape(schema.rows, -1)


def pair_problem(values: RegionSchema, scales: RegionSchema) -> str | None:
    """Say why two schemas are not block values and their scales, None if they are."""
    if (values.packing, scales.packing) != (Packing.BLOCK_VALUES, Packing.BLOCK_SCALES):
        return (
            f"they are packed as {packing_text(values.packing)} and "
            f"{packing_text(scales.packing)}, expected block_values and block_scales"
        )
    if values.format != scales.format:
        return f"their formats are {format_text(values.format)} and {format_text(scales.format)}"
    if values.rows != scales.rows:
        return f"they have {values.rows} and {scales.rows} rows"
    expected = values.scales_per_row
    if expected is not None and scales.cols != expected:
        return f"{values.cols} values a row need {expected} scales, found {scales.cols}"
    return None


def _starts(tables: Tables) -> dict[int, list[tuple[BankSegment, int]]]:
    """Give each bank's segments with the number of the first region of each in the table."""
    starts: dict[int, list[tuple[BankSegment, int]]] = {bank.bank_id: [] for bank in tables.banks}
    reached = 0
    for segment, bank in segments_with_banks(tables):
        starts[segment.bank_id].append((segment, reached))
        reached += segment.entry_count * len(bank.schemas)
    return starts


def segments_with_banks(tables: Tables) -> Iterator[tuple[BankSegment, Bank]]:
    """Yield each segment of checked tables with its bank, in the order of the entry table."""
    banks = {bank.bank_id: bank for bank in tables.banks}
    for segment in tables.segments:
        yield segment, banks[segment.bank_id]


def _read(
    path: Path, schema: SchemaVersion
) -> tuple[Tables, array[int], Iterator[RegionDefect], MappedFile]:
    where = str(path)
    require_generation(schema, Generation.VINDEX3, where)
    with open_regular(path, ContainerError) as (descriptor, status):
        reader = TableReader(descriptor, status.st_size, where, Generation.VINDEX3)
        tables = read_tables(reader, schema)
        check_tables(tables, where)
        numbers = unpack_numbers(
            reader.take(entry_table_bytes(tables), f"the table of {tables.region_count} regions")
        )
    defects = extent_defects(
        list(_regions(tables, numbers)),
        size=status.st_size,
        tables_end=reader.position,
        align=ALIGNMENT,
        slack=ALIGNMENT - 1,
    )
    return tables, numbers, defects, MappedFile(path, status)


def _regions(tables: Tables, numbers: array[int]) -> Iterator[Region]:
    at = 0
    for segment, bank in segments_with_banks(tables):
        columns = [
            (item.label, item.nbytes, (item.format, item.packing, item.rows, item.cols))
            for item in bank.schemas
        ]
        for entry in range(segment.first_entry, segment.end):
            for label, expected, declared in columns:
                yield Region(
                    bank.bank_id, entry, label, numbers[at], numbers[at + 1], expected, declared
                )
                at += 2
