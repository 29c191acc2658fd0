"""Operands that have an entry for each expert: where their regions lie in a container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from larql.errors import ContainerError, ResidencyRefusal
from larql.format.index import Representation
from larql.format.lyrw.codes import format_code, packing_of
from larql.format.lyrw.tables import Bank, RegionSchema
from larql.format.lyrw.v2 import BankFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "BANK_SCHEMA",
    "EntryRegions",
    "entry_regions",
    "find_schema",
    "region_name",
]

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


@dataclass(frozen=True)
class EntryRegions:
    """Where the regions of an operand's entries are.

    Attributes
    ----------
    bank_id : int
    schema : RegionSchema
    files : tuple of BankFile or None
        For each entry the file that holds it; None where others hold it.
    """

    bank_id: int
    schema: RegionSchema
    files: tuple[BankFile | None, ...]

    def stored(self, entry: int) -> npt.NDArray[np.uint8]:
        """Return one entry's region as stored, a read-only mapped view ``uint8 [nbytes]``.

        Raises
        ------
        ResidencyRefusal
            If no file here holds the entry.
        ContainerError
            If its file was changed after it was opened.
        """
        return self._file(entry).stored_bytes(self.bank_id, entry, self.schema)

    def alone(self, entry: int) -> npt.NDArray[np.uint8]:
        """As :meth:`stored`, of a region that is read and whose neighbours are not."""
        return self._file(entry).alone(self.bank_id, entry, self.schema)

    def _file(self, entry: int) -> BankFile:
        file = self.files[entry]
        if file is None:
            here = sum(other is not None for other in self.files)
            raise ResidencyRefusal(
                f"entry {entry} of bank {self.bank_id} is not resident: the files here hold {here} "
                f"of {len(self.files)} entries; take the container of the whole model"
            )
        return file


def entry_regions(files: Sequence[BankFile], value: Representation) -> EntryRegions:
    """Return where a representation's regions are.

    Parameters
    ----------
    files : sequence of BankFile
        The file that the representation names first; the others hold more of its bank.
    value : Representation

    Raises
    ------
    ContainerError
        If it names no schema of a file, entries, shape or encoding are not as the index says, two
        files hold an entry, or an entry is missing of a bank that is not one of several.
    """
    file = files[0]
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
    owners: dict[int, BankFile] = {}
    held = 0
    for other in files:
        if find_schema(other, value) != (bank, schema):
            raise ContainerError(f"{other.path}: has other banks than {file.path}")
        for segment in other.tables.segments:
            if segment.bank_id == bank.bank_id:
                held += segment.entry_count
                owners.update(dict.fromkeys(range(segment.first_entry, segment.end), other))
    several = all(other.tables.one_of_several for other in files)
    if held != len(owners) or (len(owners) != bank.num_entries and not several):
        raise ContainerError(
            f"{where}: the bank's files hold {held} of {bank.num_entries} entries, expected each "
            f"once"
        )
    return EntryRegions(
        bank.bank_id, schema, tuple(owners.get(entry) for entry in range(bank.num_entries))
    )
