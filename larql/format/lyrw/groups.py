"""Segments and groups: how a bank is cut into files, and files into ranges worth fetching at once.

A *group* is a run of consecutive entries, ``group_width`` of them; the last one of a bank may be
shorter. The file does not say the width, the manifest does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from larql.errors import BindingDefect, ContainerError
from larql.format.lyrw.tables import BankSegment, RegionSchema
from larql.format.lyrw.v2 import BankFile, segments_with_banks

__all__ = ["GroupExtent", "check_boundaries", "group_extents", "plan_segments"]


@dataclass(frozen=True, slots=True)
class GroupExtent:
    """The byte range that holds all regions of a group and nothing of any other.

    Attributes
    ----------
    first_entry, entry_count : int
    offset, length : int
        Bytes, from the start of the file.
    """

    first_entry: int
    entry_count: int
    offset: int
    length: int


def plan_segments(
    bank_id: int, num_entries: int, *, segment_width: int, group_width: int
) -> tuple[BankSegment, ...]:
    """Cut a bank into segments of one width; the last one may be shorter.

    Parameters
    ----------
    bank_id : int
    num_entries : int
        The bank's population.
    segment_width, group_width : int
        Entries of a segment and of a group.

    Raises
    ------
    ContainerError
        If a width is below 1, the groups do not divide a segment, or there would be more segments
        than a file can number.
    """
    for what, value in (
        ("number of entries", num_entries),
        ("segment width", segment_width),
        ("group width", group_width),
    ):
        if value < 1:
            raise ContainerError(f"bank {bank_id}: {what} is {value}, expected at least 1")
    if segment_width % group_width:
        raise ContainerError(
            f"bank {bank_id}: segments of {segment_width} entries are not whole groups of "
            f"{group_width}; choose a segment width that the group width divides"
        )
    if -(-num_entries // segment_width) > 1 << 16:
        raise ContainerError(
            f"bank {bank_id}: {num_entries} entries in segments of {segment_width} are more than "
            f"{1 << 16} segments; choose wider ones"
        )
    return tuple(
        BankSegment(bank_id, index, first, min(segment_width, num_entries - first))
        for index, first in enumerate(range(0, num_entries, segment_width))
    )


def check_boundaries(segment: BankSegment, num_entries: int, group_width: int, where: str) -> None:
    """Refuse a segment that cuts a group in two.

    Raises
    ------
    BindingDefect
        If the segment begins or ends inside a group.
    """
    if group_width < 1:
        raise BindingDefect(f"{where}: group width is {group_width}, expected at least 1")
    for entry in (segment.first_entry, segment.end):
        if entry % group_width and entry != num_entries:
            raise BindingDefect(
                f"{where}: segment {segment.segment_index} of bank {segment.bank_id} is entries "
                f"{segment.first_entry} to {segment.end} and cuts a group of {group_width} at "
                f"entry {entry}"
            )


def group_extents(file: BankFile, bank_id: int, group_width: int) -> tuple[GroupExtent, ...]:
    """Return the byte range of each group of a bank that the file holds, in entry order.

    Parameters
    ----------
    file : BankFile
    bank_id : int
    group_width : int
        Entries of a group, from the manifest.

    Raises
    ------
    BindingDefect
        If there is no such bank, a segment cuts a group, or the regions of a group do not lie
        together.
    """
    bank = file.bank(bank_id)
    groups: list[GroupExtent] = []
    for segment in file.tables.segments:
        if segment.bank_id != bank_id:
            continue
        check_boundaries(segment, bank.num_entries, group_width, str(file.path))
        for first in range(segment.first_entry, segment.end, group_width):
            count = min(group_width, segment.end - first)
            ranges = [
                _range(file, bank_id, entry, schema)
                for entry in range(first, first + count)
                for schema in bank.schemas
            ]
            begin = min(start for start, _ in ranges)
            groups.append(GroupExtent(first, count, begin, max(end for _, end in ranges) - begin))
    ranges_of_all = sorted(
        [(group.offset, group.offset + group.length, group.first_entry) for group in groups]
        + [(begin, end, -1) for begin, end in _others(file, bank_id)]
    )
    reached, owner = 0, -1
    for begin, end, first in ranges_of_all:
        if begin < reached and (first >= 0 or owner >= 0):
            group = max(first, owner)
            raise BindingDefect(
                f"{file.path}: the regions of bank {bank_id}, entries {group} to "
                f"{min(group + group_width, bank.num_entries)} do not lie together: others lie "
                f"between them at byte {begin}; read them one by one"
            )
        if end > reached:
            reached, owner = end, first
    return tuple(groups)


def _range(file: BankFile, bank_id: int, entry: int, schema: RegionSchema) -> tuple[int, int]:
    extent = file.extent(bank_id, entry, schema)
    return extent.offset, extent.offset + extent.length


def _others(file: BankFile, bank_id: int) -> Iterator[tuple[int, int]]:
    for segment, bank in segments_with_banks(file.tables):
        if bank.bank_id != bank_id:
            for entry in range(segment.first_entry, segment.end):
                for schema in bank.schemas:
                    yield _range(file, bank.bank_id, entry, schema)
