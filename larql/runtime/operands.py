"""The operand store: one tensor at a time from a container's segments, with reads counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.errors import BindingDefect, ContainerError
from larql.format.codec import take_rows
from larql.format.container import Container
from larql.format.encoding import Encoding
from larql.format.index import Representation
from larql.format.moe.profiles import Selection
from larql.format.segment import Segment

__all__ = ["OperandStore", "StoredBank", "StoredOperand"]


@dataclass(frozen=True)
class StoredOperand:
    """An operand's stored bytes.

    Attributes
    ----------
    name : str
        ``<object>/<tensor>``.
    encoding : Encoding
    shape : tuple of int
        Logical shape, outermost axis first.
    data : ndarray of uint8, shape ``[nbytes]``
        Read-only view of the mapped file.
    """

    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def rows_at(self, rows: slice | npt.NDArray[np.int64]) -> StoredOperand:
        """Return some rows of a matrix as an operand: a view of a slice, a copy of chosen ones.

        Rows that are no whole slabs of a packed encoding are copied, and no longer packed.
        """
        count, columns = self.shape
        encoding, stored = self.encoding, self.data.reshape(count, -1)
        if isinstance(rows, slice) and _whole_slabs(encoding, rows, count):
            stored = stored[rows]
        else:
            encoding, stored = take_rows(encoding, stored, columns, rows)
        return StoredOperand(self.name, encoding, (len(stored), columns), stored.reshape(-1))


def _whole_slabs(encoding: Encoding, rows: slice, count: int) -> bool:
    first, end, step = rows.indices(count)
    return step == 1 and not (first % encoding.slab_rows or end % encoding.slab_rows)


@dataclass(frozen=True)
class StoredBank:
    """The stored bytes of an operand that has an entry for each expert.

    Attributes
    ----------
    name : str
        ``<object>/<tensor>``.
    encoding : Encoding
    shape : tuple of int
        ``[experts, rows, columns]``, or ``[experts, columns]`` of vectors.
    entries : tuple of uint8 ``[nbytes]``
        Read-only views of the mapped file, one for each expert.
    """

    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    entries: tuple[npt.NDArray[np.uint8], ...]

    def entry(self, expert: int) -> StoredOperand:
        """Return one expert's matrix or vector."""
        name = f"{self.name}[{expert}]"
        return StoredOperand(name, self.encoding, self.shape[1:], self.entries[expert])


class OperandStore:
    """Fetches operands of one container.

    Parameters
    ----------
    container : Container
        Opened container.
    selection : Selection
        Which representation serves each operand.

    Attributes
    ----------
    reads : int
        Number of operands fetched so far.
    bytes_read : int
        Their stored bytes.
    """

    def __init__(self, container: Container, selection: Selection) -> None:
        self.container = container
        self.selection = selection
        self.reads = 0
        self.bytes_read = 0
        self._fetched: dict[str, tuple[Segment, str]] = {}

    def fetch(self, name: str, shape: tuple[int, ...]) -> StoredOperand | StoredBank:
        """Map one operand.

        Parameters
        ----------
        name : str
            Operand name.
        shape : tuple of int
            The shape that the operation needs.

        Raises
        ------
        ResidencyRefusal
            If the profile leaves the operand out, or says that it is elsewhere.
        BindingDefect
            If the operand is not in the container, has another shape, or its segment is missing,
            damaged or contradicts the index.
        """
        representation = self._representation(name, shape)
        try:
            if self.container.index.holds_banks(representation.segment):
                return self._fetch_bank(representation)
            segment = self.container.segment(representation.segment)
            segment.check(representation.tensor, representation.encoding, shape)
            self.container.check_bytes(representation.segment)
            data = segment.bytes_of(representation.tensor)
        except ContainerError as error:
            raise BindingDefect(f"operand {name}: {error}") from error
        self._fetched[name] = segment, representation.tensor
        self.reads += 1
        self.bytes_read += int(data.nbytes)
        return StoredOperand(name, representation.encoding, shape, data)

    def _representation(self, name: str, shape: tuple[int, ...]) -> Representation:
        """Return what serves an operand, if it has the shape that the operation needs."""
        representation = self.selection.serving(name, str(self.container.path))
        if representation.shape != shape:
            raise BindingDefect(
                f"{self.container.path}: operand {name} has shape {list(representation.shape)}, "
                f"expected {list(shape)}"
            )
        return representation

    def _fetch_bank(self, value: Representation) -> StoredBank:
        regions = self.container.entries(value)
        for name in self.container.bank_names(value.segment):
            self.container.check_bytes(name)
        entries = tuple(regions.stored(entry) for entry in range(value.shape[0]))
        self.reads += len(entries)
        self.bytes_read += sum(int(entry.nbytes) for entry in entries)
        return StoredBank(value.operand, value.encoding, value.shape, entries)

    def fetch_alone(self, name: str, shape: tuple[int, ...]) -> StoredOperand:
        """Map an operand of a file of tensors whose neighbours are not read with it.

        Raises
        ------
        ResidencyRefusal, BindingDefect
            As :meth:`fetch`.
        """
        found = self.fetch(name, shape)
        if isinstance(found, StoredBank):
            raise BindingDefect(
                f"operand {name}: has an entry for each expert, expected one matrix"
            )
        segment, tensor = self._fetched[name]
        segment.alone(tensor)
        return found

    def fetch_entries_alone(
        self, name: str, shape: tuple[int, ...], wanted: Sequence[int] | None = None
    ) -> Iterator[tuple[int, StoredOperand]]:
        """Yield entries of an operand of experts, and read none of what lies between them.

        Parameters
        ----------
        name : str
        shape : tuple of int
        wanted : sequence of int or None
            Ascending; None: all that are here.

        Raises
        ------
        ResidencyRefusal
            If an entry that is wanted is not here.
        BindingDefect
            As :meth:`fetch`.
        """
        value = self._representation(name, shape)
        try:
            regions = self.container.entries(value)
            for file in self.container.bank_names(value.segment):
                self.container.check_bytes(file)
        except ContainerError as error:
            raise BindingDefect(f"operand {name}: {error}") from error
        here = [entry for entry, file in enumerate(regions.files) if file is not None]
        for entry in here if wanted is None else wanted:
            data = regions.alone(entry)
            self.reads += 1
            self.bytes_read += int(data.nbytes)
            yield entry, StoredOperand(f"{name}[{entry}]", value.encoding, shape[1:], data)

    def prefault(self, name: str) -> None:
        """Bring an operand that has been fetched into memory.

        Raises
        ------
        BindingDefect
            If it cannot be read.
        """
        segment, tensor = self._fetched[name]
        try:
            segment.prefault(tensor)
        except ContainerError as error:
            raise BindingDefect(f"operand {name}: {error}") from error
