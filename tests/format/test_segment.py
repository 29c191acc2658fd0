"""Segments: valid safetensors files, written in pieces, opened by their headers alone."""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors

from larql.errors import ContainerError
from larql.format.codec import encode
from larql.format.encoding import ENCODINGS
from larql.format.segment import (
    Segment,
    SegmentTensor,
    hash_file,
    stored_shape,
    write_segment,
    write_stream,
)


def tensor(name: str, encoding: str, shape: tuple[int, ...], pieces: int = 1) -> SegmentTensor:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    data = encode(ENCODINGS[encoding], values).tobytes()
    step = -(-len(data) // pieces)
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    return SegmentTensor(name, ENCODINGS[encoding], shape, chunks)


TENSORS = (
    tensor("floats", "f32", (3, 5), pieces=4),
    tensor("half", "f16", (4,)),
    tensor("brain", "bf16", (2, 3, 4), pieces=2),
    tensor("blocks", "q4_k", (3, 512), pieces=7),
    tensor("small", "q8_0", (32,)),
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "object.safetensors"
    write_segment(path, TENSORS)
    return path


def test_any_safetensors_tool_opens_a_segment(written: Path) -> None:
    with safetensors.safe_open(written, framework="np") as file:
        names = list(file.keys())
        shapes = {name: file.get_slice(name).get_shape() for name in names}
        dtypes = {name: file.get_slice(name).get_dtype() for name in names}
        floats = file.get_tensor("floats")
        blocks = file.get_tensor("blocks")
    assert shapes == {
        "floats": [3, 5],
        "half": [4],
        "brain": [2, 3, 4],
        "blocks": [3, 288],
        "small": [34],
    }
    assert dtypes == {
        "floats": "F32",
        "half": "F16",
        "brain": "BF16",
        "blocks": "U8",
        "small": "U8",
    }
    assert floats.tobytes() == b"".join(TENSORS[0].chunks)
    assert blocks.tobytes() == b"".join(TENSORS[3].chunks)


def test_stored_bytes_come_back_mapped_and_in_pieces(written: Path) -> None:
    segment = Segment(written)
    for item in TENSORS:
        expected = b"".join(item.chunks)
        view = segment.bytes_of(item.name)
        assert view.tobytes() == expected
        assert not view.flags.writeable
        assert b"".join(segment.chunks(item.name)) == expected
        segment.check(item.name, item.encoding, item.shape)
    assert segment.bytes_of("floats").base is not None


def test_size_and_hash_are_those_of_the_file(tmp_path: Path, written: Path) -> None:
    again = write_segment(tmp_path / "again.safetensors", TENSORS)
    assert hash_file(written) == again
    assert again.size == written.stat().st_size
    assert (tmp_path / "again.safetensors").read_bytes() == written.read_bytes()


def test_the_data_starts_aligned_and_without_gaps(written: Path) -> None:
    segment = Segment(written)
    assert segment.header_bytes % 64 == 0
    ends = 0
    for entry in segment.header.entries.values():
        assert entry.begin == ends
        ends = entry.end
    assert segment.header_bytes + ends == segment.size


def test_an_empty_segment_is_a_segment(tmp_path: Path) -> None:
    write_segment(tmp_path / "none", [])
    assert Segment(tmp_path / "none").header.entries == {}
    assert write_stream(tmp_path / "empty", []).size == 0


@pytest.mark.parametrize("change", [-1, 1])
def test_a_tensor_of_another_length_is_not_written(tmp_path: Path, change: int) -> None:
    data = b"x" * (60 + change)
    wrong = SegmentTensor("floats", ENCODINGS["f32"], (3, 5), [data[:7], data[7:]])
    with pytest.raises(ContainerError, match=f"gave {60 + change} bytes, expected 60"):
        write_segment(tmp_path / "wrong", [wrong])


def test_two_tensors_of_one_name_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="written twice"):
        write_segment(tmp_path / "twice", [TENSORS[1], TENSORS[1]])
    assert not (tmp_path / "twice").exists()


def test_a_writer_holds_a_piece_and_not_a_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been taken and has not gone to the file yet is never more than one buffer."""
    monkeypatch.setattr("larql.format.segment._CHUNK", 1 << 18)
    path, held = tmp_path / "large", []

    def pieces() -> Iterator[bytes]:
        for number in range(64):
            held.append((number << 16) - path.stat().st_size)
            yield bytes(1 << 16)

    write_segment(path, [SegmentTensor("t", ENCODINGS["f32"], (1 << 20,), pieces())])
    assert 0 < max(held) <= 1 << 18
    assert path.stat().st_size == (1 << 22) + Segment(path).header_bytes


@pytest.mark.parametrize(
    ("name", "encoding", "shape", "words"),
    [
        ("absent", "f32", (3, 5), "tensor absent is missing from the segment"),
        ("floats", "f32", (5, 3), r"stored as F32 \[3, 5\], expected F32 \[5, 3\] for f32"),
        ("floats", "f16", (3, 5), r"expected F16 \[3, 5\] for f16"),
        ("blocks", "q4_k", (2, 512), r"expected U8 \[2, 288\] for q4_k"),
        ("blocks", "q6_k", (3, 512), r"expected U8 \[3, 420\] for q6_k"),
        ("blocks", "f32", (3, 72), r"stored as U8"),
    ],
)
def test_what_is_not_stored_as_the_index_says_is_refused(
    written: Path, name: str, encoding: str, shape: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ContainerError, match=words) as caught:
        Segment(written).check(name, ENCODINGS[encoding], shape)
    assert str(caught.value).startswith(f"{written}: ")


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_a_truncated_segment_is_refused(written: Path, keep: int) -> None:
    data = written.read_bytes()
    written.write_bytes(data[:keep])
    with pytest.raises(ContainerError) as caught:
        Segment(written)
    assert str(written) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_segment_that_shrank_while_it_was_open_is_refused(written: Path) -> None:
    segment = Segment(written)
    with written.open("rb+") as stream:
        stream.truncate(written.stat().st_size - 4)
    with pytest.raises(ContainerError, match="changed size while it was open"):
        segment.bytes_of("floats")
    with pytest.raises(ContainerError, match="tensor small: ends at byte"):
        list(segment.chunks("small"))


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name, words in (
        ("missing", "no such file"),
        ("pipe", "not a regular file"),
        ("directory", "not a regular file"),
    ):
        for read in (Segment, hash_file):
            with pytest.raises(ContainerError, match=words):
                read(tmp_path / name)


def test_the_stored_shape_of_blocks_is_rows_of_bytes() -> None:
    assert stored_shape(ENCODINGS["f32"], (2, 3)) == (2, 3)
    assert stored_shape(ENCODINGS["q8_0"], (2, 64)) == (2, 68)
    assert stored_shape(ENCODINGS["q6_k"], (5, 2, 256)) == (5, 2, 210)


def sparse_segment(path: Path, nbytes: int) -> None:
    """A segment whose payload of zeros takes no room on disk."""
    header = json.dumps(
        {"weight": {"dtype": "F32", "shape": [nbytes // 4], "data_offsets": [0, nbytes]}}
    ).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + nbytes)


def test_opening_reads_the_header_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "huge.safetensors"
    sparse_segment(path, 10 << 30)
    read: list[int] = []
    pread = os.pread

    def counting(descriptor: int, count: int, offset: int) -> bytes:
        read.append(count)
        return pread(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", counting)
    segment = Segment(path)
    segment.check("weight", ENCODINGS["f32"], ((10 << 30) // 4,))
    assert sum(read) < 4096
    view = segment.bytes_of("weight")
    assert view.shape == (10 << 30,)
    assert sum(read) < 4096
    assert view[-1] == 0


def test_mapping_a_huge_segment_takes_no_memory(tmp_path: Path) -> None:
    sparse_segment(tmp_path / "huge", 10 << 30)
    script = (
        "import re, sys\nfrom pathlib import Path\n"
        "from larql.format.segment import Segment\n"
        "view = Segment(Path(sys.argv[1])).bytes_of('weight')\n"
        "assert view[::1 << 30].sum() == 0\n"
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "huge")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 100_000, "kilobytes"


def two_tensors(path: Path, nbytes: int) -> Segment:
    zeros = [
        SegmentTensor(name, ENCODINGS["f32"], (nbytes // 4,), [bytes(nbytes)])
        for name in ("first", "second")
    ]
    write_segment(path, zeros)
    return Segment(path)


def resident(path: Path) -> int:
    """Return how many bytes of a file are in the page tables of this process."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_tensor_is_brought_into_memory_and_its_neighbour_is_not(
    tmp_path: Path, name: str
) -> None:
    size = 8 << 20
    path = tmp_path / "object.safetensors"
    segment = two_tensors(path, size)
    data = segment.bytes_of(name)
    assert resident(path) == 0
    segment.prefault(name)
    # the pages at the ends, and what the system maps around a page that it was asked for
    assert size <= resident(path) <= size + (256 << 10)
    assert not data.any()


def test_a_system_that_cannot_bring_pages_in_is_told_that_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("larql.format.segment._POPULATE_READ", 9999)
    path = tmp_path / "object.safetensors"
    segment = two_tensors(path, 1 << 20)
    segment.prefault("first")
    assert resident(path) == 0
    assert not segment.bytes_of("first").any()


def test_an_empty_tensor_needs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "object.safetensors"
    none = SegmentTensor("none", ENCODINGS["f32"], (0,), [])
    write_segment(path, [SegmentTensor("some", ENCODINGS["f32"], (1024,), [bytes(4096)]), none])
    rest = (mmap.PAGESIZE - path.stat().st_size % mmap.PAGESIZE) // 4
    some = SegmentTensor("some", ENCODINGS["f32"], (1024 + rest,), [bytes(4096 + 4 * rest)])
    write_segment(path, [some, none])
    assert path.stat().st_size % mmap.PAGESIZE == 0  # there is no page where it would be
    Segment(path).prefault("none")


def test_what_cannot_be_brought_into_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "object.safetensors"
    segment = two_tensors(path, 1 << 20)
    segment.bytes_of("first")
    os.truncate(path, 4096)
    with pytest.raises(ContainerError, match=r"tensor second cannot be read into memory: "):
        segment.prefault("second")
