"""The tables of a LYRW version 2 file: banks, segments and the schemas of regions."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from larql.errors import ContainerError, UnsupportedRefusal
from larql.format.generation import Generation, SchemaVersion
from larql.format.lyrw.codes import (
    UNPAIRED,
    BankKind,
    Browse,
    Layout,
    format_text,
    packing_text,
    role_text,
    row_bytes,
    scales_per_row,
)
from larql.format.lyrw.extents import PAIR_BYTES
from larql.format.lyrw.mapped import TableReader
from larql.format.lyrw.prelude import MAGIC, lyrw_version

__all__ = [
    "MAX_SCHEMAS",
    "Bank",
    "BankSegment",
    "RegionSchema",
    "Tables",
    "entry_table_bytes",
    "read_tables",
]

MAX_SCHEMAS = 4096
"""Most region schemas of a file; a bank needs fewer than ten."""

HEADER = struct.Struct("<IIIHHII")
BANK = struct.Struct("<HHHHIIII")
SEGMENT = struct.Struct("<HHII")
SCHEMA = struct.Struct("<HHHHHHII")
_ONE_OF_SEVERAL = 1
_LAYOUT_SCHEMA = SchemaVersion(4)


@dataclass(frozen=True)
class RegionSchema:
    """What every entry of a bank stores in one of its regions.

    Attributes
    ----------
    schema_index : int
        Names the schema inside its bank; ascending in the table.
    role, format, packing : int
        Tags of :mod:`larql.format.lyrw.codes`, as numbers because they may be unknown.
    rows, cols : int
        Stored shape. Where packing is block scales, ``cols`` counts scales.
    pair_id : int or None
        Shared by a region of block values and the region of their scales.
    layout : int
        How gate and up lie in a fused region. Index schema 3 does not say.
    """

    schema_index: int
    role: int
    format: int
    packing: int
    rows: int
    cols: int
    pair_id: int | None = None
    layout: int = Layout.UNSPECIFIED

    @property
    def label(self) -> str:
        """Place and role, for messages."""
        return f"schema {self.schema_index} ({role_text(self.role)})"

    @property
    def nbytes(self) -> int | None:
        """Stored bytes of the region, None where format and packing are not known together."""
        row = row_bytes(self.format, self.packing, self.cols)
        return None if row is None else self.rows * row

    @property
    def scales_per_row(self) -> int | None:
        """Scales that a row of block values needs, None where that is not known."""
        return scales_per_row(self.format, self.cols)

    def describe(self) -> str:
        """Return format, packing and shape, for messages."""
        return f"{format_text(self.format)} {packing_text(self.packing)} [{self.rows}, {self.cols}]"


@dataclass(frozen=True)
class Bank:
    """One population of entries that store the same regions.

    Attributes
    ----------
    bank_id : int
        Names the bank inside its layer; only the manifest says what it computes.
    kind : BankKind
    num_entries : int
        The population, of which a file may hold a part.
    input_dim, intermediate_dim, output_dim : int
        Widths.
    schemas : tuple of RegionSchema
    browse : Browse
    """

    bank_id: int
    kind: BankKind
    num_entries: int
    input_dim: int
    intermediate_dim: int
    output_dim: int
    schemas: tuple[RegionSchema, ...]
    browse: Browse = Browse.NONE


@dataclass(frozen=True)
class BankSegment:
    """Consecutive entries of a bank that a file holds.

    Attributes
    ----------
    bank_id : int
    segment_index : int
        Place among the bank's segments, over all files.
    first_entry, entry_count : int
    """

    bank_id: int
    segment_index: int
    first_entry: int
    entry_count: int

    @property
    def end(self) -> int:
        """The first entry after it."""
        return self.first_entry + self.entry_count


@dataclass(frozen=True)
class Tables:
    """Everything that stands before the entry table.

    Attributes
    ----------
    logical_layer : int
    banks : tuple of Bank
        In the order in which their schemas and entries stand in the file.
    segments : tuple of BankSegment
        In bank order.
    one_of_several : bool
        Whether other files hold the rest of the banks; "segment 0" and "unsegmented" differ.
    """

    logical_layer: int
    banks: tuple[Bank, ...]
    segments: tuple[BankSegment, ...]
    one_of_several: bool = False
    _by_id: dict[int, Bank] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {bank.bank_id: bank for bank in self.banks})

    def bank(self, bank_id: int) -> Bank | None:
        """Return a bank by its id, None if the file has none such."""
        return self._by_id.get(bank_id)

    @property
    def region_count(self) -> int:
        """Regions of the file: entries of its segments times the schemas of their banks."""
        return sum(
            segment.entry_count * len(self._by_id[segment.bank_id].schemas)
            for segment in self.segments
        )

    def to_bytes(self) -> bytes:
        """Return header, banks, segments and schemas as they stand in a file."""
        parts = [
            HEADER.pack(
                MAGIC,
                lyrw_version(Generation.VINDEX3),
                self.logical_layer,
                len(self.banks),
                len(self.segments),
                _ONE_OF_SEVERAL if self.one_of_several else 0,
                0,
            )
        ]
        parts += [
            BANK.pack(
                bank.bank_id,
                bank.kind,
                len(bank.schemas),
                bank.browse,
                bank.num_entries,
                bank.input_dim,
                bank.intermediate_dim,
                bank.output_dim,
            )
            for bank in self.banks
        ]
        parts += [
            SEGMENT.pack(
                segment.bank_id, segment.segment_index, segment.first_entry, segment.entry_count
            )
            for segment in self.segments
        ]
        parts += [
            SCHEMA.pack(
                schema.schema_index,
                schema.role,
                schema.format,
                schema.packing,
                UNPAIRED if schema.pair_id is None else schema.pair_id,
                schema.layout,
                schema.rows,
                schema.cols,
            )
            for bank in self.banks
            for schema in bank.schemas
        ]
        return b"".join(parts)


def read_tables(reader: TableReader, schema: SchemaVersion) -> Tables:
    """Read header, banks, segments and schemas; what they say is not checked yet.

    Parameters
    ----------
    reader : TableReader
        At the start of the file; left at the entry table.
    schema : SchemaVersion
        Of the index, which says whether a region's schema states a layout.

    Raises
    ------
    ContainerError
        If a table is cut short, by name, or there are more schemas than the limit.
    UnsupportedRefusal
        If flags, a reserved field or a bank's kind have a value that this build does not know.
    """
    where = reader.where
    _magic, _version, layer, num_banks, num_segments, flags, reserved = HEADER.unpack(
        reader.take(HEADER.size, "the header")
    )
    if flags & ~_ONE_OF_SEVERAL or reserved:
        raise UnsupportedRefusal(
            f"{where}: the header has flags {flags:#x} and reserved field {reserved:#x}; this "
            f"build knows flags 0 and {_ONE_OF_SEVERAL:#x} and a reserved field of 0, a newer "
            "larql may read it"
        )
    banks = reader.take(num_banks * BANK.size, f"the table of {num_banks} banks")
    rows = list(BANK.iter_unpack(banks))
    raw = reader.take(num_segments * SEGMENT.size, f"the table of {num_segments} segments")
    segments = tuple(BankSegment(*row) for row in SEGMENT.iter_unpack(raw))
    total = sum(row[2] for row in rows)
    if total > MAX_SCHEMAS:
        raise ContainerError(
            f"{where}: describes {total} region schemas, above the limit of {MAX_SCHEMAS}"
        )
    found = []
    for row in rows:
        raw = reader.take(
            row[2] * SCHEMA.size, f"the table of {row[2]} region schemas of bank {row[0]}"
        )
        found.append(_bank(row, raw, schema, where))
    return Tables(layer, tuple(found), segments, bool(flags & _ONE_OF_SEVERAL))


def _bank(row: tuple[int, ...], raw: bytes, schema: SchemaVersion, where: str) -> Bank:
    bank_id, kind, _count, flags, num_entries, input_dim, intermediate_dim, output_dim = row
    name = f"{where}: bank {bank_id}"
    if kind > max(BankKind) or flags > max(Browse):
        raise UnsupportedRefusal(
            f"{name} has kind {kind} and flags {flags:#x}; this build knows kinds 0 to "
            f"{max(BankKind)} and flags 0 to {max(Browse)}, a newer larql may read it"
        )
    schemas = []
    for index, role, code, packing, pair, layout, rows, cols in SCHEMA.iter_unpack(raw):
        if layout and schema < _LAYOUT_SCHEMA:
            raise UnsupportedRefusal(
                f"{name}, schema {index} ({role_text(role)}) has reserved field {layout}, expected "
                f"0: only index schema {_LAYOUT_SCHEMA.number} gives it a meaning, and this index "
                f"has schema {schema.number}"
            )
        paired = None if pair == UNPAIRED else pair
        schemas.append(RegionSchema(index, role, code, packing, rows, cols, paired, layout))
    return Bank(
        bank_id,
        BankKind(kind),
        num_entries,
        input_dim,
        intermediate_dim,
        output_dim,
        tuple(schemas),
        Browse(flags),
    )


def entry_table_bytes(tables: Tables) -> int:
    """Return the bytes of the entry table that follows ``tables``."""
    return tables.region_count * PAIR_BYTES
