"""weight_manifest.json: what it lists, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import ContainerError, LarqlError, UnsupportedRefusal
from larql.format.encoding import ENCODINGS
from larql.format.vindex2.weight_manifest import WeightEntry, manifest_to_json, weights_from_json


def document() -> dict[str, Any]:
    return {
        "tensors": [
            {
                "key": "a/q.weight", "kind": "tensor", "dtype": "f32", "shape": [2, 3],
                "file": "attn_weights.bin", "offset": 0, "length": 24,
            },
            {
                "key": "a/norm.weight", "kind": "vector", "dtype": "f16", "shape": [4],
                "file": "attn_weights.bin", "offset": 64, "length": 8, "later": 1,
            },
        ]
    }  # fmt: skip


def test_it_round_trips_with_unknown_fields() -> None:
    entries = weights_from_json(document(), "m.json")
    q4 = ENCODINGS["q4_k"]
    assert entries[1] == WeightEntry(
        "a/norm.weight", ENCODINGS["f16"], (4,), "attn_weights.bin", 64, 8
    )
    assert manifest_to_json(entries) == document()
    more = (*entries, WeightEntry("b", q4, (3, 256), "up_weights.bin", 7, 432, "q6_k"))
    assert weights_from_json(manifest_to_json(more), "m.json") == more


Change = Callable[[list[dict[str, Any]]], Any]
WRONG: list[tuple[str, Change, type[LarqlError], str]] = [
    ("dtype", lambda t: t[0].update(dtype="x"), UnsupportedRefusal, r"\[0\].*dtype 'x'"),
    ("kind", lambda t: t[0].update(kind="x"), UnsupportedRefusal, "kind 'x'"),
    ("vector", lambda t: t[0].update(kind="vector"), ContainerError, "the shape of a vector"),
    ("shape", lambda t: t[0].update(shape=[2, -3]), ContainerError, "positive integers"),
    ("blocks", lambda t: t[0].update(dtype="q4_k"), ContainerError, "block of 256"),
    ("length", lambda t: t[0].update(length=20), ContainerError, "expected 24"),
    ("offset", lambda t: t[1].update(offset=-1), ContainerError, "a count"),
    ("range", lambda t: t[1].update(offset=1 << 62), ContainerError, "inside a file"),
    ("overlap", lambda t: t[1].update(offset=23), ContainerError, "begins at byte 23 .*inside"),
    ("twice", lambda t: t[1].update(key="a/q.weight"), ContainerError, "listed twice"),
    ("file", lambda t: t[0].update(file="/etc/passwd"), ContainerError, "absolute"),
    ("no key", lambda t: t[0].pop("key"), ContainerError, "`tensors.0..key` is missing"),
]


@pytest.mark.parametrize(
    ("change", "kind", "match"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_what_is_wrong_is_named(change: Change, kind: type[LarqlError], match: str) -> None:
    found = document()
    change(found["tensors"])
    with pytest.raises(kind, match=match):
        weights_from_json(found, "m.json")


def test_it_is_an_object_of_tensors() -> None:
    for wrong in ({}, {"tensors": {}}, {"tensors": [3]}):
        with pytest.raises(ContainerError, match=r"m\.json"):
            weights_from_json(wrong, "m.json")


@given(
    first=st.integers(0, 40), second=st.integers(0, 40),
    files=st.sampled_from([("a", "a"), ("a", "b")]),
)  # fmt: skip
def test_tensors_overlap_or_they_do_not(first: int, second: int, files: tuple[str, str]) -> None:
    found = document()
    for row, offset, file in zip(found["tensors"], (first, second), files, strict=True):
        row.update(offset=offset, file=file)
    apart = files[0] != files[1] or first + 24 <= second or second + 8 <= first
    if apart:
        assert len(weights_from_json(found, "m.json")) == 2
        return
    with pytest.raises(ContainerError, match="inside"):
        weights_from_json(found, "m.json")
