"""The operand store: one tensor at a time from a container's segments, with reads counted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from larql.errors import BindingDefect, ContainerError, Refusal
from larql.format.codec import take_rows
from larql.format.container import Container
from larql.format.encoding import Encoding
from larql.format.index import Representation
from larql.format.moe.profiles import Selection
from larql.format.segment import Segment
from larql.format.siblings import stated_problem

if TYPE_CHECKING:
    from larql.format.banks import EntryRegions, RegionPlace

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
    stored_columns : int or None
        Last extent as stored, where padding stands behind the logical columns; None: there is none.
    """

    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    stored_columns: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as stored."""
        return self.encoding.row_bytes(self.stored_columns or self.shape[-1])

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
        shape = len(stored), columns
        return StoredOperand(self.name, encoding, shape, stored.reshape(-1), self.stored_columns)


def _whole_slabs(encoding: Encoding, rows: slice, count: int) -> bool:
    first, end, step = rows.indices(count)
    return step == 1 and not (first % encoding.slab_rows or end % encoding.slab_rows)


@dataclass(frozen=True)
class StoredBank:
    """The stored bytes of an operand that has an entry for each expert, as far as it is resident.

    Attributes
    ----------
    name : str
        ``<object>/<tensor>``.
    encoding : Encoding
    shape : tuple of int
        ``[experts, rows, columns]``, or ``[experts, columns]`` of vectors.
    entries : tuple of uint8 ``[nbytes]``, or None
        Read-only views of the mapped file, one for each expert that is resident.
    place : RegionPlace
    stored_columns : int or None
        As of :class:`StoredOperand`.
    """

    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    entries: tuple[npt.NDArray[np.uint8] | None, ...]
    place: RegionPlace
    stored_columns: int | None = None

    def entry(self, expert: int) -> StoredOperand:
        """Return one expert's matrix or vector.

        Raises
        ------
        BindingDefect
            If there is no such expert.
        ResidencyRefusal
            If it is not resident.
        """
        problem = self.problem(expert)
        if problem is not None:
            raise problem
        data = self.entries[expert]
        assert data is not None
        name = f"{self.name}[{expert}]"
        return StoredOperand(name, self.encoding, self.shape[1:], data, self.stored_columns)

    def problem(self, expert: int) -> Refusal | None:
        """Return why an expert's entry cannot be had here, None if it can."""
        count = len(self.entries)
        if not 0 <= expert < count:
            return BindingDefect(
                f"layer {self.place.layer}: expert {expert} was chosen of bank {self.place.bank}, "
                f"which has experts 0 to {count - 1}",
                self.place.at(expert),
            )
        if self.entries[expert] is not None:
            return None
        held = ", ".join(f"{first}:{end}" for first, end in self.resident()[:8]) or "none"
        return self.place.not_resident(expert, f"experts {held} of {count} are bound")

    def resident(self) -> list[tuple[int, int]]:
        """Return the half-open runs of experts that are resident, ascending."""
        from larql.format.banks import runs_of

        return runs_of(data is not None for data in self.entries)

    def only(self, experts: Collection[int]) -> StoredBank:
        """Return the bank with no other experts resident than those given."""
        kept = (data if e in experts else None for e, data in enumerate(self.entries))
        return replace(self, entries=tuple(kept))


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
            if self.container.holds_bank(representation):
                return self._fetch_bank(representation)
            segment = self.container.segment(representation.segment)
            segment.check(
                representation.tensor, representation.encoding, representation.stored_shape
            )
            self.container.check_bytes(representation.segment)
            data = segment.bytes_of(representation.tensor)
        except ContainerError as error:
            raise BindingDefect(f"operand {name}: {error}") from error
        self._fetched[name] = segment, representation.tensor
        self.reads += 1
        self.bytes_read += int(data.nbytes)
        return StoredOperand(
            name, representation.encoding, shape, data, representation.stored_columns
        )

    def _representation(self, name: str, shape: tuple[int, ...]) -> Representation:
        """Return what serves an operand, if it has the shape that the operation needs."""
        representation = self.selection.serving(name, str(self.container.path))
        problem = stated_problem(self.container.index, representation)
        if problem is not None:
            raise BindingDefect(
                f"{self.container.path}: operand {name}: {representation.id} {problem}; pack the "
                f"container again"
            )
        if representation.shape != shape:
            raise BindingDefect(
                f"{self.container.path}: operand {name} has shape {list(representation.shape)}, "
                f"expected {list(shape)}"
            )
        return representation

    def _fetch_bank(self, value: Representation) -> StoredBank:
        from larql.format.region_bytes import check_regions

        regions = self.container.entries(value)
        check_regions(self.container, value, regions)
        return self.stored_bank(value.operand, value.encoding, value.shape, regions)

    def stored_bank(
        self, name: str, encoding: Encoding, shape: tuple[int, ...], regions: EntryRegions
    ) -> StoredBank:
        """Map the entries of an operand of experts that are in the container's files."""
        entries = tuple(
            None if file is None else regions.stored(entry)
            for entry, file in enumerate(regions.files)
        )
        mapped = [data for data in entries if data is not None]
        self.reads += len(mapped)
        self.bytes_read += sum(int(data.nbytes) for data in mapped)
        columns = regions.schema.cols
        padded = None if columns == shape[-1] else columns
        return StoredBank(name, encoding, shape, entries, regions.place, padded)

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
        from larql.format.region_bytes import check_regions

        value = self._representation(name, shape)
        try:
            regions = self.container.entries(value)
            check_regions(self.container, value, regions)
        except ContainerError as error:
            raise BindingDefect(f"operand {name}: {error}") from error
        here = [entry for entry, file in enumerate(regions.files) if file is not None]
        for entry in here if wanted is None else wanted:
            data = regions.alone(entry)
            self.reads += 1
            self.bytes_read += int(data.nbytes)
            yield (
                entry,
                StoredOperand(
                    f"{name}[{entry}]", value.encoding, shape[1:], data, value.stored_columns
                ),
            )

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
