"""Which segments of a bank are here, and in which files."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from larql.format.lyrw.tables import Bank, BankSegment
from larql.format.lyrw.v2 import BankFile
from larql.format.moe.states import State
from larql.format.moe.traversal import Segment

__all__ = ["Held", "cut", "registry_of"]


@dataclass(frozen=True)
class Held:
    """The files of one bank, as far as they are here.

    Attributes
    ----------
    registry : tuple of Segment
        All segments that the population is cut into, present or not.
    files : mapping
        Segment to the file that holds it.
    problems : mapping
        Place of a file among the bank's files to why it is not used.
    bank : Bank or None
        As the files describe it; None where none can be read.
    """

    registry: tuple[Segment, ...]
    files: Mapping[Segment, BankFile]
    problems: Mapping[int, State]
    bank: Bank | None

    def owner(self, segment: Segment) -> BankFile | None:
        """Return the file that holds a segment, or a part of one."""
        for other, file in self.files.items():
            if other.first <= segment.first and segment.end <= other.end:
                return file
        return None

    def problem(self, segment: Segment) -> State | None:
        """Return why a segment is not held: what is wrong with its file, else with any."""
        if segment.index is not None and segment.index in self.problems:
            return self.problems[segment.index]
        return next(iter(self.problems.values()), None)


def cut(registry: Iterable[Segment], bounds: Collection[int]) -> list[Segment]:
    """Cut segments at every bound that lies inside of one."""
    parts = []
    for segment in registry:
        inside = sorted(b for b in bounds if segment.first < b < segment.end)
        edges = [segment.first, *inside, segment.end]
        parts += [Segment(a, b, segment.index) for a, b in itertools.pairwise(edges)]
    return parts


def registry_of(here: Sequence[BankSegment], population: int, several: bool) -> tuple[Segment, ...]:
    """Return all segments of a bank: those that are here, and what lies between them.

    Writers cut a bank into segments of one width, so what is missing is cut as the widest that is
    here; of a bank of which nothing is here no cut is known.
    """
    if not here:
        return (Segment(0, population),) if population else ()
    width = max(segment.entry_count for segment in here)
    found: list[Segment] = []
    reached = 0

    def gap(until: int) -> None:
        first = reached
        while first < until:
            end = min(until, (first // width + 1) * width)
            found.append(Segment(first, end, first // width if several else None))
            first = end

    for segment in sorted(here, key=lambda s: s.first_entry):
        gap(min(segment.first_entry, population))
        index = segment.segment_index if several else None
        found.append(Segment(segment.first_entry, segment.end, index))
        reached = segment.end
    gap(population)
    return tuple(found)
