"""LYRW version 2, written: exact bytes, in the memory of one region, whole or not at all."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from larql.errors import ContainerError, OutputError
from larql.format.encoding import ENCODINGS
from larql.format.generation import SchemaVersion
from larql.format.lyrw.codes import BankKind, Layout, Packing, Role, format_code, packing_of
from larql.format.lyrw.tables import Bank, BankSegment, RegionSchema, Tables
from larql.format.lyrw.v2 import BankFile
from larql.format.lyrw.v2_writer import BankWriter, write_banks
from tests.format.lyrw.golden import (
    DOWN,
    FUSED,
    GOLDEN,
    REGIONS,
    ROUTED,
    SCALES,
    SHARED,
    TABLES,
    VALUES,
)

THREE = SchemaVersion(3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "layer_007.lyrw"


def give(writer: BankWriter, count: int = len(REGIONS)) -> None:
    for bank_id, entry, region, data in REGIONS[:count]:
        writer.region(bank_id, entry, region, [data[:1], memoryview(data)[1:]])


def test_the_golden_file_is_written(path: Path) -> None:
    with write_banks(path, TABLES) as writer:
        give(writer)
        assert not path.exists()
    assert path.read_bytes() == GOLDEN
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_array_is_written_as_its_bytes(path: Path) -> None:
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    region = RegionSchema(0, Role.DOWN, 0, 0, 2, 3)
    tables = Tables(
        0, (Bank(0, BankKind.DENSE, 1, 3, 1, 2, (region,)),), (BankSegment(0, 0, 0, 1),)
    )
    with write_banks(path, tables) as writer:
        writer.region(0, 0, region, [memoryview(values[:1]), memoryview(values[1:])])
    found = BankFile(path, THREE).stored_rows(0, 0, region)
    assert np.array_equal(found.view("<f4"), values)


@pytest.mark.parametrize("name", [name for name, e in ENCODINGS.items() if e.unpacked is None])
def test_every_encoding_is_carried_verbatim(path: Path, name: str) -> None:
    encoding = ENCODINGS[name]
    region = RegionSchema(0, Role.DOWN, format_code(encoding), packing_of(encoding), 3, 512)
    tables = Tables(
        0, (Bank(2, BankKind.ROUTED, 2, 1, 1, 1, (region,)),), (BankSegment(2, 0, 0, 2),)
    )
    data = [np.random.default_rng(e).bytes(encoding.nbytes((3, 512))) for e in range(2)]
    with write_banks(path, tables) as writer:
        for entry in range(2):
            writer.region(2, entry, region, [data[entry]])
    file = BankFile(path, THREE)
    assert [file.stored_rows(2, e, region).tobytes() for e in range(2)] == data
    assert file.stored_rows(2, 0, region).shape == (3, encoding.row_bytes(512))


def test_a_format_without_geometry_is_carried_and_its_length_recorded(path: Path) -> None:
    region = RegionSchema(0, 99, 9, 1, 7, 7)
    tables = Tables(
        0, (Bank(0, BankKind.ROUTED, 2, 1, 1, 1, (region,)),), (BankSegment(0, 0, 0, 2),)
    )
    with write_banks(path, tables) as writer:
        writer.region(0, 0, region, [b"abc"])
        writer.region(0, 1, region, [b"de", b"fgh"])
    file = BankFile(path, THREE)
    assert file.tables == tables
    assert file.stored_bytes(0, 1, region).tobytes() == b"defgh"


def test_a_segment_file_holds_its_entries_only(path: Path) -> None:
    routed = dataclasses.replace(ROUTED, num_entries=112)
    tables = Tables(7, (routed, SHARED), (BankSegment(0, 3, 48, 2),), one_of_several=True)
    with write_banks(path, tables) as writer:
        for entry in (48, 49):
            writer.region(0, entry, FUSED, [bytes([entry]) * 36])
            writer.region(0, entry, DOWN, [bytes([entry]) * 6])
    content = path.read_bytes()
    assert content[16:20] == bytes.fromhex("01 00 00 00")
    assert content[72:84] == bytes.fromhex("0000 0300 30000000 02000000")
    file = BankFile(path, THREE)
    assert file.tables == tables
    assert set(file.stored_bytes(0, 49, FUSED).tolist()) == {49}


# Peak memory


def peak_of_writing(path: Path, entries: int, rows: int) -> int:
    """Write a bank whose regions are made one at a time; give the traced peak."""
    fused = RegionSchema(0, Role.GATE_UP_FUSED, 6, Packing.BLOCKS_INLINE, 2 * rows, 256)
    down = RegionSchema(1, Role.DOWN, 6, Packing.BLOCKS_INLINE, rows, 256)
    bank = Bank(0, BankKind.ROUTED, entries, 256, rows, rows, (fused, down))
    tables = Tables(0, (bank,), (BankSegment(0, 0, 0, entries),))

    def made(region: RegionSchema, entry: int) -> Iterator[memoryview]:
        yield memoryview(np.full((region.rows, 272), entry % 251, np.uint8))

    tracemalloc.start()
    with write_banks(path, tables) as writer:
        for entry in range(entries):
            for region in (fused, down):
                writer.region(0, entry, region, made(region, entry))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_bank_of_896_experts_is_written_in_the_memory_of_one_tensor(path: Path) -> None:
    rows = 64
    tensor = 2 * rows * 272
    peak = peak_of_writing(path, 896, rows)
    assert path.stat().st_size > 1000 * tensor
    # One tensor, and for each region an offset and a length, held, zeroed and packed; a buffer.
    assert peak < tensor + 3 * 896 * 2 * 16 + (32 << 10)
    assert peak < 5 * tensor
    file = BankFile(path, THREE)
    for entry in (0, 500, 895):
        for region in file.bank(0).schemas:
            assert set(np.unique(file.stored_rows(0, entry, region))) == {entry % 251}


def test_peak_memory_follows_the_table_and_not_the_payload(path: Path) -> None:
    few, many = peak_of_writing(path, 8, 64), peak_of_writing(path, 136, 64)
    assert many - few < 128 * 2 * 16 * 4 + 4096


# Whole or not at all


def nothing_is_left(path: Path) -> bool:
    return list(path.parent.iterdir()) == []


@pytest.mark.parametrize("problem", [KeyboardInterrupt, ValueError, ContainerError])
@pytest.mark.parametrize("given", [0, 3])
def test_an_abandoned_writer_leaves_no_file(
    path: Path, given: int, problem: type[BaseException]
) -> None:
    with pytest.raises(problem), write_banks(path, TABLES) as writer:
        give(writer, given)
        raise problem
    assert nothing_is_left(path)


def test_an_abandoned_writer_leaves_the_old_file(path: Path) -> None:
    path.write_bytes(b"old")
    with pytest.raises(ValueError), write_banks(path, TABLES):
        raise ValueError
    assert path.read_bytes() == b"old"
    with write_banks(path, TABLES) as writer:
        give(writer)
    assert path.read_bytes() == GOLDEN


def test_missing_regions_are_refused_naming_both_counts(path: Path) -> None:
    words = r"5 of 6 regions were given; bank 5, entry 0, schema 1 \(scales\) is missing"
    with pytest.raises(ContainerError, match=words), write_banks(path, TABLES) as writer:
        give(writer, 5)
    assert nothing_is_left(path)


@pytest.mark.parametrize(
    ("given", "bank_id", "entry", "region", "data", "words"),
    [
        (0, 0, 1, FUSED, bytes(36), r"entry 1, schema 0 \(gate_up_fused\) was given where bank 0"),
        (0, 0, 0, DOWN, bytes(6), r"schema 1 \(down\) was given where bank 0, entry 0, schema 0"),
        (0, 5, 0, VALUES, bytes(16), r"bank 5, entry 0, schema 0 \(up\) was given where bank 0"),
        (0, 0, 0, FUSED, bytes(35), "gave 35 bytes, expected 36 for its format and shape"),
        (0, 0, 0, FUSED, bytes(37), "gave 37 bytes or more, expected 36"),
        (0, 0, 0, FUSED, b"", "gave 0 bytes, expected 36"),
        (6, 0, 0, FUSED, bytes(36), r"schema 0 \(gate_up_fused\) is one region more than planned"),
    ],
)
def test_what_was_not_planned_is_refused(
    path: Path,
    given: int,
    bank_id: int,
    entry: int,
    region: RegionSchema,
    data: bytes,
    words: str,
) -> None:
    with pytest.raises(ContainerError, match=words), write_banks(path, TABLES) as writer:
        give(writer, given)
        writer.region(bank_id, entry, region, [data])
    assert nothing_is_left(path)


def test_an_empty_region_of_unknown_geometry_is_refused(path: Path) -> None:
    region = RegionSchema(0, 0, 9, 0, 1, 1)
    tables = Tables(
        0, (Bank(0, BankKind.ROUTED, 1, 1, 1, 1, (region,)),), (BankSegment(0, 0, 0, 1),)
    )
    with (
        pytest.raises(ContainerError, match="gave 0 bytes, expected at least one"),
        write_banks(path, tables) as writer,
    ):
        writer.region(0, 0, region, [b""])


def test_a_place_that_cannot_be_written_is_refused(path: Path, tmp_path: Path) -> None:
    for place, words in (
        (tmp_path / "no" / "x", "parent directory does not exist"),
        (tmp_path, "is a directory"),
        (Path("/dev/null"), "is not a regular file"),
    ):
        with pytest.raises(OutputError, match=words), write_banks(place, TABLES) as writer:
            give(writer)


# Plans


def with_schema(region: RegionSchema) -> Tables:
    return dataclasses.replace(
        TABLES, banks=(dataclasses.replace(ROUTED, schemas=(region,)), SHARED)
    )


def with_bank(bank: Bank) -> Tables:
    return dataclasses.replace(TABLES, banks=(bank, SHARED))


def with_pair(*schemas: RegionSchema) -> Tables:
    return dataclasses.replace(TABLES, banks=(ROUTED, dataclasses.replace(SHARED, schemas=schemas)))


def with_segments(*segments: BankSegment, one_of_several: bool = False) -> Tables:
    return dataclasses.replace(TABLES, segments=segments, one_of_several=one_of_several)


PLANS: dict[str, tuple[Tables, str]] = {
    "layer": (dataclasses.replace(TABLES, logical_layer=1 << 32), "logical layer is 4294967296"),
    "no bank": (Tables(0, (), ()), "number of banks is 0"),
    "bank twice": (
        dataclasses.replace(TABLES, banks=(ROUTED, dataclasses.replace(SHARED, bank_id=0))),
        "bank 0 stands twice",
    ),
    "bank id": (with_bank(dataclasses.replace(ROUTED, bank_id=1 << 16)), "bank id is 65536"),
    "population": (
        with_bank(dataclasses.replace(ROUTED, num_entries=0)),
        "number of entries is 0",
    ),
    "input": (with_bank(dataclasses.replace(ROUTED, input_dim=-1)), "input width is -1"),
    "no schema": (with_bank(dataclasses.replace(ROUTED, schemas=())), "region schemas is 0"),
    "schema order": (
        with_bank(dataclasses.replace(ROUTED, schemas=(DOWN, FUSED))),
        "stands after schema 1",
    ),
    "role": (with_schema(dataclasses.replace(FUSED, role=1 << 16)), "role is 65536"),
    "format": (with_schema(dataclasses.replace(FUSED, format=-1)), "format is -1"),
    "rows": (with_schema(dataclasses.replace(FUSED, rows=0)), "number of rows is 0"),
    "blocks": (with_schema(dataclasses.replace(FUSED, cols=40)), "40 columns are not a multiple"),
    "unpaired is no pair id": (
        with_schema(dataclasses.replace(FUSED, pair_id=0xFFFF)),
        "pair id is 65535, expected 0 to 65534",
    ),
    "layout": (
        with_schema(dataclasses.replace(FUSED, layout=Layout.INTERLEAVED)),
        "states layout 2, which a container of index schema 3 cannot",
    ),
    "packing of blocks": (
        with_schema(dataclasses.replace(FUSED, packing=Packing.ROW_MAJOR)),
        "is q4_0 packed as row_major; expected blocks_inline",
    ),
    "packing of floats": (
        with_schema(dataclasses.replace(DOWN, packing=Packing.BLOCKS_INLINE)),
        "is f16 packed as blocks_inline; expected row_major",
    ),
    "values without scales": (
        with_pair(dataclasses.replace(VALUES, pair_id=None)),
        "holds block_values but has no pair id",
    ),
    "half a pair": (with_pair(VALUES), "has pair id 9 with 1 regions, expected two"),
    "no pair": (
        with_pair(dataclasses.replace(VALUES, rows=2), SCALES),
        "pair 9 is none: they have 2 and 1 rows",
    ),
    "segment of no bank": (with_segments(BankSegment(4, 0, 0, 1)), "belongs to no bank"),
    "not whole": (
        with_segments(BankSegment(0, 0, 0, 1), BankSegment(5, 0, 0, 1)),
        "has 1 of its 2 entries here, but the file is not marked",
    ),
    "two of a bank": (
        with_segments(
            BankSegment(0, 0, 0, 1),
            BankSegment(0, 1, 1, 1),
            BankSegment(5, 0, 0, 1),
        ),
        "expected one segment of each bank, all of one index",
    ),
    "two indices": (
        with_segments(BankSegment(0, 1, 0, 1), BankSegment(5, 0, 0, 1), one_of_several=True),
        "has segments [0, 1] of banks [0, 5]; expected one segment of each bank",
    ),
    "an index in a whole file": (
        with_segments(BankSegment(0, 1, 0, 2), BankSegment(5, 1, 0, 1)),
        "which is 0 in a file that is whole",
    ),
    "too many regions": (
        Tables(
            0,
            (dataclasses.replace(ROUTED, num_entries=1 << 20),),
            (BankSegment(0, 0, 0, 1 << 20),),
        ),
        "describes 2097152 regions, above the limit of 131072",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_an_invalid_plan_is_refused_before_the_file_exists(path: Path, name: str) -> None:
    plan, words = PLANS[name]
    with pytest.raises(ContainerError) as caught, write_banks(path, plan):
        raise AssertionError("the body must not run")
    assert words in str(caught.value)
    assert nothing_is_left(path)
