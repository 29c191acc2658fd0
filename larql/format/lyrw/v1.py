"""LYRW version 1: the expert weights of one layer inside VINDEX2 (``layers/layer_NN.weights``).

An entry is gate and up joined, ``[2 intermediate, hidden]`` with the rows of gate first, then down,
``[hidden, intermediate]``. One format holds for the whole file. A dense layer is one entry.
An entry whose four numbers in the table are zero is elsewhere: the file is that of a shard.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import BindingDefect, ContainerError, ResidencyRefusal, UnsupportedRefusal
from larql.format.encoding import Encoding
from larql.format.generation import Generation
from larql.format.lyrw.codes import encoding_of, format_text
from larql.format.lyrw.extents import (
    MAX_REGIONS,
    PAIR_BYTES,
    Region,
    RegionDefect,
    extent_defects,
    unpack_numbers,
)
from larql.format.lyrw.mapped import MappedFile, TableReader
from larql.format.untrusted import open_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "ENTRY_BYTES",
    "HEADER",
    "LayerShape",
    "LayerWeights",
    "check_shape",
    "layer_file_name",
    "part_bytes",
    "stored_columns",
]

HEADER = struct.Struct("<6I")
ENTRY_BYTES = 2 * PAIR_BYTES
_PARTS = ("gate_up", "down")
_END_SLACK = 63
_LARGEST = (1 << 32) - 1


@dataclass(frozen=True)
class LayerShape:
    """What the header of a file says.

    Attributes
    ----------
    quant_format : int
        Format code, for every matrix of the file.
    num_entries : int
        Experts; 1 for a dense layer.
    intermediate, hidden : int
        Logical widths. A row that is contracted over a width that is no whole number of blocks is
        stored with its last block filled up.
    """

    quant_format: int
    num_entries: int
    intermediate: int
    hidden: int

    def part_bytes(self) -> tuple[int, int] | None:
        """Return the bytes of ``gate_up`` and of ``down``, None if the format is not known."""
        encoding = encoding_of(self.quant_format)
        return None if encoding is None else part_bytes(encoding, self.intermediate, self.hidden)


def layer_file_name(layer: int) -> str:
    """Return the name under which a layer's file stands in a VINDEX2 directory."""
    return f"layers/layer_{layer:02d}.weights"


def part_bytes(encoding: Encoding, intermediate: int, hidden: int) -> tuple[int, int]:
    """Return the stored bytes of ``gate_up`` and of ``down``.

    Parameters
    ----------
    encoding : Encoding
    intermediate, hidden : int
        Logical widths.
    """
    return (
        2 * intermediate * _stored_row(encoding, hidden),
        hidden * _stored_row(encoding, intermediate),
    )


def stored_columns(encoding: Encoding, columns: int) -> int:
    """Return how many columns are stored of rows of ``columns``: whole blocks."""
    return -(-columns // encoding.block_elements) * encoding.block_elements


def _stored_row(encoding: Encoding, columns: int) -> int:
    return encoding.row_bytes(stored_columns(encoding, columns))


def check_shape(shape: LayerShape, where: str) -> None:
    """Refuse a header that no file can have.

    Raises
    ------
    ContainerError
        If a count or width is zero, does not fit its field, or is above the limit.
    """
    for name, value in (
        ("num_entries", shape.num_entries),
        ("intermediate", shape.intermediate),
        ("hidden", shape.hidden),
    ):
        if not 1 <= value <= _LARGEST:
            raise ContainerError(f"{where}: {name} is {value}, expected 1 to {_LARGEST}")
    if not 0 <= shape.quant_format <= _LARGEST:
        raise ContainerError(
            f"{where}: quant_format is {shape.quant_format}, expected 0 to {_LARGEST}"
        )
    if shape.num_entries * len(_PARTS) > MAX_REGIONS:
        raise ContainerError(
            f"{where}: describes {shape.num_entries} entries, above the limit of "
            f"{MAX_REGIONS // len(_PARTS)}"
        )


class LayerWeights:
    """One file opened for reading: header and table are checked, the rest mapped on first use.

    Parameters
    ----------
    path : Path
        The file.

    Attributes
    ----------
    path : Path
    size : int
        Bytes of the file.
    shape : LayerShape
        What its header says.

    Raises
    ------
    ContainerError
        If the file is missing, is not LYRW, is cut short, has a count of zero or above the limit,
        or has a region that is out of range, overlaps another or has not the length that format
        and shape imply.
    GenerationError
        If it is LYRW of another generation.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        shape, table, defects, mapped = _read(path)
        for defect in defects:
            raise ContainerError(f"{path}: {defect.message}")
        self.size = mapped.size
        self.shape = shape
        self._table = table
        self._mapped = mapped

    @staticmethod
    def defects(path: Path) -> tuple[RegionDefect, ...]:
        """Return what is wrong with the regions of a file, of which opening it names the first.

        Raises
        ------
        ContainerError
            If its header or table cannot be read.
        """
        return tuple(_read(path)[2])

    def holds(self, entry: int) -> bool:
        """Return whether an entry is in this file, which may be that of a shard."""
        return any(self._table[4 * entry : 4 * entry + 4])

    @property
    def present(self) -> int:
        """How many entries are in this file."""
        return sum(self.holds(entry) for entry in range(self.shape.num_entries))

    def extent(self, entry: int, part: str) -> tuple[int, int]:
        """Return where a part of an entry lies.

        Parameters
        ----------
        entry : int
        part : str
            ``gate_up``, ``gate``, ``up`` or ``down``.

        Returns
        -------
        tuple of int
            Offset from the start of the file, and bytes.

        Raises
        ------
        BindingDefect
            If there is no such entry.
        ResidencyRefusal
            If another shard has it.
        """
        if not 0 <= entry < self.shape.num_entries:
            raise BindingDefect(
                f"{self.path}: entry {entry} is out of range, expected 0 to "
                f"{self.shape.num_entries - 1}"
            )
        if not self.holds(entry):
            raise ResidencyRefusal(
                f"{self.path}: entry {entry} is not in this file; take the shard that has it"
            )
        at = 4 * entry + 2 * (part == "down")
        offset, length = self._table[at], self._table[at + 1]
        if part in ("gate", "up"):
            length //= 2
        return offset + length * (part == "up"), length

    def stored(self, entry: int, part: str) -> npt.NDArray[np.uint8]:
        """Return a part of an entry as stored, a mapped view ``uint8 [nbytes]``.

        Raises
        ------
        BindingDefect
            If there is no such entry.
        """
        return self._mapped.view(*self.extent(entry, part))

    def alone(self, entry: int, part: str) -> npt.NDArray[np.uint8]:
        """As :meth:`stored`, of a part that is read while its neighbours are not."""
        return self._mapped.alone(*self.extent(entry, part))

    def gate_up_bytes(self, entry: int) -> npt.NDArray[np.uint8]:
        """Return gate and up of an entry as stored, a mapped view ``uint8 [nbytes]``.

        Raises
        ------
        BindingDefect
            If there is no such entry.
        """
        return self.stored(entry, "gate_up")

    def down_bytes(self, entry: int) -> npt.NDArray[np.uint8]:
        """Return down of an entry as stored, a mapped view ``uint8 [nbytes]``.

        Raises
        ------
        BindingDefect
            If there is no such entry.
        """
        return self.stored(entry, "down")

    def gate(self, entry: int) -> npt.NDArray[np.uint8]:
        """Return gate of an entry, a mapped view ``uint8 [intermediate, row bytes]``.

        Raises
        ------
        BindingDefect
            If there is no such entry.
        UnsupportedRefusal
            If the file's format has no codec here, so that rows cannot be told apart.
        """
        return self._rows(self.stored(entry, "gate"), self.shape.intermediate)

    def up(self, entry: int) -> npt.NDArray[np.uint8]:
        """Return up of an entry, a mapped view ``uint8 [intermediate, row bytes]``.

        Raises
        ------
        BindingDefect, UnsupportedRefusal
            As :meth:`gate`.
        """
        return self._rows(self.stored(entry, "up"), self.shape.intermediate)

    def down(self, entry: int) -> npt.NDArray[np.uint8]:
        """Return down of an entry, a mapped view ``uint8 [hidden, row bytes]``.

        Raises
        ------
        BindingDefect, UnsupportedRefusal
            As :meth:`gate`.
        """
        return self._rows(self.down_bytes(entry), self.shape.hidden)

    def encoding(self) -> Encoding:
        """Return the encoding of the file's matrices.

        Raises
        ------
        UnsupportedRefusal
            If this build has no codec for it.
        """
        encoding = encoding_of(self.shape.quant_format)
        if encoding is None:
            raise UnsupportedRefusal(
                f"{self.path}: {format_text(self.shape.quant_format)} has no codec in this build; "
                "use a newer larql, or extract with another encoding"
            )
        return encoding

    def _rows(self, data: npt.NDArray[np.uint8], rows: int) -> npt.NDArray[np.uint8]:
        self.encoding()
        return data.reshape(rows, -1)


def _read(path: Path) -> tuple[LayerShape, array[int], Iterator[RegionDefect], MappedFile]:
    where = str(path)
    with open_regular(path, ContainerError) as (descriptor, status):
        reader = TableReader(descriptor, status.st_size, where, Generation.VINDEX2)
        _magic, _version, *fields = HEADER.unpack(reader.take(HEADER.size, "the header"))
        shape = LayerShape(*fields)
        check_shape(shape, where)
        count = shape.num_entries
        table = unpack_numbers(reader.take(count * ENTRY_BYTES, f"the table of {count} entries"))
        tables_end = reader.position
    lengths = shape.part_bytes() or (None, None)
    regions = [
        Region(
            0,
            index // 2,
            _PARTS[index % 2],
            table[2 * index],
            table[2 * index + 1],
            lengths[index % 2],
            (index % 2,),
        )
        for index in range(2 * count)
        if any(table[index // 2 * 4 : index // 2 * 4 + 4])
    ]
    if not regions:
        raise ContainerError(f"{where}: the table has none of its {count} entries")
    defects = extent_defects(
        regions, size=status.st_size, tables_end=tables_end, align=1, slack=_END_SLACK
    )
    return shape, table, defects, MappedFile(path, status)
