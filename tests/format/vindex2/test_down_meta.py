"""down_meta.bin: exact bytes, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import ContainerError, LarqlError, UnsupportedRefusal, UsageError
from larql.format.vindex2.down_meta import (
    HEADER,
    MAGIC,
    VERSION,
    DownMeta,
    packed_records,
    record_bytes,
)
from tests.builders.vindex2 import TINY_RECORDS, down_meta

COUNTS, VOCAB = (2, 1), 3


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "down_meta.bin"
    path.write_bytes(data)
    return path


def test_exact_bytes() -> None:
    tokens = np.array([[7, 1], [300, 2]], np.uint32)
    scores = np.array([[1.5, -2.0], [0.25, 0.0]], np.float32)
    assert HEADER.pack(MAGIC, VERSION, 1, 3) == bytes.fromhex("444d4554 01000000 01000000 03000000")
    assert packed_records(tokens, scores, 3) == bytes.fromhex(
        "07000000 0000c03f 02 07000000 0000c03f 01000000 000000c0 00000000 00000000"
        "2c010000 0000803e 02 2c010000 0000803e 02000000 00000000 00000000 00000000"
    )
    assert record_bytes(3) == 33


def test_what_was_written_is_read(tmp_path: Path) -> None:
    found = DownMeta(written(tmp_path, down_meta(2, 2, TINY_RECORDS)), COUNTS, 2, VOCAB)
    assert found.layer(0)["token"].tolist() == [2, 1]
    assert found.layer(1)["score"].tolist() == [3.0]
    read = [list(found.tokens(0, 0)), list(found.tokens(0, 1)), list(found.tokens(1, 0))]
    assert read == TINY_RECORDS
    assert not found.layer(0).flags.writeable


def test_there_is_no_other_layer_or_feature(tmp_path: Path) -> None:
    found = DownMeta(written(tmp_path, down_meta(2, 2, TINY_RECORDS)), COUNTS, 2, VOCAB)
    for layer, feature in ((2, 0), (-1, 0), (1, 1), (0, -1)):
        with pytest.raises(UsageError, match="layer"):
            list(found.tokens(layer, feature))


@pytest.mark.parametrize(
    ("data", "kind", "match"),
    [
        (b"", ContainerError, "has 0 bytes, expected a header of 16"),
        (b"DMES" + down_meta(2, 2, TINY_RECORDS)[4:], ContainerError, "begins with b'DMES'"),
        (
            b"DMET" + struct.pack("<I", 2) + down_meta(2, 2, TINY_RECORDS)[8:],
            UnsupportedRefusal,
            "version 2, this build reads 1",
        ),
        (down_meta(3, 2, TINY_RECORDS), ContainerError, "num_layers is 3, the index says 2"),
        (down_meta(2, 3, TINY_RECORDS), ContainerError, "top_k is 3, the index says 2"),
        (down_meta(2, 2, TINY_RECORDS)[:-1], ContainerError, "has 90 bytes, expected 91"),
        (down_meta(2, 2, TINY_RECORDS) + b"\0", ContainerError, "has 92 bytes, expected 91"),
    ],
    ids=["empty", "magic", "version", "layers", "top_k", "short", "long"],
)
def test_another_file_is_refused_by_name(
    tmp_path: Path, data: bytes, kind: type[LarqlError], match: str
) -> None:
    with pytest.raises(kind, match=match):
        DownMeta(written(tmp_path, data), COUNTS, 2, VOCAB)


def test_a_record_of_more_tokens_than_there_is_room_for(tmp_path: Path) -> None:
    data = bytearray(down_meta(2, 2, TINY_RECORDS))
    data[16 + 25 + 8] = 3
    found = DownMeta(written(tmp_path, bytes(data)), COUNTS, 2, VOCAB)
    with pytest.raises(ContainerError, match="layer 0, feature 1: has 3 tokens, expected at most"):
        found.layer(0)
    assert len(found.layer(1)) == 1


@pytest.mark.parametrize(("token", "score"), [(3, 1.0), (1 << 31, 1.0), (0, np.nan), (1, np.inf)])
def test_a_token_that_is_none_and_a_score_that_is_none(
    tmp_path: Path, token: int, score: float
) -> None:
    records = [TINY_RECORDS[0], [(token, score)], TINY_RECORDS[2]]
    found = DownMeta(written(tmp_path, down_meta(2, 2, records)), COUNTS, 2, VOCAB)
    with pytest.raises(
        ContainerError, match=r"layer 0, feature 1: has token .* expected one below"
    ):
        found.layer(0)
    assert len(found.layer(1)) == 1


@given(data=st.binary(max_size=120), at=st.integers(0, 90), good=st.booleans())
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, good: bool
) -> None:
    whole = down_meta(2, 2, TINY_RECORDS)
    content = whole[:at] + data + whole[at + len(data) :] if good else data
    path = written(tmp_path_factory.mktemp("meta"), content)
    try:
        found = DownMeta(path, COUNTS, 2, VOCAB)
        read = [list(found.tokens(0, 0)), list(found.tokens(1, 0))]
    except LarqlError as error:
        assert str(path) in str(error)
        return
    assert all(len(pairs) <= 2 for pairs in read)
