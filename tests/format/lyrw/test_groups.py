"""Segments, groups and layers of several files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from larql.errors import BindingDefect, ContainerError, ResidencyRefusal
from larql.format.generation import SchemaVersion
from larql.format.lyrw.codes import BankKind
from larql.format.lyrw.groups import (
    GroupExtent,
    check_boundaries,
    group_extents,
    plan_segments,
)
from larql.format.lyrw.layer import BankLayer
from larql.format.lyrw.tables import Bank, BankSegment, RegionSchema, Tables
from larql.format.lyrw.v2 import BankFile, bank_file_name
from larql.format.lyrw.v2_writer import write_banks
from tests.builders.lyrw import bank, header, schema, segment, u64
from tests.format.lyrw.golden import GOLDEN

THREE = SchemaVersion(3)
UP, DOWN = RegionSchema(0, 1, 0, 0, 1, 17), RegionSchema(1, 3, 0, 0, 1, 3)


def write(path: Path, tables: Tables) -> Path:
    """Write regions that are filled with the number of their entry."""
    with write_banks(path, tables) as writer:
        for part in tables.segments:
            bank = tables.bank(part.bank_id)
            assert bank is not None
            for entry in range(part.first_entry, part.end):
                for region in bank.schemas:
                    assert region.nbytes is not None
                    writer.region(part.bank_id, entry, region, [bytes([entry]) * region.nbytes])
    return path


def population(entries: int) -> Bank:
    return Bank(0, BankKind.ROUTED, entries, 1, 1, 1, (UP, DOWN))


def layer_of(directory: Path, *segments: BankSegment, entries: int = 7) -> list[Path]:
    (directory / "routed").mkdir(exist_ok=True)
    return [
        write(
            directory / bank_file_name(0, part.segment_index),
            Tables(0, (population(entries),), (part,), one_of_several=True),
        )
        for part in segments
    ]


# Plans of segments


def test_segments_are_whole_groups_and_the_last_may_be_short() -> None:
    assert plan_segments(3, 112, segment_width=48, group_width=16) == (
        BankSegment(3, 0, 0, 48),
        BankSegment(3, 1, 48, 48),
        BankSegment(3, 2, 96, 16),
    )
    assert plan_segments(0, 5, segment_width=2, group_width=1)[-1] == BankSegment(0, 2, 4, 1)
    assert plan_segments(0, 5, segment_width=5, group_width=5) == (BankSegment(0, 0, 0, 5),)
    assert len(plan_segments(0, 1 << 16, segment_width=1, group_width=1)) == 1 << 16


@pytest.mark.parametrize(
    ("entries", "segment_width", "group_width", "words"),
    [
        (0, 1, 1, "number of entries is 0, expected at least 1"),
        (1, 0, 1, "segment width is 0, expected at least 1"),
        (1, 1, 0, "group width is 0, expected at least 1"),
        (112, 24, 16, "segments of 24 entries are not whole groups of 16"),
        (112, 8, 16, "segments of 8 entries are not whole groups of 16"),
        ((1 << 16) + 1, 1, 1, "are more than 65536 segments"),
    ],
)
def test_segments_that_cut_groups_are_refused(
    entries: int, segment_width: int, group_width: int, words: str
) -> None:
    with pytest.raises(ContainerError, match=words):
        plan_segments(0, entries, segment_width=segment_width, group_width=group_width)


@pytest.mark.parametrize(
    ("first", "count", "width", "words"),
    [
        (0, 3, 2, "is entries 0 to 3 and cuts a group of 2 at entry 3"),
        (1, 3, 2, "is entries 1 to 4 and cuts a group of 2 at entry 1"),
        (0, 7, 0, "group width is 0"),
        (0, 2, 2, None),
        (4, 3, 2, None),
        (0, 7, 100, None),
    ],
)
def test_boundaries_of_segments_are_those_of_groups(
    first: int, count: int, width: int, words: str | None
) -> None:
    part = BankSegment(0, 0, first, count)
    if words is None:
        check_boundaries(part, 7, width, "f")
        return
    with pytest.raises(BindingDefect, match=words):
        check_boundaries(part, 7, width, "f")


# Extents of groups


def test_a_group_is_one_range(tmp_path: Path) -> None:
    path = write(tmp_path / "x", Tables(0, (population(5),), (BankSegment(0, 0, 0, 5),)))
    file = BankFile(path, THREE)
    start = file.extent(0, 0, UP).offset
    # 68 bytes and 12, each to the next 64.
    assert group_extents(file, 0, 2) == (
        GroupExtent(0, 2, start, 192 + 128 + 12),
        GroupExtent(2, 2, start + 2 * 192, 192 + 128 + 12),
        GroupExtent(4, 1, start + 4 * 192, 128 + 12),
    )
    assert [group.entry_count for group in group_extents(file, 0, 5)] == [5]
    with pytest.raises(BindingDefect, match="there is no bank 1"):
        group_extents(file, 1, 2)


def test_banks_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(GOLDEN)
    file = BankFile(path, THREE)
    assert group_extents(file, 0, 1) == (GroupExtent(0, 1, 320, 70), GroupExtent(1, 1, 448, 70))
    assert group_extents(file, 5, 1) == (GroupExtent(0, 1, 576, 65),)


def test_groups_of_a_segment_file(tmp_path: Path) -> None:
    (path,) = layer_of(tmp_path, BankSegment(0, 1, 4, 3))
    file = BankFile(path, THREE)
    assert [(g.first_entry, g.entry_count) for g in group_extents(file, 0, 2)] == [(4, 2), (6, 1)]
    with pytest.raises(BindingDefect, match="cuts a group of 3 at entry 4"):
        group_extents(file, 0, 3)


@pytest.mark.parametrize(
    ("tables", "numbers"),
    [
        # Entries 0 and 2 of one group lie around entry 1 of the next.
        (header() + bank(entries=4) + segment(count=4), [192, 4, 320, 4, 256, 4, 384, 4]),
        # A region of bank 1 lies between two of bank 0.
        (
            header(banks=2, segments=2)
            + bank(0, entries=2)
            + bank(1)
            + segment(0, count=2)
            + segment(1)
            + schema(rows=1, cols=1),
            [256, 4, 384, 4, 320, 4],
        ),
        # The next group is the same bytes.
        (header() + bank(entries=4) + segment(count=4), [192, 4, 256, 4, 192, 4, 256, 4]),
    ],
)
def test_a_group_that_does_not_lie_together_is_refused(
    tmp_path: Path, tables: bytes, numbers: list[int]
) -> None:
    path = tmp_path / "x"
    content = tables + schema(rows=1, cols=1) + u64(*numbers)
    size = max(numbers[::2]) + 4
    path.write_bytes(content.ljust(size, b"\0"))
    with pytest.raises(BindingDefect, match="do not lie together: others lie"):
        group_extents(BankFile(path, THREE), 0, 2)


# Layers


def test_a_layer_finds_entries_in_its_files(tmp_path: Path) -> None:
    paths = layer_of(tmp_path, *plan_segments(0, 7, segment_width=4, group_width=2))
    layer = BankLayer(list(reversed(paths)), THREE)
    assert layer.logical_layer == 0
    assert layer.banks == (population(7),)
    assert layer.resident(0) == ((0, 7),)
    for entry in range(7):
        assert set(layer.file_of(0, entry).stored_bytes(0, entry, UP).tolist()) == {entry}
    for entry in (-1, 7):
        with pytest.raises(BindingDefect, match=f"bank 0 has no entry {entry}, expected 0 to 6"):
            layer.file_of(0, entry)
    for call in (lambda: layer.file_of(3, 0), lambda: layer.resident(3)):
        with pytest.raises(BindingDefect, match="there is no bank 3"):
            call()


def test_an_entry_of_a_segment_that_is_elsewhere_is_not_resident(tmp_path: Path) -> None:
    paths = layer_of(tmp_path, *plan_segments(0, 7, segment_width=2, group_width=2))
    layer = BankLayer([paths[0], paths[3], paths[2]], THREE)
    assert layer.resident(0) == ((0, 2), (4, 7))
    words = "entry 3 of bank 0 is not resident; the 3 files here hold 0:2, 4:7 of 7, fetch the seg"
    with pytest.raises(ResidencyRefusal, match=words):
        layer.file_of(0, 3)


def test_a_whole_file_is_a_layer(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(GOLDEN)
    layer = BankLayer([path], THREE)
    assert layer.resident(5) == ((0, 1),)
    assert layer.file_of(5, 0).path == path


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first, second = layer_of(tmp_path, BankSegment(0, 0, 0, 4), BankSegment(0, 1, 4, 3))
    whole = tmp_path / "whole"
    whole.write_bytes(GOLDEN)
    tables = Tables(0, (population(7),), (BankSegment(0, 1, 4, 3),), one_of_several=True)
    other_layer = write(tmp_path / "layer", dataclasses.replace(tables, logical_layer=1))
    other_bank = write(tmp_path / "bank", dataclasses.replace(tables, banks=(population(8),)))
    overlapping = write(
        tmp_path / "over", dataclasses.replace(tables, segments=(BankSegment(0, 1, 3, 4),))
    )
    same_index = write(
        tmp_path / "same", dataclasses.replace(tables, segments=(BankSegment(0, 0, 4, 3),))
    )
    for paths, words in (
        ([], "needs at least one file, found none"),
        ([first, whole], "is a whole layer and not one of several segments, but 2 files"),
        ([first, other_layer], "belongs to layer 1, but .* to layer 0"),
        ([first, other_bank], "its banks and region schemas are not those of"),
        ([first, overlapping], "segment 1 of bank 0 is entries 3 to 7, but segment 0 in"),
        ([first, same_index], "segment 0 of bank 0 is entries 4 to 7, but segment 0 in"),
        ([first, second, second], "segment 1 of bank 0 is entries 4 to 7, but segment 1 in"),
    ):
        with pytest.raises(BindingDefect, match=words):
            BankLayer(paths, THREE)
