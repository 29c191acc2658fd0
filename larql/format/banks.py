"""Operands that have an entry for each expert: where their regions lie in a container."""

from __future__ import annotations

from larql.errors import ContainerError
from larql.format.index import Representation
from larql.format.lyrw.codes import format_code, packing_of
from larql.format.lyrw.tables import Bank, RegionSchema
from larql.format.lyrw.v2 import BankFile

__all__ = ["BANK_SCHEMA", "find_schema", "region_name", "region_schema"]

BANK_SCHEMA = "lyrw"
"""``schema`` of a segment that holds expert banks."""


def region_name(bank_id: int, number: int) -> str:
    """Return how a representation names the regions of one schema: ``<bank>/<schema>``."""
    return f"{bank_id}/{number}"


def find_schema(file: BankFile, value: Representation) -> tuple[Bank, RegionSchema]:
    """Return bank and schema of a representation's regions, whatever they are.

    Raises
    ------
    ContainerError
        If it names no schema of the file.
    """
    where = f"{file.path}: operand {value.operand}"
    bank_text, slash, schema_text = value.tensor.partition("/")
    numbers = [text for text in (bank_text, schema_text) if text.isascii() and text.isdigit()]
    if not slash or len(numbers) != 2:
        raise ContainerError(
            f"{where}: regions are named {value.tensor!r:.60}, expected bank/schema"
        )
    bank = file.tables.bank(int(bank_text))
    if bank is None:
        raise ContainerError(f"{where}: there is no bank {bank_text}")
    found = [schema for schema in bank.schemas if schema.schema_index == int(schema_text)]
    if not found:
        raise ContainerError(f"{where}: bank {bank_text} has no schema {schema_text}")
    return bank, found[0]


def region_schema(file: BankFile, value: Representation) -> tuple[int, RegionSchema]:
    """Return bank id and schema of a representation's regions, all of which the file holds.

    Raises
    ------
    ContainerError
        If it names no schema of the file, or entries, shape or encoding are not as the index says.
    """
    where = f"{file.path}: operand {value.operand}"
    bank, schema = find_schema(file, value)
    rows = value.shape[1] if len(value.shape) == 3 else 1
    expected = (
        value.shape[0], format_code(value.encoding), packing_of(value.encoding), rows,
        value.shape[-1],
    )  # fmt: skip
    stored = (bank.num_entries, schema.format, schema.packing, schema.rows, schema.cols)
    if stored != expected or len(value.shape) not in (2, 3):
        raise ContainerError(
            f"{where}: {bank.num_entries} entries of {schema.describe()}, expected "
            f"{list(value.shape)} in {value.encoding.name}"
        )
    held = sum(s.entry_count for s in file.tables.segments if s.bank_id == bank.bank_id)
    if held != bank.num_entries:
        raise ContainerError(
            f"{where}: the file holds {held} of {bank.num_entries} entries, expected all"
        )
    return bank.bank_id, schema
