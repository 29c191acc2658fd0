"""LYRW version 1: exact bytes, views, and every refusal."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from larql.errors import (
    BindingDefect,
    ContainerError,
    GenerationError,
    LarqlError,
    OutputError,
    ResidencyRefusal,
    UnsupportedRefusal,
)
from larql.format.encoding import ENCODINGS
from larql.format.lyrw.v1 import LayerShape, LayerWeights, layer_file_name
from larql.format.lyrw.v1_writer import shard_of, write_layer
from tests.builders.lyrw import v1_file

GOLDEN = bytes.fromhex(
    # magic, version 1, quant_format 0 (f32), 2 entries, intermediate 1, hidden 2
    "5752594c 01000000 00000000 02000000 01000000 02000000"
    # entry 0: gate_up at 88, 16 bytes; down at 104, 8 bytes
    "5800000000000000 1000000000000000 6800000000000000 0800000000000000"
    # entry 1: gate_up at 112, 16 bytes; down at 128, 8 bytes
    "7000000000000000 1000000000000000 8000000000000000 0800000000000000"
    # entry 0: gate [1, 2], up [3, 4], down [5, 6]
    "0000803f 00000040 00004040 00008040 0000a040 0000c040"
    # entry 1: gate [-1, -2], up [-3, -4], down [-5, -6]
    "000080bf 000000c0 000040c0 000080c0 0000a0c0 0000c0c0"
)


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "layer_00.weights"
    path.write_bytes(GOLDEN)
    return path


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ContainerError) as caught:
        LayerWeights(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


def test_the_golden_file_is_read(golden: Path) -> None:
    file = LayerWeights(golden)
    assert file.shape == LayerShape(quant_format=0, num_entries=2, intermediate=1, hidden=2)
    assert file.size == 136
    assert file.encoding() is ENCODINGS["f32"]
    for entry, sign in ((0, 1), (1, -1)):
        assert file.gate(entry).view("<f4").tolist() == [[sign, 2 * sign]]
        assert file.up(entry).view("<f4").tolist() == [[3 * sign, 4 * sign]]
        assert file.down(entry).view("<f4").tolist() == [[5 * sign], [6 * sign]]
        assert file.gate_up_bytes(entry).tobytes() == floats(*(sign * v for v in (1, 2, 3, 4)))
        assert file.down_bytes(entry).tobytes() == floats(5 * sign, 6 * sign)


def test_the_golden_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "layer"
    with write_layer(path, ENCODINGS["f32"], num_entries=2, intermediate=1, hidden=2) as writer:
        writer.entry([floats(1), floats(2)], [floats(3, 4)], [b"", memoryview(floats(5, 6))])
        writer.fused_entry([floats(-1, -2, -3), floats(-4)], [floats(-5, -6)])
    assert path.read_bytes() == GOLDEN


def test_views_are_of_the_map_and_cannot_be_written(golden: Path) -> None:
    file = LayerWeights(golden)
    one, other = file.gate_up_bytes(1), file.up(1)
    assert np.shares_memory(one, other)
    assert not one.flags.writeable
    assert not one.flags.owndata


def test_blocks_and_a_dense_layer(tmp_path: Path) -> None:
    path = tmp_path / "layer"
    rows = [bytes([row]) * 36 for row in range(64)]
    downs = [bytes([row]) * 18 for row in range(64)]
    with write_layer(path, ENCODINGS["q4_0"], num_entries=1, intermediate=32, hidden=64) as writer:
        writer.fused_entry(rows, downs)
    file = LayerWeights(path)
    assert path.stat().st_size == 24 + 32 + 64 * 36 + 64 * 18
    assert file.gate(0).shape == file.up(0).shape == (32, 36)
    assert file.down(0).shape == (64, 18)
    assert (file.gate(0)[:, 0] == np.arange(32)).all()
    assert (file.up(0)[:, 0] == np.arange(32, 64)).all()
    assert (file.down(0)[:, 17] == np.arange(64)).all()


def test_the_last_block_of_a_row_is_filled_up(tmp_path: Path) -> None:
    """704 is stored as 768: a matrix that contracts 40 elements has rows of two blocks of 32."""
    path = tmp_path / "layer"
    with write_layer(path, ENCODINGS["q8_0"], num_entries=1, intermediate=40, hidden=32) as writer:
        writer.entry([bytes(40 * 34)], [bytes(40 * 34)], [bytes(32 * 68)])
    assert LayerWeights(path).down(0).shape == (32, 68)


def test_a_private_code_is_written_and_an_unknown_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "layer"
    with write_layer(path, ENCODINGS["q4_1"], num_entries=1, intermediate=32, hidden=32) as writer:
        writer.entry([bytes(640)], [bytes(640)], [bytes(640)])
    assert path.read_bytes()[8:12] == bytes.fromhex("03 80 00 00")
    path.write_bytes(v1_file(0x18004, 1, 1, [(56, 3, 59, 2)], b"abcde"))
    file = LayerWeights(path)
    assert file.gate_up_bytes(0).tobytes() == b"abc"
    assert file.down_bytes(0).tobytes() == b"de"
    for view in (file.gate, file.up, file.down):
        with pytest.raises(UnsupportedRefusal, match="unknown format 98308 has no codec"):
            view(0)


@pytest.mark.parametrize("entry", [-1, 2, 1 << 40])
def test_an_entry_out_of_range_is_a_binding_defect(golden: Path, entry: int) -> None:
    with pytest.raises(BindingDefect, match=f"entry {entry} is out of range, expected 0 to 1"):
        LayerWeights(golden).down(entry)


def patched(at: int, value: int, width: int = 8) -> bytes:
    return GOLDEN[:at] + value.to_bytes(width, "little") + GOLDEN[at + width :]


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes are too few for a LYRW file"),
    "header cut": (
        GOLDEN[:23],
        "the header is cut short: it is bytes 0 to 24, but the file has 23",
    ),
    "table cut": (
        GOLDEN[:87],
        "the table of 2 entries is cut short: it is bytes 24 to 88, but the file has 87",
    ),
    "payload cut": (
        GOLDEN[:135],
        "bank 0, entry 1, down is bytes 128 to 136, out of range of the file of 135 bytes",
    ),
    "no entries": (patched(12, 0, 4), "num_entries is 0, expected 1 to"),
    "no width": (patched(16, 0, 4), "intermediate is 0, expected 1 to"),
    "no hidden": (patched(20, 0, 4), "hidden is 0, expected 1 to"),
    "huge count": (patched(12, 0xFFFFFFFF, 4), "describes 4294967295 entries, above the limit"),
    "beyond 64 bits": (
        patched(24, (1 << 64) - 1),
        "entry 0, gate_up is bytes 18446744073709551615",
    ),
    "in the table": (patched(24, 80), "entry 0, gate_up begins at byte 80, inside the tables"),
    "empty region": (patched(48, 0), "entry 0, down is empty"),
    "another length": (
        patched(48, 4),
        "entry 0, down has 4 bytes, expected 8 for its format and shape",
    ),
    "wrong width": (patched(20, 3, 4), "entry 0, gate_up has 16 bytes, expected 24"),
    "overlap": (
        patched(40, 100),
        "entry 0, down begins at byte 100, inside bank 0, entry 0, gate_up, which is bytes 88 to",
    ),
    "overlap of entries": (
        patched(56, 104),
        "entry 0, down begins at byte 104, inside bank 0, entry 1, gate_up, which is bytes 104 to",
    ),
    "trailing": (GOLDEN + bytes(64), "136, but 64 trailing bytes follow in the file of 200"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_file_is_refused_with_its_own_message(tmp_path: Path, name: str) -> None:
    content, words = HOSTILE[name]
    assert words in refusal(tmp_path / "x.weights", content)


def test_messages_differ() -> None:
    words = [words for _, words in HOSTILE.values()]
    assert len(set(words)) == len(words)


def test_the_version_is_checked_before_the_table(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(patched(4, 2, 4)[:24])
    with pytest.raises(GenerationError, match="requires the VINDEX3 loader"):
        LayerWeights(path)


def test_entries_may_share_their_bytes_and_end_in_padding(tmp_path: Path) -> None:
    path = tmp_path / "x"
    row = (88, 16, 104, 8)
    path.write_bytes(v1_file(0, 1, 2, [row, row], GOLDEN[88:112] + bytes(63)))
    assert LayerWeights(path).gate(1).view("<f4").tolist() == [[1, 2]]


def test_all_defects_are_listed(tmp_path: Path, golden: Path) -> None:
    path = tmp_path / "x"
    content = bytearray(GOLDEN)
    content[32:40] = bytes(8)
    content[64:72] = bytes([15, 0, 0, 0, 0, 0, 0, 0])
    path.write_bytes(content)
    found = LayerWeights.defects(path)
    assert [(defect.bank, defect.entry) for defect in found] == [(0, 0), (0, 1)]
    assert "gate_up is empty" in found[0].message
    assert "gate_up has 15 bytes" in found[1].message
    assert LayerWeights.defects(golden) == ()


def test_a_file_that_changed_is_refused(golden: Path) -> None:
    file = LayerWeights(golden)
    golden.write_bytes(GOLDEN[:100])
    with pytest.raises(ContainerError, match="was changed after it was opened"):
        file.gate(0)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="no such file"):
        LayerWeights(tmp_path / "none")


# Writing


def write(path: Path, entries: int, gate: bytes, up: bytes, down: bytes) -> None:
    with write_layer(path, ENCODINGS["f32"], num_entries=2, intermediate=1, hidden=2) as writer:
        for _ in range(entries):
            writer.entry([gate], [up], [down])


EIGHT = bytes(8)


@pytest.mark.parametrize(
    ("entries", "parts", "words"),
    [
        (1, (EIGHT, EIGHT, EIGHT), "1 of 2 entries were given; a layer must have all of its"),
        (3, (EIGHT, EIGHT, EIGHT), "one entry more than the 2 planned"),
        (2, (bytes(7), EIGHT, EIGHT), "entry 0, gate gave 7 bytes, expected 8"),
        (2, (EIGHT, bytes(9), EIGHT), "entry 0, up gave 9 bytes or more, expected 8"),
        (2, (EIGHT, EIGHT, b""), "entry 0, down gave 0 bytes, expected 8"),
    ],
)
def test_what_was_not_planned_leaves_no_file(
    tmp_path: Path, entries: int, parts: tuple[bytes, bytes, bytes], words: str
) -> None:
    with pytest.raises(ContainerError) as caught:
        write(tmp_path / "layer", entries, *parts)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("problem", [KeyboardInterrupt, ValueError])
def test_an_abandoned_writer_leaves_no_file(tmp_path: Path, problem: type[BaseException]) -> None:
    path = tmp_path / "layer"
    path.write_bytes(b"old")
    with (
        pytest.raises(problem),
        write_layer(path, ENCODINGS["f32"], num_entries=1, intermediate=1, hidden=1),
    ):
        raise problem
    assert [file.name for file in tmp_path.iterdir()] == ["layer"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"num_entries": 0}, ContainerError, "num_entries is 0"),
        ({"intermediate": 1 << 32}, ContainerError, "intermediate is 4294967296"),
        ({"hidden": -1}, ContainerError, "hidden is -1"),
        ({"num_entries": 1 << 20}, ContainerError, "above the limit of 65536"),
    ],
)
def test_an_invalid_plan_is_refused_before_the_file_exists(
    tmp_path: Path, change: dict[str, int], error: type[LarqlError], words: str
) -> None:
    plan = {"num_entries": 1, "intermediate": 1, "hidden": 1} | change
    with (
        pytest.raises(error, match=words),
        write_layer(
            tmp_path / "layer",
            ENCODINGS["f32"],
            num_entries=plan["num_entries"],
            intermediate=plan["intermediate"],
            hidden=plan["hidden"],
        ),
    ):
        raise AssertionError("the body must not run")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="parent directory does not exist"):
        write(tmp_path / "no" / "layer", 2, EIGHT, EIGHT, EIGHT)
    with pytest.raises(OutputError, match="is not a regular file"):
        write(Path("/dev/null"), 2, EIGHT, EIGHT, EIGHT)


def test_the_name_of_a_layer() -> None:
    assert layer_file_name(3) == "layers/layer_03.weights"
    assert layer_file_name(112) == "layers/layer_112.weights"


def test_shapes_are_values() -> None:
    shape = LayerShape(4, 1, 256, 512)
    assert shape.part_bytes() == (2 * 256 * 288, 512 * 144)
    assert dataclasses.replace(shape, quant_format=9).part_bytes() is None


def test_a_shard_keeps_the_population_and_says_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "x"
    row = (120, 16, 136, 8)
    path.write_bytes(v1_file(0, 1, 2, [(0, 0, 0, 0), row, (0, 0, 0, 0)], GOLDEN[88:112]))
    file = LayerWeights(path)
    assert (file.shape.num_entries, file.present) == (3, 1)
    assert [file.holds(entry) for entry in range(3)] == [False, True, False]
    assert file.gate(1).view("<f4").tolist() == [[1, 2]]
    with pytest.raises(ResidencyRefusal, match="entry 2 is not in this file"):
        file.down(2)
    head, ranges = shard_of(file, 1, 2)
    whole = path.read_bytes()
    assert head + b"".join(whole[at : at + n] for at, n in ranges) == whole
    path.write_bytes(v1_file(0, 1, 2, [(0, 0, 0, 0)] * 3, b""))
    with pytest.raises(ContainerError, match="the table has none of its 3 entries"):
        LayerWeights(path)
