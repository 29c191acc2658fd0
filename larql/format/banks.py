"""Operands that have an entry for each expert: where their regions lie in a container."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from larql.errors import ContainerError, Coordinates, ResidencyRefusal, UnsupportedRefusal
from larql.format.index import Representation
from larql.format.lyrw.codes import Packing, Role, encoding_of, format_code, packing_of, role_text
from larql.format.lyrw.tables import Bank, BankSegment, RegionSchema
from larql.format.lyrw.v2 import BankFile
from larql.format.moe.held import registry_of
from larql.format.moe.traversal import Segment
from larql.format.names import component_beside, layer_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "BANK_SCHEMA",
    "EntryFile",
    "EntryRegions",
    "RegionPlace",
    "entry_regions",
    "find_schema",
    "other_meaning",
    "region_name",
    "regions_of",
    "runs_of",
]

BANK_SCHEMA = "lyrw"
"""``schema`` of a segment that holds expert banks."""


def region_name(bank_id: int, number: int) -> str:
    """Return how a representation names the regions of one schema: ``<bank>/<schema>``."""
    return f"{bank_id}/{number}"


_ROLES: Mapping[str, Role] = {
    "experts.gate": Role.GATE,
    "experts.up": Role.UP,
    "experts.gate_up": Role.GATE_UP_FUSED,
    "experts.down": Role.DOWN,
}
_LAYER = re.compile(r"^[^/]+\.layer\.(\d{3,})/(.+)$")


def other_meaning(file: BankFile, schema: RegionSchema, operand: str) -> str | None:
    """Return how a file contradicts what an operand is, by its own word of layer and role."""
    named = _LAYER.match(operand)
    if named is None:
        return None
    layer, part = int(named[1]), named[2]
    if file.tables.logical_layer != layer:
        return f"the file holds banks of layer {file.tables.logical_layer}, expected {layer}"
    role = _ROLES.get(part)
    if role is not None and schema.role != role:
        return f"{schema.label}, expected {role_text(role)}"
    return None


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
class RegionPlace:
    """Whose regions are meant: those of one role, in all entries of a bank.

    Attributes
    ----------
    layer, bank : int
    role : str
    segments : tuple of Segment
        What the population is cut into, present or not.
    component : str or None
        Whose layer it is; None: that of the model proper.
    """

    layer: int
    bank: int
    role: str
    segments: tuple[Segment, ...] = ()
    component: str | None = None

    def at(self, entry: int) -> Coordinates:
        """Return the coordinates of one entry's region."""
        found = (s.index for s in self.segments if s.first <= entry < s.end)
        segment = next(found, None)
        return Coordinates(self.layer, self.bank, entry, self.role, segment, self.component)

    def not_resident(self, entry: int, held: str) -> ResidencyRefusal:
        """Return the refusal of an entry of which ``held`` says, in words, what is here instead."""
        at = self.at(entry)
        segment = "" if at.segment is None else f", segment {at.segment}"
        where = layer_text(at.layer, at.component)
        return ResidencyRefusal(
            f"{where}: entry {entry} of bank {at.bank} ({at.role}{segment}) is not "
            f"resident: {held}; bind the shard that has it",
            at,
        )


def runs_of(present: Iterable[bool]) -> list[tuple[int, int]]:
    """Return the half-open runs of entries that are present, ascending."""
    runs: list[tuple[int, int]] = []
    for entry, here in enumerate(present):
        if not here:
            continue
        if runs and runs[-1][1] == entry:
            runs[-1] = (runs[-1][0], entry + 1)
        else:
            runs.append((entry, entry + 1))
    return runs


class EntryFile(Protocol):
    """A file that holds regions of entries."""

    def stored_bytes(
        self, bank_id: int, entry: int, schema: RegionSchema, /
    ) -> npt.NDArray[np.uint8]:
        """Return a region as stored, a read-only mapped view ``uint8 [nbytes]``."""

    def alone(self, bank_id: int, entry: int, schema: RegionSchema, /) -> npt.NDArray[np.uint8]:
        """As :meth:`stored_bytes`, of a region that is read and whose neighbours are not."""


@dataclass(frozen=True)
class EntryRegions:
    """Where the regions of an operand's entries are.

    Attributes
    ----------
    place : RegionPlace
    schema : RegionSchema
    files : tuple of EntryFile or None
        For each entry the file that holds it; None where others hold it.
    """

    place: RegionPlace
    schema: RegionSchema
    files: tuple[EntryFile | None, ...]

    def stored(self, entry: int) -> npt.NDArray[np.uint8]:
        """Return one entry's region as stored, a read-only mapped view ``uint8 [nbytes]``.

        Raises
        ------
        ResidencyRefusal
            If no file here holds the entry.
        ContainerError
            If its file was changed after it was opened.
        """
        return self._file(entry).stored_bytes(self.place.bank, entry, self.schema)

    def alone(self, entry: int) -> npt.NDArray[np.uint8]:
        """As :meth:`stored`, of a region that is read and whose neighbours are not."""
        return self._file(entry).alone(self.place.bank, entry, self.schema)

    def _file(self, entry: int) -> EntryFile:
        file = self.files[entry]
        if file is None:
            here = sum(other is not None for other in self.files)
            raise self.place.not_resident(
                entry, f"the files here hold {here} of {len(self.files)} entries"
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
    UnsupportedRefusal
        If this build does not know the regions' format or packing.
    ContainerError
        If it names no schema of a file, a file says that it is of another layer or role, entries,
        shape or encoding are not as the index says, two files hold an entry, or an entry is missing
        of a bank that is not one of several.
    """
    file = files[0]
    where = f"{file.path}: operand {value.operand}"
    bank, schema = find_schema(file, value)
    problem = other_meaning(file, schema, value.operand)
    if problem is not None:
        raise ContainerError(f"{where}: {problem}")
    if encoding_of(schema.format) is None or schema.packing not in list(Packing):
        raise UnsupportedRefusal(
            f"{where}: {schema.describe()}, which this build cannot read; use a newer larql"
        )
    rows = value.shape[1] if len(value.shape) == 3 else 1
    expected = (
        value.shape[0], format_code(value.encoding), packing_of(value.encoding), rows,
        value.stored_shape[-1],
    )  # fmt: skip
    stored = (bank.num_entries, schema.format, schema.packing, schema.rows, schema.cols)
    if stored != expected or len(value.shape) not in (2, 3):
        raise ContainerError(
            f"{where}: {bank.num_entries} entries of {schema.describe()}, expected "
            f"{list(value.stored_shape)} in {value.encoding.name}"
        )
    for other in files:
        if find_schema(other, value) != (bank, schema):
            raise ContainerError(f"{other.path}: has other banks than {file.path}")
    return regions_of(files, bank, schema, where, component_beside(value.operand))


def regions_of(
    files: Sequence[BankFile],
    bank: Bank,
    schema: RegionSchema,
    where: str,
    component: str | None = None,
) -> EntryRegions:
    """Return where the regions of one schema are, in files that agree about bank and schema.

    Parameters
    ----------
    files : sequence of BankFile
    bank : Bank
    schema : RegionSchema
    where : str
        For error texts.
    component : str or None
        Whose banks they are, which no file says; None: those of the model proper.

    Raises
    ------
    ContainerError
        If two files hold an entry, or one is missing of a bank that is not one of several.
    """
    owners: dict[int, BankFile] = {}
    here: list[BankSegment] = []
    for file in files:
        for segment in file.tables.segments:
            if segment.bank_id == bank.bank_id:
                here.append(segment)
                owners.update(dict.fromkeys(range(segment.first_entry, segment.end), file))
    held = sum(segment.entry_count for segment in here)
    several = all(file.tables.one_of_several for file in files)
    if held != len(owners) or (len(owners) != bank.num_entries and not several):
        raise ContainerError(
            f"{where}: the bank's files hold {held} of {bank.num_entries} entries, expected each "
            f"once"
        )
    place = RegionPlace(
        files[0].tables.logical_layer,
        bank.bank_id,
        role_text(schema.role),
        registry_of(here, bank.num_entries, several),
        component,
    )
    return EntryRegions(place, schema, tuple(owners.get(e) for e in range(bank.num_entries)))
