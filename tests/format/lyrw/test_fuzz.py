"""Whatever the bytes are, a file opens soundly or is refused in one line, in little memory."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from larql.errors import LarqlError, Refusal
from larql.format.generation import SchemaVersion
from larql.format.lyrw.v1 import LayerWeights
from larql.format.lyrw.v2 import BankFile
from tests.builders.lyrw import bank, header, schema, segment, u32, u64, v1_file
from tests.format.lyrw.golden import GOLDEN, TABLES_END
from tests.format.lyrw.test_v1 import GOLDEN as GOLDEN_V1

FUZZ = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MOST_MEMORY = 4 << 20
TABLES_END_LEAST = 24 + 24 + 12 + 20 + 16

U16 = st.integers(0, 0xFFFF)
U32 = st.integers(0, 0xFFFFFFFF)
U64 = st.one_of(
    st.integers(0, 1024),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([1 << 63, (1 << 64) - 1, (1 << 64) - 64]),
)
SMALL = st.one_of(st.integers(0, 4), st.sampled_from([255, 0x7FFF, 0xFFFF]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "x.lyrw"


def one_line(error: LarqlError) -> None:
    text = str(error)
    assert "\n" not in text
    assert 20 < len(text) < 900
    assert "x.lyrw" in text


def open_v2(path: Path, content: bytes, schema_number: int = 3) -> bool:
    """Open a file, look at all of its regions; give False where it was refused."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        file = BankFile(path, SchemaVersion(schema_number))
    except LarqlError as error:
        one_line(error)
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_MEMORY
    extents = set()
    for part in file.tables.segments:
        one = file.bank(part.bank_id)
        for entry in range(part.first_entry, part.end):
            for region in one.schemas:
                extent = file.extent(part.bank_id, entry, region)
                extents.add((extent.offset, extent.length))
                assert extent.offset >= TABLES_END_LEAST
                assert extent.offset % 64 == 0
                assert 0 < extent.length <= len(content) - extent.offset
                view = file.stored_bytes(part.bank_id, entry, region)
                assert view.tobytes() == content[extent.offset : extent.offset + extent.length]
                if region.nbytes is not None:
                    assert region.nbytes == extent.length
                    rows = file.stored_rows(part.bank_id, entry, region)
                    assert rows.shape[0] == region.rows
                for call in (file.partner, lambda b, r: file.schema(b, r.role)):
                    try:
                        call(part.bank_id, region)
                    except Refusal as error:
                        one_line(error)
    assert len(content) - max(offset + length for offset, length in extents) < 64
    return True


def open_v1(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        file = LayerWeights(path)
    except LarqlError as error:
        one_line(error)
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_MEMORY
    for entry in range(file.shape.num_entries):
        parts = file.gate_up_bytes(entry), file.down_bytes(entry)
        assert all(0 < part.nbytes <= len(content) - 56 for part in parts)
        if file.shape.part_bytes() is not None:
            assert file.gate(entry).shape == file.up(entry).shape
            assert file.gate(entry).shape[0] == file.shape.intermediate
            assert file.down(entry).shape[0] == file.shape.hidden
    return True


def test_every_truncation_is_refused(place: Path) -> None:
    assert open_v2(place, GOLDEN)
    assert open_v1(place, GOLDEN_V1)
    for size in range(len(GOLDEN)):
        assert not open_v2(place, GOLDEN[:size]), size
    for size in range(len(GOLDEN_V1)):
        assert not open_v1(place, GOLDEN_V1[:size]), size


def test_trailing_bytes_are_refused_beyond_padding(place: Path) -> None:
    for count in range(1, 200):
        assert open_v2(place, GOLDEN + bytes(count)) is (count < 64)
        assert open_v1(place, GOLDEN_V1 + bytes(count)) is (count < 64)


def test_every_byte_of_the_tables_matters_or_is_kept(place: Path) -> None:
    """One byte changed: refused, or read as something else, and never read as the same."""
    base = BankFile(_written(place, GOLDEN), SchemaVersion(3))
    numbers = [
        base.extent(part.bank_id, entry, region)
        for part in base.tables.segments
        for entry in range(part.first_entry, part.end)
        for region in base.bank(part.bank_id).schemas
    ]
    for at in range(TABLES_END):
        for flip in (1, 0x80):
            content = bytearray(GOLDEN)
            content[at] ^= flip
            if not open_v2(place, bytes(content)):
                continue
            file = BankFile(place, SchemaVersion(3))
            same = [
                file.extent(part.bank_id, entry, region)
                for part in file.tables.segments
                for entry in range(part.first_entry, part.end)
                for region in file.bank(part.bank_id).schemas
            ] == numbers
            assert not (same and file.tables == base.tables), at


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@FUZZ
@given(
    changes=st.lists(
        st.tuples(st.integers(0, TABLES_END - 1), st.integers(0, 255)), min_size=1, max_size=6
    ),
    cut=st.integers(0, 80),
    schema_number=st.sampled_from([3, 4]),
)
def test_changed_bytes(
    place: Path, changes: list[tuple[int, int]], cut: int, schema_number: int
) -> None:
    content = bytearray(GOLDEN)
    for at, value in changes:
        content[at] = value
    open_v2(place, bytes(content[: len(content) - cut]), schema_number)


@FUZZ
@given(
    at=st.sampled_from([*range(24, TABLES_END, 2)]),
    missing=st.integers(0, 24),
    extra=st.binary(max_size=24),
)
def test_wrong_strides(place: Path, at: int, missing: int, extra: bytes) -> None:
    """Tables whose records are longer or shorter than they should be."""
    open_v2(place, GOLDEN[:at] + extra + GOLDEN[at + missing :])


@FUZZ
@given(
    heads=st.fixed_dictionaries(
        {
            "banks": st.one_of(st.just(1), SMALL),
            "segments": st.one_of(st.just(1), SMALL),
            "flags": st.sampled_from([0, 0, 0, 1, 2]),
            "reserved": st.sampled_from([0, 0, 0, 1]),
        }
    ),
    banks=st.fixed_dictionaries(
        {
            "kind": st.integers(0, 3),
            "schemas": st.one_of(st.just(1), SMALL),
            "flags": st.integers(0, 3),
            "entries": st.one_of(st.integers(1, 4), U32),
        }
    ),
    segments=st.fixed_dictionaries(
        {
            "index": SMALL,
            "first": st.one_of(st.just(0), SMALL),
            "count": st.one_of(st.integers(1, 4), U32),
        }
    ),
    schemas=st.fixed_dictionaries(
        {
            "role": SMALL,
            "code": st.one_of(st.integers(0, 10), U16),
            "packing": st.integers(0, 4),
            "pair": st.one_of(st.just(0xFFFF), SMALL),
            "layout": st.integers(0, 2),
            "rows": st.one_of(st.integers(0, 64), U32),
            "cols": st.one_of(st.sampled_from([1, 32, 256]), U32),
        }
    ),
    numbers=st.lists(U64, max_size=8),
    tail=st.integers(0, 512),
    schema_number=st.sampled_from([3, 4]),
)
def test_made_up_tables(
    place: Path,
    heads: dict[str, int],
    banks: dict[str, int],
    segments: dict[str, int],
    schemas: dict[str, int],
    numbers: list[int],
    tail: int,
    schema_number: int,
) -> None:
    content = header(**heads) + bank(**banks) + segment(**segments) + schema(**schemas)
    open_v2(place, content + u64(*numbers) + bytes(tail), schema_number)


PLACES = st.one_of(
    st.integers(0, 16).map(lambda block: 64 * block), st.integers(0, 1100), st.just((1 << 64) - 64)
)
LENGTHS = st.one_of(st.sampled_from([64, 128]), st.integers(0, 200), st.just((1 << 64) - 1))


@FUZZ
@given(table=st.lists(st.tuples(PLACES, LENGTHS), min_size=4, max_size=4), known=st.booleans())
@example(table=[(256, 128), (256, 128), (384, 64), (448, 64)], known=False)
@example(table=[(256, 64), (320, 64), (384, 64), (448, 64)], known=True)
@example(table=[(192, 64), (192, 65), (192, 64), (192, 64)], known=False)
@example(table=[(192, 128), (192, 64), (192, 128), (320, 64)], known=False)
def test_entry_tables(place: Path, table: list[tuple[int, int]], known: bool) -> None:
    """Overlaps, misplaced and out-of-range regions, against a quadratic check."""
    code = 0 if known else 9
    tables = header() + bank(entries=2, schemas=2) + segment(count=2)
    tables += schema(0, 0, code, rows=1, cols=16) + schema(1, 1, code, rows=1, cols=16)
    tables += b"".join(u64(*row) for row in table)
    content = tables + os.urandom(1024 - len(tables))
    end = max(offset + length for offset, length in table)
    if end <= len(content):
        content = content[:end]
    sound = (
        all(
            len(tables) <= offset
            and offset + length <= len(content)
            and offset % 64 == 0
            and length > 0
            and (length == 64 or not known)
            for offset, length in table
        )
        and len(content) - end < 64
    )
    for index, (offset, length) in enumerate(table):
        for other, (begin, count) in enumerate(table[:index]):
            apart = offset + length <= begin or begin + count <= offset
            same = (offset, length) == (begin, count)
            nested = (begin <= offset and offset + length <= begin + count) or (
                offset <= begin and begin + count <= offset + length
            )
            if not (apart or same or (nested and index // 2 == other // 2)):
                sound = False
    assert open_v2(place, content) is sound


@FUZZ
@given(
    quant_format=st.one_of(st.integers(0, 10), U32),
    intermediate=st.one_of(st.integers(0, 4), U32),
    hidden=st.one_of(st.integers(0, 4), U32),
    table=st.lists(st.tuples(U64, U64, U64, U64), max_size=3),
    num_entries=st.one_of(st.none(), U32),
    tail=st.integers(0, 256),
)
def test_made_up_tables_of_version_1(
    place: Path,
    quant_format: int,
    intermediate: int,
    hidden: int,
    table: list[tuple[int, int, int, int]],
    num_entries: int | None,
    tail: int,
) -> None:
    open_v1(
        place,
        v1_file(quant_format, intermediate, hidden, table, bytes(tail), num_entries=num_entries),
    )


@FUZZ
@given(
    changes=st.lists(st.tuples(st.integers(8, 87), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 32),
)
def test_changed_bytes_of_version_1(place: Path, changes: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(GOLDEN_V1)
    for at, value in changes:
        content[at] = value
    open_v1(place, bytes(content[: len(content) - cut]))


@FUZZ
@given(content=st.binary(max_size=300), version=st.sampled_from([1, 2, 3]))
def test_any_bytes(place: Path, content: bytes, version: int) -> None:
    for start in (b"", bytes.fromhex("5752594c") + u32(version)):
        open_v2(place, start + content)
        open_v1(place, start + content)
