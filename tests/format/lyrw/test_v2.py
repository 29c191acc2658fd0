"""LYRW version 2, read: exact bytes, views, lookups, and every refusal."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from larql.errors import (
    BindingDefect,
    ContainerError,
    GenerationError,
    ResidencyRefusal,
    UnsupportedRefusal,
)
from larql.format.codec import decode, decode_mxfp4_checkpoint
from larql.format.encoding import ENCODINGS
from larql.format.generation import SchemaVersion
from larql.format.lyrw.codes import Layout, Role
from larql.format.lyrw.tables import BankSegment, RegionSchema
from larql.format.lyrw.v2 import BankFile, Extent, bank_file_name
from tests.builders.lyrw import bank, header, schema, segment, u64, v2_file
from tests.format.lyrw.golden import (
    BANKS,
    DOWN,
    ENTRIES,
    FUSED,
    GOLDEN,
    REGIONS,
    SCALES,
    SCHEMAS,
    SEGMENTS,
    TABLES,
    TABLES_END,
    VALUES,
    patched,
)

THREE, FOUR = SchemaVersion(3), SchemaVersion(4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "layer_007.lyrw"


@pytest.fixture
def golden(path: Path) -> Path:
    path.write_bytes(GOLDEN)
    return path


def opened(path: Path, content: bytes, version: SchemaVersion = THREE) -> BankFile:
    path.write_bytes(content)
    return BankFile(path, version)


def test_the_golden_file_is_read(golden: Path) -> None:
    file = BankFile(golden, THREE)
    assert file.tables == TABLES
    assert file.size == 641
    for bank_id, entry, region, data in REGIONS:
        assert file.stored_bytes(bank_id, entry, region).tobytes() == data
    assert file.extent(0, 1, DOWN) == Extent(golden, 0x200, 6)
    assert file.stored_rows(0, 0, FUSED).shape == (2, 18)
    assert file.stored_rows(0, 1, DOWN).view("<f2").tolist() == [[-1], [-2], [-3]]
    assert file.stored_rows(5, 0, VALUES).shape == (1, 16)
    assert file.stored_rows(5, 0, SCALES).tolist() == [[127]]


def test_lookups_of_roles_and_pairs(golden: Path) -> None:
    file = BankFile(golden, THREE)
    assert file.schema(0, Role.GATE_UP_FUSED) is file.bank(0).schemas[0]
    assert file.schema(5, Role.SCALES) == SCALES
    assert file.partner(5, VALUES) == SCALES
    assert file.partner(5, SCALES) == VALUES


def test_views_are_of_one_map_and_cannot_be_written(golden: Path) -> None:
    file = BankFile(golden, THREE)
    view = file.stored_rows(0, 1, FUSED)
    assert not view.flags.writeable
    assert not view.flags.owndata
    assert np.shares_memory(view, file.stored_bytes(0, 1, FUSED))


def test_stored_blocks_are_what_the_codec_reads(path: Path) -> None:
    """Native MXFP4, inline: sixteen bytes 0x21 with scale 127 give sixteen .5, then 1.0."""
    block = b"\x7f" + b"\x21" * 16
    tables = header() + bank() + segment() + schema(0, 1, 8, 1, rows=1, cols=32)
    file = opened(path, v2_file(tables, [block]))
    rows = file.stored_rows(0, 0, file.schema(0, Role.UP))
    assert decode(ENCODINGS["mxfp4"], rows, 32).tolist() == [[0.5] * 16 + [1.0] * 16]


def test_native_values_and_scales_are_what_the_codec_reads(golden: Path) -> None:
    """The same bytes in a checkpoint's own order alternate .5 and 1.0."""
    file = BankFile(golden, THREE)
    values = file.stored_rows(5, 0, VALUES).reshape(1, -1, 16)
    scales = file.stored_rows(5, 0, file.partner(5, VALUES))
    assert decode_mxfp4_checkpoint(values, scales).reshape(-1).tolist() == [0.5, 1.0] * 16


# Refusals of lookups


def test_lookups_that_find_nothing_are_binding_defects(golden: Path) -> None:
    file = BankFile(golden, THREE)
    unlike = RegionSchema(0, Role.GATE, 0, 0, 1, 1)
    for call, words in (
        (lambda: file.bank(1), "there is no bank 1; it has 0, 5"),
        (lambda: file.schema(1, Role.UP), "there is no bank 1"),
        (lambda: file.schema(0, Role.UP), "bank 0 has no region of role up; it has gate_up_fused,"),
        (lambda: file.schema(0, 77), "no region of role unknown role 77"),
        (lambda: file.extent(0, 2, DOWN), "bank 0 has no entry 2, expected 0 to 1"),
        (lambda: file.extent(0, -1, DOWN), "bank 0 has no entry -1"),
        (lambda: file.extent(0, 0, VALUES), r"bank 0 has no schema 0 \(up\) of mxfp4 block_values"),
        (
            lambda: file.stored_bytes(0, 0, unlike),
            r"no schema 0 \(gate\) of f32 row_major \[1, 1\]",
        ),
        (lambda: file.partner(0, DOWN), "has pair id None and 0 partners, expected one"),
    ):
        with pytest.raises(BindingDefect, match=words):
            call()


def test_two_regions_of_one_role_are_named_by_schema(path: Path) -> None:
    two = schema(3, 4, rows=1, cols=1) + schema(8, 4, rows=1, cols=1)
    file = opened(path, v2_file(header() + bank(schemas=2) + segment() + two, [bytes(4)] * 2))
    with pytest.raises(BindingDefect, match="2 regions of role bias, expected one; name its sch"):
        file.schema(0, Role.BIAS)
    assert [item.schema_index for item in file.bank(0).schemas] == [3, 8]


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        (schema(1, 5, 8, 3, pair=9, rows=2, cols=1), "they have 1 and 2 rows"),
        (schema(1, 5, 8, 3, pair=9, rows=1, cols=2), "32 values a row need 1 scales, found 2"),
        (schema(1, 5, 0, 0, pair=9, rows=1, cols=1), "they are packed as row_major and block_val"),
        (schema(1, 5, 9, 3, pair=9, rows=1, cols=1), "their formats are mxfp4 and nvfp4"),
        (schema(1, 5, 8, 3, pair=8, rows=1, cols=1), "has pair id 9 and 0 partners"),
        (
            schema(1, 5, 8, 3, pair=9, rows=1, cols=1) + schema(2, 5, 8, 3, pair=9, rows=1, cols=1),
            "has pair id 9 and 2 partners",
        ),
    ],
)
def test_what_is_no_pair_is_refused_when_it_is_asked_for(
    path: Path, scales: bytes, words: str
) -> None:
    count = 1 + len(scales) // 20
    tables = header() + bank(schemas=count) + segment()
    tables += schema(0, 1, 8, 2, pair=9, rows=1, cols=32) + scales
    sizes = [16, *(int.from_bytes(scales[12:16], "little") for _ in range(count - 1))]
    if scales[4] == 0:
        sizes[1] = 4
    if scales[16] == 2:
        sizes[1] = 2
    file = opened(path, v2_file(tables, [bytes(size) for size in sizes]))
    with pytest.raises(BindingDefect, match=words):
        file.partner(0, file.schema(0, Role.UP))


def test_an_entry_of_another_segment_is_not_resident(path: Path) -> None:
    tables = header(flags=1) + bank(entries=9) + segment(0, 2, 4, 2) + schema(rows=1, cols=1)
    file = opened(path, v2_file(tables, [b"four", b"five"]))
    (region,) = file.bank(0).schemas
    assert file.stored_bytes(0, 5, region).tobytes() == b"five"
    assert file.tables.segments == (BankSegment(0, 2, 4, 2),)
    for entry in (0, 3, 6, 8):
        words = f"entry {entry} of bank 0 is not in this file, which holds 4:6 of 9; fetch the seg"
        with pytest.raises(ResidencyRefusal, match=words):
            file.extent(0, entry, region)
    with pytest.raises(BindingDefect, match="has no entry 9"):
        file.extent(0, 9, region)


def test_a_segment_file_may_hold_nothing_of_a_bank(path: Path) -> None:
    tables = header(flags=1, banks=2) + bank(3) + bank(4) + segment(4)
    tables += schema(rows=1, cols=1) + schema(rows=1, cols=1)
    file = opened(path, v2_file(tables, [b"data"]))
    with pytest.raises(ResidencyRefusal, match="which holds none of the bank of 1"):
        file.extent(3, 0, file.bank(3).schemas[0])
    assert file.stored_bytes(4, 0, file.bank(4).schemas[0]).tobytes() == b"data"


# Unknown tags


@pytest.mark.parametrize("which", ["role", "format", "packing"])
def test_unknown_tags_are_kept_and_only_what_needs_them_is_refused(path: Path, which: str) -> None:
    tags = {"role": 2, "format": 0, "packing": 0} | {which: 0x7FFF}
    one = schema(0, tags["role"], tags["format"], tags["packing"], rows=1, cols=1)
    tables = header() + bank(schemas=2) + segment() + one + schema(1, 3, rows=1, cols=1)
    file = opened(path, v2_file(tables, [b"1234", b"5678"]))
    odd, plain = file.bank(0).schemas
    assert (odd.role, odd.format, odd.packing) == tuple(tags.values())
    assert file.stored_bytes(0, 0, odd).tobytes() == b"1234"
    assert file.stored_rows(0, 0, plain).shape == (1, 4)
    if which == "role":
        assert file.stored_rows(0, 0, odd).shape == (1, 4)
        return
    with pytest.raises(UnsupportedRefusal, match=f"unknown {which} 32767.*this build cannot read"):
        file.stored_rows(0, 0, odd)


def test_an_unknown_format_has_no_expected_length(path: Path) -> None:
    tables = header() + bank() + segment() + schema(0, 2, 9, 2, rows=1000, cols=1000)
    file = opened(path, v2_file(tables, [b"abc"]))
    assert file.bank(0).schemas[0].nbytes is None
    assert file.stored_bytes(0, 0, file.bank(0).schemas[0]).tobytes() == b"abc"


def test_a_layout_is_read_under_schema_4_only(path: Path) -> None:
    tables = header() + bank() + segment() + schema(rows=1, cols=1, layout=2)
    content = v2_file(tables, [b"data"])
    assert opened(path, content, FOUR).schema(0, 2).layout == Layout.INTERLEAVED
    with pytest.raises(UnsupportedRefusal, match="has reserved field 2, expected 0: only index sc"):
        opened(path, content)
    assert opened(path, GOLDEN, FOUR).tables == TABLES


@pytest.mark.parametrize("number", [1, 2])
def test_an_index_of_another_generation_is_refused(golden: Path, number: int) -> None:
    with pytest.raises(GenerationError, match="requires the VINDEX2 loader"):
        BankFile(golden, SchemaVersion(number))


def test_a_version_1_file_is_refused_before_its_tables(path: Path) -> None:
    with pytest.raises(GenerationError, match="version 1 requires the VINDEX2 loader"):
        opened(path, patched(4, 1, 4)[:24])


# Hostile files

ONE = header() + bank() + segment() + schema(rows=1, cols=1)
TWO = header() + bank(entries=2) + segment(count=2)


def laid(tables: bytes, numbers: list[int], size: int) -> bytes:
    """A file whose entry table says what it is told to, of some size."""
    return (tables + u64(*numbers)).ljust(size, b"\0")


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes are too few for a LYRW file"),
    "header cut": (
        GOLDEN[:23],
        "the header is cut short: it is bytes 0 to 24, but the file has 23",
    ),
    "banks cut": (
        GOLDEN[: SEGMENTS - 1],
        "the table of 2 banks is cut short: it is bytes 24 to 72, but the file has 71",
    ),
    "segments cut": (
        GOLDEN[: SCHEMAS - 1],
        "the table of 2 segments is cut short: it is bytes 72 to 96, but the file has 95",
    ),
    "schemas cut": (
        GOLDEN[: ENTRIES - 1],
        "the table of 2 region schemas of bank 5 is cut short: it is bytes 136 to 176, but the",
    ),
    "entries cut": (
        GOLDEN[: TABLES_END - 1],
        "the table of 6 regions is cut short: it is bytes 176 to 272, but the file has 271",
    ),
    "payload cut": (
        GOLDEN[:640],
        "bank 5, entry 0, schema 1 (scales) is bytes 640 to 641, out of range of the file of 640",
    ),
    "trailing": (
        GOLDEN + bytes(64),
        "bank 5, entry 0, schema 1 (scales) is the last and ends at byte 641, but 64 trailing",
    ),
    "no banks": (patched(12, 0, 2), "number of banks is 0, expected 1 to 65535"),
    "no segments": (
        header(segments=0) + bank() + schema(rows=1, cols=1) + bytes(64),
        "number of segments is 0, expected 1 to 65535",
    ),
    "65535 banks": (patched(12, 65535, 2), "the table of 65535 banks is cut short"),
    "65535 segments": (patched(14, 65535, 2), "the table of 65535 segments is cut short"),
    "65535 schemas": (
        patched(BANKS + 4, 65535, 2),
        "describes 65537 region schemas, above the limit of 4096",
    ),
    "no schemas": (
        header() + bank(schemas=0) + segment() + bytes(64),
        "bank 0: number of region schemas is 0, expected 1",
    ),
    "bank twice": (patched(BANKS + 24, 0, 2), "bank 0 stands twice in the table of banks"),
    "no entries": (patched(BANKS + 8, 0, 4), "bank 0: number of entries is 0, expected 1"),
    "no input": (patched(BANKS + 12, 0, 4), "bank 0: input width is 0, expected 1"),
    "no inside": (patched(BANKS + 16, 0, 4), "bank 0: intermediate width is 0, expected 1"),
    "no output": (patched(BANKS + 20, 0, 4), "bank 0: output width is 0, expected 1"),
    "no such bank": (
        patched(SEGMENTS + 12, 4, 2),
        "segment 0 of bank 4 (number 1 in the table) belongs to no bank of the file, which has 0,",
    ),
    "bank order": (
        GOLDEN[:SEGMENTS]
        + GOLDEN[SEGMENTS + 12 : SCHEMAS]
        + GOLDEN[SEGMENTS : SEGMENTS + 12]
        + GOLDEN[SCHEMAS:],
        "segment 0 of bank 0 stands after that of a later bank; expected bank order",
    ),
    "segment outside": (
        patched(SEGMENTS + 4, 2, 4),
        "segment 0 of bank 0: first entry is 2, expected 0 to 1",
    ),
    "segment beyond": (
        patched(SEGMENTS + 4, 1, 4),
        "segment 0 of bank 0 is entries 1 to 3, beyond the 2 of the bank",
    ),
    "segment empty": (
        patched(SEGMENTS + 8, 0, 4),
        "segment 0 of bank 0: number of entries is 0, expected 1",
    ),
    "segment twice": (
        header(segments=2) + bank(entries=2) + segment(0, 1, 0, 1) + segment(0, 1, 1, 1) + ONE[60:],
        "segment 1 of bank 0 stands after segment 1; expected ascending indices, each once",
    ),
    "segments over each other": (
        header(segments=2) + bank(entries=2) + segment(0, 0, 0, 2) + segment(0, 1, 1, 1) + ONE[60:],
        "segment 1 of bank 0 begins at entry 1, but segment 0 reaches to 2",
    ),
    "not whole": (
        patched(SEGMENTS + 8, 1, 4),
        "bank 0 has 1 of its 2 entries here, but the file is not marked as one of several",
    ),
    "schema order": (
        patched(SCHEMAS + 20, 0, 2),
        "bank 0, schema 0 (down) stands after schema 0; expected ascending indices, each once",
    ),
    "no rows": (patched(SCHEMAS + 12, 0, 4), "schema 0 (gate_up_fused): number of rows is 0"),
    "no columns": (patched(SCHEMAS + 16, 0, 4), "schema 0 (gate_up_fused): number of columns is 0"),
    "partial block": (
        patched(SCHEMAS + 16, 33, 4),
        "bank 0, schema 0 (gate_up_fused): q4_0: 33 columns are not a multiple of its block of 32",
    ),
    "too many bytes": (
        v2_file(ONE[:60] + schema(rows=0xFFFFFFFF, cols=0xFFFFFFFF), [bytes(4)]),
        "schema 0 (gate_up_fused): number of bytes is 737869762",
    ),
    "too many entries": (
        header() + bank(entries=0xFFFFFFFF) + segment(count=0xFFFFFFFF) + ONE[60:],
        "describes 4294967295 regions, above the limit of 131072",
    ),
    "misaligned": (
        patched(ENTRIES, 0x141, 8),
        "bank 0, entry 0, schema 0 (gate_up_fused) begins at byte 321, expected a multiple of 64",
    ),
    "in the tables": (
        patched(ENTRIES + 16, 256, 8),
        "bank 0, entry 0, schema 1 (down) begins at byte 256, inside the tables, which end at 272",
    ),
    "beyond 64 bits": (
        patched(ENTRIES + 40, (1 << 64) - 1, 8),
        "bank 0, entry 1, schema 0 (gate_up_fused) is bytes 448 to 18446744073709552063, out of",
    ),
    "empty region": (patched(ENTRIES + 8, 0, 8), "entry 0, schema 0 (gate_up_fused) is empty"),
    "short region": (
        patched(ENTRIES + 8, 35, 8),
        "bank 0, entry 0, schema 0 (gate_up_fused) has 35 bytes, expected 36 for its format and",
    ),
    "overlap": (
        laid(TWO + schema(rows=2, cols=16), [128, 128, 192, 128], 320),
        "bank 0, entry 1, schema 0 (gate_up_fused) begins at byte 192, inside bank 0, entry 0, "
        "schema 0 (gate_up_fused), which is bytes 128 to 256; expected regions that do not overlap",
    ),
    "half out of the whole": (
        laid(
            header()
            + bank(schemas=2)
            + segment()
            + schema(0, 2, rows=2, cols=16)
            + schema(1, 0, rows=2, cols=16),
            [192, 128, 256, 128],
            384,
        ),
        "bank 0, entry 0, schema 1 (gate) begins at byte 256, inside bank 0, entry 0, schema 0",
    ),
    "part of another entry": (
        laid(
            header()
            + bank(entries=2, schemas=2)
            + segment(count=2)
            + schema(0, 2, rows=2, cols=16)
            + schema(1, 1, rows=1, cols=16),
            [192, 128, 384, 64, 320, 128, 384, 64],
            448,
        ),
        "bank 0, entry 0, schema 1 (up) begins at byte 384, inside bank 0, entry 1, schema 0",
    ),
    "one extent, two shapes": (
        laid(
            header()
            + bank(schemas=2)
            + segment()
            + schema(0, 1, rows=1, cols=4)
            + schema(1, 3, rows=4, cols=1),
            [192, 16, 192, 16],
            208,
        ),
        "bank 0, entry 0, schema 1 (down) and bank 0, entry 0, schema 0 (up) are one extent at "
        "byte 192, but disagree about its format or shape",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_file_is_refused_with_its_own_message(path: Path, name: str) -> None:
    content, words = HOSTILE[name]
    with pytest.raises(ContainerError) as caught:
        opened(path, content)
    text = str(caught.value)
    assert type(caught.value) is ContainerError
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert len(text) < 700
    assert words in text


def test_messages_differ() -> None:
    words = [words for _, words in HOSTILE.values()]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (patched(16, 2, 4), "the header has flags 0x2 and reserved field 0x0"),
        (patched(20, 1, 4), "the header has flags 0x0 and reserved field 0x1"),
        (patched(BANKS + 2, 3, 2), "bank 0 has kind 3 and flags 0x1"),
        (patched(BANKS + 6, 3, 2), "bank 0 has kind 1 and flags 0x3"),
        (patched(BANKS + 6, 4, 2), "bank 0 has kind 1 and flags 0x4"),
    ],
)
def test_fields_that_decide_how_tables_are_read_must_be_known(
    path: Path, content: bytes, words: str
) -> None:
    with pytest.raises(UnsupportedRefusal) as caught:
        opened(path, content)
    assert words in str(caught.value)
    assert "a newer larql may read it" in str(caught.value)


# Regions that lie together


def test_regions_may_lie_in_any_order_with_holes(path: Path) -> None:
    content = laid(TWO + schema(rows=1, cols=1), [256, 4, 192, 4], 192) + b"late"
    file = opened(path, content.ljust(256, b"\xff") + b"soon" + bytes(63))
    (region,) = file.bank(0).schemas
    assert file.stored_bytes(0, 0, region).tobytes() == b"soon"
    assert file.stored_bytes(0, 1, region).tobytes() == b"late"


def test_one_extent_used_twice_is_one_allocation(path: Path) -> None:
    file = opened(path, laid(TWO + schema(rows=1, cols=1), [128, 4, 128, 4], 128) + b"data")
    (region,) = file.bank(0).schemas
    assert file.extent(0, 0, region) == file.extent(0, 1, region)


def test_a_fused_region_and_its_halves_are_distinct_extents(path: Path) -> None:
    tables = header() + bank(schemas=3) + segment() + schema(0, 2, rows=2, cols=16)
    tables += schema(1, 0, rows=1, cols=16) + schema(2, 1, rows=1, cols=16)
    content = laid(tables, [192, 128, 192, 64, 256, 64], 192) + b"g" * 64 + b"u" * 64
    file = opened(path, content)
    fused, gate, up = file.bank(0).schemas
    assert file.stored_bytes(0, 0, fused).tobytes() == b"g" * 64 + b"u" * 64
    assert file.stored_bytes(0, 0, gate).tobytes() == b"g" * 64
    assert file.stored_bytes(0, 0, up).tobytes() == b"u" * 64
    assert len({file.extent(0, 0, region) for region in (fused, gate, up)}) == 3


def test_all_defects_are_listed(path: Path, golden: Path) -> None:
    assert BankFile.defects(golden, THREE) == ()
    content = bytearray(GOLDEN[:640])
    content[ENTRIES + 8] = 37
    path.write_bytes(content)
    found = BankFile.defects(path, THREE)
    assert [(defect.bank, defect.entry) for defect in found] == [(0, 0), (5, 0)]
    assert "has 37 bytes, expected 36" in found[0].message
    assert "out of range" in found[1].message


# Cost


def test_opening_reads_tables_only_and_a_view_costs_nothing(path: Path) -> None:
    """A file of 1 TiB, sparse: two regions at its ends."""
    far = 1 << 40
    tables = TWO + schema(rows=1 << 14, cols=1 << 14) + u64(128, 1 << 30, far, 1 << 30)
    path.write_bytes(tables)
    with path.open("r+b") as stream:
        stream.truncate(far + (1 << 30))
        stream.seek(far)
        stream.write(b"far")
    tracemalloc.start()
    file = BankFile(path, THREE)
    (region,) = file.bank(0).schemas
    view = file.stored_rows(0, 1, region)
    assert view[0, :4].tobytes() == b"far\0"
    assert view.shape == (1 << 14, 1 << 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("count", [1 << 31, 0xFFFFFFFF])
def test_a_made_up_count_costs_no_memory(path: Path, count: int) -> None:
    path.write_bytes(header() + bank(entries=count) + segment(count=count) + schema())
    with path.open("r+b") as stream:
        stream.truncate(1 << 40)
    tracemalloc.start()
    with pytest.raises(ContainerError, match="above the limit of 131072"):
        BankFile(path, THREE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_opening_does_not_import_numpy(golden: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from larql.format.lyrw.v2 import BankFile;"
        "from larql.format.lyrw.v1 import LayerWeights;"
        "from larql.format.generation import SchemaVersion;"
        f"BankFile(Path({str(golden)!r}), SchemaVersion(3)); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_that_changed_is_refused(golden: Path) -> None:
    file = BankFile(golden, THREE)
    golden.write_bytes(GOLDEN[:600])
    with pytest.raises(ContainerError, match="was changed after it was opened; open it again"):
        file.stored_bytes(0, 0, DOWN)


def test_names_of_files() -> None:
    assert bank_file_name(7) == "routed/layer_007.lyrw"
    assert bank_file_name(7, 3) == "routed/layer_007.seg03.lyrw"
