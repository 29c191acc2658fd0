"""What the tables of a LYRW version 2 file must keep to: one set of rules for reader and writer."""

from __future__ import annotations

from collections.abc import Sequence

from larql.errors import ContainerError, EncodingError
from larql.format.lyrw.codes import UNPAIRED
from larql.format.lyrw.extents import MAX_REGIONS
from larql.format.lyrw.tables import MAX_SCHEMAS, Bank, BankSegment, Tables

__all__ = ["check_tables"]

_U16 = (1 << 16) - 1
_U32 = (1 << 32) - 1


def check_tables(tables: Tables, where: str) -> None:
    """Refuse tables that contradict themselves.

    Raises
    ------
    ContainerError
        No bank or segment; a bank twice, or with nothing in it; a number outside its field; schemas
        or segments out of order; a shape that is no whole number of blocks; a segment of an unknown
        bank, empty, outside the population or over another; a bank that is not whole in a file that
        is not one of several; more regions than the limit.
    """
    _check_fits(where, "logical layer", tables.logical_layer, 0, _U32)
    _check_fits(where, "number of banks", len(tables.banks), 1, _U16)
    _check_fits(where, "number of segments", len(tables.segments), 1, _U16)
    seen: set[int] = set()
    for bank in tables.banks:
        if bank.bank_id in seen:
            raise ContainerError(f"{where}: bank {bank.bank_id} stands twice in the table of banks")
        seen.add(bank.bank_id)
        _check_bank(bank, where)
    _check_segments(tables, where)
    if tables.region_count > MAX_REGIONS:
        raise ContainerError(
            f"{where}: describes {tables.region_count} regions, above the limit of {MAX_REGIONS}"
        )


def _check_fits(where: str, what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ContainerError(f"{where}: {what} is {value}, expected {least} to {most}")


def _check_bank(bank: Bank, where: str) -> None:
    name = f"{where}: bank {bank.bank_id}"
    _check_fits(where, "bank id", bank.bank_id, 0, _U16)
    _check_fits(name, "number of entries", bank.num_entries, 1, _U32)
    _check_fits(name, "input width", bank.input_dim, 1, _U32)
    _check_fits(name, "intermediate width", bank.intermediate_dim, 1, _U32)
    _check_fits(name, "output width", bank.output_dim, 1, _U32)
    _check_fits(name, "number of region schemas", len(bank.schemas), 1, MAX_SCHEMAS)
    before = -1
    for schema in bank.schemas:
        place = f"{name}, {schema.label}"
        _check_fits(place, "schema index", schema.schema_index, 0, _U16)
        if schema.schema_index <= before:
            raise ContainerError(
                f"{place} stands after schema {before}; expected ascending indices, each once"
            )
        before = schema.schema_index
        for what, value in (
            ("role", schema.role),
            ("format", schema.format),
            ("packing", schema.packing),
            ("layout", schema.layout),
        ):
            _check_fits(place, what, value, 0, _U16)
        _check_fits(place, "pair id", schema.pair_id or 0, 0, UNPAIRED - 1)
        _check_fits(place, "number of rows", schema.rows, 1, _U32)
        _check_fits(place, "number of columns", schema.cols, 1, _U32)
        try:
            length = schema.nbytes
        except EncodingError as error:
            raise ContainerError(f"{place}: {error}") from None
        _check_fits(place, "number of bytes", length or 0, 0, (1 << 63) - 1)


def _check_segments(tables: Tables, where: str) -> None:
    order = {bank.bank_id: place for place, bank in enumerate(tables.banks)}
    held: dict[int, list[BankSegment]] = {bank.bank_id: [] for bank in tables.banks}
    reached = 0
    for position, segment in enumerate(tables.segments):
        name = f"{where}: segment {segment.segment_index} of bank {segment.bank_id}"
        bank = tables.bank(segment.bank_id)
        if bank is None:
            raise ContainerError(
                f"{name} (number {position} in the table) belongs to no bank of the file, which "
                f"has {_listed(list(order))}"
            )
        if order[segment.bank_id] < reached:
            raise ContainerError(f"{name} stands after that of a later bank; expected bank order")
        reached = order[segment.bank_id]
        _check_fits(name, "index", segment.segment_index, 0, _U16)
        _check_fits(name, "first entry", segment.first_entry, 0, bank.num_entries - 1)
        _check_fits(name, "number of entries", segment.entry_count, 1, _U32)
        if segment.end > bank.num_entries:
            raise ContainerError(
                f"{name} is entries {segment.first_entry} to {segment.end}, beyond the "
                f"{bank.num_entries} of the bank"
            )
        others = held[segment.bank_id]
        if others and segment.segment_index <= others[-1].segment_index:
            raise ContainerError(
                f"{name} stands after segment {others[-1].segment_index}; expected ascending "
                "indices, each once"
            )
        if others and segment.first_entry < others[-1].end:
            raise ContainerError(
                f"{name} begins at entry {segment.first_entry}, but segment "
                f"{others[-1].segment_index} reaches to {others[-1].end}"
            )
        others.append(segment)
    if not tables.one_of_several:
        for bank in tables.banks:
            count = sum(segment.entry_count for segment in held[bank.bank_id])
            if count != bank.num_entries:
                raise ContainerError(
                    f"{where}: bank {bank.bank_id} has {count} of its {bank.num_entries} entries "
                    "here, but the file is not marked as one of several"
                )


def _listed(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:8]))
    return f"{shown}, …" if len(ids) > 8 else shown
