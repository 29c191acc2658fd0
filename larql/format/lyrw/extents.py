"""Where regions lie in a LYRW file, checked before one of them is used."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "MAX_REGIONS",
    "PAIR_BYTES",
    "Region",
    "RegionDefect",
    "extent_defects",
    "pack_numbers",
    "unpack_numbers",
]

MAX_REGIONS = 1 << 17
"""Most regions of a file: checking one takes some microseconds, and a table may be made up."""

PAIR_BYTES = 16
"""An offset and a length in a table."""


class Region(NamedTuple):
    """A byte range of a file, and what the file declares about it.

    Attributes
    ----------
    bank, entry : int
        Whose it is.
    label : str
        Its role and place, for messages.
    offset, length : int
        Bytes, from the start of the file.
    expected : int or None
        Bytes that its declaration implies, None where that is not known.
    declared : tuple of int
        Format, packing, rows and columns: regions that are one extent must agree in it.
    """

    bank: int
    entry: int
    label: str
    offset: int
    length: int
    expected: int | None
    declared: tuple[int, ...]

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.length


@dataclass(frozen=True)
class RegionDefect:
    """What is wrong with one region.

    Attributes
    ----------
    bank, entry : int
        Whose it is.
    message : str
        Names bank, entry and role, what was found and what was expected.
    regions : tuple of (int, int, str)
        Bank, entry and label of each region that cannot be used.
    """

    bank: int
    entry: int
    message: str
    regions: tuple[tuple[int, int, str], ...]


def unpack_numbers(data: bytes) -> array[int]:
    """Return little-endian u64 numbers as an array."""
    numbers = array("Q", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def pack_numbers(numbers: array[int]) -> bytes:
    """Return an array of u64 as little-endian bytes."""
    if sys.byteorder == "big":
        numbers = array("Q", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def extent_defects(
    regions: Sequence[Region], *, size: int, tables_end: int, align: int, slack: int
) -> Iterator[RegionDefect]:
    """Yield what is wrong with the regions of a file.

    Parameters
    ----------
    regions : sequence of Region
        All regions of the file, in the order of its table.
    size : int
        Bytes of the file.
    tables_end : int
        Where the tables end, before which no region may begin.
    align : int
        Every offset must be a multiple of it.
    slack : int
        Most bytes that may follow the last region.

    Yields
    ------
    RegionDefect
        A region that is empty, out of range, misaligned, inside the tables or of another length
        than its declaration implies. If there is none, in the order of their bytes, those that
        overlap or that disagree about one extent, and bytes after the last region.
    """
    sound = True
    for region in regions:
        problem = _alone(region, size, tables_end, align)
        if problem is not None:
            sound = False
            yield _defect(region, problem)
    if not sound:
        return
    yield from _overlaps(regions)
    last = max(regions, key=lambda region: region.end)
    if size - last.end > slack:
        yield _defect(
            last,
            f"is the last and ends at byte {last.end}, but {size - last.end} trailing bytes follow "
            f"in the file of {size}; expected at most {slack}",
        )


def _defect(region: Region, problem: str, *others: Region) -> RegionDefect:
    return RegionDefect(
        region.bank,
        region.entry,
        f"bank {region.bank}, entry {region.entry}, {region.label} {problem}",
        tuple((one.bank, one.entry, one.label) for one in (region, *others)),
    )


def _alone(region: Region, size: int, tables_end: int, align: int) -> str | None:
    if region.length == 0:
        return "is empty; expected at least one byte"
    if region.end > size:
        return (
            f"is bytes {region.offset} to {region.end}, out of range of the file of {size} bytes; "
            "it is cut short or the table is wrong"
        )
    if region.offset < tables_end:
        return f"begins at byte {region.offset}, inside the tables, which end at {tables_end}"
    if region.offset % align:
        return f"begins at byte {region.offset}, expected a multiple of {align}"
    if region.expected is not None and region.length != region.expected:
        return f"has {region.length} bytes, expected {region.expected} for its format and shape"
    return None


def _overlaps(regions: Sequence[Region]) -> Iterator[RegionDefect]:
    """Yield overlaps that are neither one extent used twice nor a part of its entry's region."""
    ordered = sorted(regions, key=lambda region: (region.offset, -region.length))
    # The extents that reach beyond the current offset, each inside the one before it, and of one
    # entry where they are several.
    around: list[Region] = []
    shared: Region | None = None  # has the outermost extent too, for another entry
    for region in ordered:
        while around and around[-1].end <= region.offset:
            around.pop()
        if not around:
            shared = None
            around.append(region)
            continue
        outer = around[-1]
        if (outer.offset, outer.length) == (region.offset, region.length):
            if _entry(region) == _entry(outer):
                others = [outer]
            elif len(around) > 1:
                others = [outer, around[0]]
            else:
                others, shared = [outer], region
        else:
            others = [outer] if shared is None else [outer, shared]
        found = ((other, _together(other, region)) for other in others)
        against, problem = next((pair for pair in found if pair[1] is not None), (outer, None))
        if problem is not None:
            yield _defect(region, problem, against)
        elif region.end < outer.end or region.offset > outer.offset:
            around.append(region)


def _entry(region: Region) -> tuple[int, int]:
    return region.bank, region.entry


def _together(outer: Region, inner: Region) -> str | None:
    other = f"bank {outer.bank}, entry {outer.entry}, {outer.label}"
    if (outer.offset, outer.length) == (inner.offset, inner.length):
        if outer.declared == inner.declared:
            return None
        return (
            f"and {other} are one extent at byte {inner.offset}, but disagree about its format "
            "or shape"
        )
    if _entry(outer) == _entry(inner) and inner.end <= outer.end:
        return None
    return (
        f"begins at byte {inner.offset}, inside {other}, which is bytes {outer.offset} to "
        f"{outer.end}; expected regions that do not overlap"
    )
