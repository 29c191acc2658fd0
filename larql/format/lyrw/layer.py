"""The banks of one layer, whose entries may lie in several segment files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from larql.errors import BindingDefect, ResidencyRefusal
from larql.format.generation import SchemaVersion
from larql.format.lyrw.tables import Bank, BankSegment
from larql.format.lyrw.v2 import BankFile

__all__ = ["BankLayer"]


class BankLayer:
    """Segment files of one layer, opened together; some of them may be elsewhere.

    Parameters
    ----------
    paths : sequence of Path
        One whole file, or files that are each one of several.
    schema : SchemaVersion
        Of the index of their container.

    Attributes
    ----------
    files : tuple of BankFile
        In the order of ``paths``.

    Raises
    ------
    BindingDefect
        If there is no file; if a whole file stands beside others; if files disagree about layer,
        banks or schemas; if two hold one entry or give one segment index twice.
    ContainerError, GenerationError, UnsupportedRefusal
        If a file cannot be opened, as :class:`BankFile`.
    """

    def __init__(self, paths: Sequence[Path], schema: SchemaVersion) -> None:
        if not paths:
            raise BindingDefect("a layer of expert banks needs at least one file, found none")
        self.files = tuple(BankFile(path, schema) for path in paths)
        self._first = self.files[0]
        for file in self.files:
            self._check_alike(file)
        self._held = {
            bank.bank_id: self._segments(bank.bank_id) for bank in self._first.tables.banks
        }

    @property
    def logical_layer(self) -> int:
        """The layer that the banks belong to."""
        return self._first.tables.logical_layer

    @property
    def banks(self) -> tuple[Bank, ...]:
        """The banks, which are the same in every file."""
        return self._first.tables.banks

    def resident(self, bank_id: int) -> tuple[tuple[int, int], ...]:
        """Return the half-open runs of entries that are here, ascending and joined.

        Raises
        ------
        BindingDefect
            If there is no such bank.
        """
        runs: list[tuple[int, int]] = []
        self._first.bank(bank_id)
        for segment, _file in self._held[bank_id]:
            if runs and runs[-1][1] == segment.first_entry:
                runs[-1] = (runs[-1][0], segment.end)
            else:
                runs.append((segment.first_entry, segment.end))
        return tuple(runs)

    def file_of(self, bank_id: int, entry: int) -> BankFile:
        """Return the file that holds an entry.

        Raises
        ------
        BindingDefect
            If there is no such bank, or the entry is outside its population.
        ResidencyRefusal
            If the entry belongs to the population but none of the files holds it.
        """
        bank = self._first.bank(bank_id)
        if not 0 <= entry < bank.num_entries:
            raise BindingDefect(
                f"layer {self.logical_layer}: bank {bank_id} has no entry {entry}, expected 0 to "
                f"{bank.num_entries - 1}"
            )
        for segment, file in self._held[bank_id]:
            if segment.first_entry <= entry < segment.end:
                return file
        held = ", ".join(f"{begin}:{end}" for begin, end in self.resident(bank_id)[:8])
        raise ResidencyRefusal(
            f"layer {self.logical_layer}: entry {entry} of bank {bank_id} is not resident; the "
            f"{len(self.files)} files here hold {held or 'none'} of {bank.num_entries}, fetch the "
            "segment that has it"
        )

    def _check_alike(self, file: BankFile) -> None:
        if len(self.files) > 1 and not file.tables.one_of_several:
            raise BindingDefect(
                f"{file.path}: is a whole layer and not one of several segments, but "
                f"{len(self.files)} files were given for the layer"
            )
        if file.tables.logical_layer != self.logical_layer:
            raise BindingDefect(
                f"{file.path}: belongs to layer {file.tables.logical_layer}, but {self._first.path}"
                f" to layer {self.logical_layer}"
            )
        if file.tables.banks != self.banks:
            raise BindingDefect(
                f"{file.path}: its banks and region schemas are not those of {self._first.path}; "
                "segments of one layer must agree"
            )

    def _segments(self, bank_id: int) -> list[tuple[BankSegment, BankFile]]:
        held = sorted(
            (
                (segment, file)
                for file in self.files
                for segment in file.tables.segments
                if segment.bank_id == bank_id
            ),
            key=lambda item: (item[0].first_entry, item[0].segment_index),
        )
        for (before, one), (after, other) in itertools.pairwise(held):
            if after.segment_index <= before.segment_index or after.first_entry < before.end:
                raise BindingDefect(
                    f"{other.path}: segment {after.segment_index} of bank {bank_id} is entries "
                    f"{after.first_entry} to {after.end}, but segment {before.segment_index} in "
                    f"{one.path} is entries {before.first_entry} to {before.end}; expected "
                    "ascending segments that do not overlap"
                )
        return held
