"""Operands that have an entry for each expert: where a VINDEX2 directory has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from larql.format.banks import EntryRegions, RegionPlace
from larql.format.encoding import Encoding
from larql.format.lyrw.codes import Role, format_code, packing_of, role_text
from larql.format.lyrw.tables import RegionSchema
from larql.format.lyrw.v1 import LayerWeights
from larql.format.moe.from_graph import ROUTED_BANK
from larql.format.segment import Segment

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = ["PART_ROLES", "layer_regions", "vector_regions"]

PART_ROLES = {
    "gate": Role.GATE,
    "up": Role.UP,
    "gate_up": Role.GATE_UP_FUSED,
    "down": Role.DOWN,
}


@dataclass(frozen=True)
class _LayerEntries:
    """One part of each entry of a layer file."""

    file: LayerWeights
    part: str

    def stored_bytes(self, _bank: int, entry: int, _schema: RegionSchema) -> Bytes:
        """Return an entry's part as stored, mapped."""
        return self.file.stored(entry, self.part)

    def alone(self, _bank: int, entry: int, _schema: RegionSchema) -> Bytes:
        """Return an entry's part, which is read while its neighbours are not."""
        return self.file.alone(entry, self.part)


@dataclass(frozen=True)
class _VectorEntries:
    """The rows of a tensor ``[experts, n]``."""

    segment: Segment
    tensor: str
    row_bytes: int

    def stored_bytes(self, _bank: int, entry: int, _schema: RegionSchema) -> Bytes:
        """Return a row as stored, mapped."""
        first = entry * self.row_bytes
        return self.segment.bytes_of(self.tensor)[first : first + self.row_bytes]

    def alone(self, bank: int, entry: int, schema: RegionSchema) -> Bytes:
        """Return a row; the whole tensor is small."""
        return self.stored_bytes(bank, entry, schema)


def layer_regions(
    file: LayerWeights, layer: int, part: str, shape: tuple[int, ...], columns: int
) -> EntryRegions:
    """Return where one part of each expert of a layer lies.

    Parameters
    ----------
    file : LayerWeights
    layer : int
    part : str
        A key of ``PART_ROLES``.
    shape : tuple of int
        ``[experts, rows, columns]``.
    columns : int
        Columns as stored.
    """
    role = PART_ROLES[part]
    schema = _schema(role, file.encoding(), shape[1], columns)
    place = RegionPlace(layer, ROUTED_BANK, role_text(role))
    entries = _LayerEntries(file, part)
    held = tuple(entries if file.holds(entry) else None for entry in range(shape[0]))
    return EntryRegions(place, schema, held)


def vector_regions(
    segment: Segment, tensor: str, layer: int, encoding: Encoding, shape: tuple[int, ...]
) -> EntryRegions:
    """Return where the vectors of a layer's experts lie, shape ``[experts, n]``."""
    schema = _schema(Role.BIAS, encoding, 1, shape[-1])
    place = RegionPlace(layer, ROUTED_BANK, role_text(Role.BIAS))
    rows = _VectorEntries(segment, tensor, encoding.row_bytes(shape[-1]))
    return EntryRegions(place, schema, (rows,) * shape[0])


def _schema(role: Role, encoding: Encoding, rows: int, columns: int) -> RegionSchema:
    return RegionSchema(0, role, format_code(encoding), packing_of(encoding), rows, columns)
