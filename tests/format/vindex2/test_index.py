"""index.json of VINDEX2: both schemas, unknown fields, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import ContainerError, GenerationError, LarqlError, UnsupportedRefusal
from larql.format.vindex2.index import index_from_json, index_to_json
from larql.format.vindex2.layout import FfnLayout, Level
from tests.builders.vindex2 import tiny_index

Change = Callable[[dict[str, Any]], Any]


def changed(change: Change, version: int = 2) -> dict[str, Any]:
    document = tiny_index(version)
    change(document)
    return document


def test_schema_2_round_trips_with_unknown_fields() -> None:
    document = tiny_index() | {"later": [1, {"a": None}], "ffn_layout": "per_layer"}
    document["layers"][0]["colour"] = "red"
    document["checksums"] = {"b.bin": "0" * 64, "a.bin": "f" * 64}
    index = index_from_json(document, "index.json")
    assert index.ffn_layout is FfnLayout.PER_LAYER
    assert index.embed_scale == 1.5
    assert index.feature_counts == (2, 1)
    again = index_to_json(index)
    assert again == document | {"has_model_weights": False, "notes": []}
    assert index_from_json(again, "index.json") == index


def test_schema_1_takes_defaults() -> None:
    document = {"version": 1, "model": "m", "num_layers": 3, "hidden_size": 2, "vocab_size": 3}
    index = index_from_json(document, "index.json")
    assert (index.family, index.dtype.name, index.level) == ("unknown", "f32", Level.BROWSE)
    assert (index.embed_scale, index.down_top_k, index.layers) == (1.0, 10, ())
    assert (index.checksums, index.model_config, index.quant) == ({}, {}, None)
    assert (index.has_model_weights, index.feature_counts) == (False, (0, 0, 0))
    assert index_from_json(tiny_index(1), "index.json").intermediate_size == 2


@pytest.mark.parametrize(
    "key",
    ["model", "family", "dtype", "num_layers", "hidden_size", "intermediate_size", "vocab_size",
     "embed_scale", "extract_level", "down_top_k", "layers", "checksums"],
)  # fmt: skip
def test_schema_2_has_no_defaults(key: str) -> None:
    with pytest.raises(LarqlError, match=f"index.json: `{key}` is missing"):
        index_from_json(changed(lambda d: d.pop(key)), "index.json")


WRONG: list[tuple[str, Change, type[LarqlError], str]] = [
    ("dtype", lambda d: d.update(dtype="bf16"), UnsupportedRefusal, "`dtype` is 'bf16'"),
    ("layout", lambda d: d.update(ffn_layout="x"), UnsupportedRefusal, "`ffn_layout` is 'x'"),
    ("level", lambda d: d.update(extract_level="x"), ContainerError, "expected browse or"),
    ("no layers", lambda d: d.update(num_layers=0), ContainerError, "a positive integer"),
    ("layers", lambda d: d.update(num_layers=1 << 40), ContainerError, "at most 65536"),
    ("width", lambda d: d.update(hidden_size=True), ContainerError, "`hidden_size` is True"),
    ("top 0", lambda d: d.update(down_top_k=0), ContainerError, "`down_top_k` is 0"),
    ("top", lambda d: d.update(down_top_k=256), ContainerError, "expected 1 to 255"),
    ("scale", lambda d: d.update(embed_scale=1e999), ContainerError, "`embed_scale` is inf"),
    ("flag", lambda d: d.update(has_model_weights=1), ContainerError, "true or false"),
    ("escape", lambda d: d.update(checksums={"../a": "0" * 64}), ContainerError, "leaves its"),
    ("hash", lambda d: d.update(checksums={"a": "0"}), ContainerError, "64 hexadecimal"),
    ("array", lambda d: d.update(layers={}), ContainerError, "`layers` is {}, expected an array"),
    ("number", lambda d: d["layers"][1].update(layer=2), ContainerError, "below 2"),
    ("twice", lambda d: d["layers"][1].update(layer=0), ContainerError, "ascending"),
    ("short", lambda d: d["layers"][0].update(length=12), ContainerError, "expected 16, 2 rows"),
    ("overlap", lambda d: d["layers"][1].update(offset=12), ContainerError, "at least 16"),
    ("negative", lambda d: d["layers"][0].update(offset=-1), ContainerError, "a count"),
    ("beyond", lambda d: d["layers"][1].update(offset=1 << 62), ContainerError, "inside a file"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kind", "match"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_what_is_wrong_is_named(change: Change, kind: type[LarqlError], match: str) -> None:
    with pytest.raises(kind, match=match) as found:
        index_from_json(changed(change), "index.json")
    assert str(found.value).startswith("index.json: ")


def test_vindex3_is_refused_by_name() -> None:
    with pytest.raises(GenerationError, match="requires the VINDEX3 loader"):
        index_from_json(changed(lambda d: d.update(version=3)), "index.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(version=st.sampled_from([1, 2]), key=st.sampled_from(sorted(tiny_index())), value=JSON)
def test_whatever_stands_in_a_field_is_read_or_refused(
    version: int, key: str, value: object
) -> None:
    document = tiny_index(version) | {key: value}
    try:
        index = index_from_json(document, "index.json")
    except LarqlError as error:
        assert str(error).startswith("index.json: ")
        return
    again = index_from_json(json.loads(json.dumps(index_to_json(index))), "index.json")
    assert again == index


@given(
    layer=st.integers(-2, 4), count=st.integers(-1, 4), offset=st.integers(-1, 40),
    length=st.integers(-1, 40),
)  # fmt: skip
def test_layers_that_are_accepted_do_not_overlap(
    layer: int, count: int, offset: int, length: int
) -> None:
    document = tiny_index()
    document["layers"][1] = {
        "layer": layer, "num_features": count, "offset": offset, "length": length,
    }  # fmt: skip
    try:
        index = index_from_json(document, "index.json")
    except ContainerError:
        return
    first, second = index.layers
    assert second.layer == 1
    assert second.length == 8 * second.num_features
    assert second.offset >= first.offset + first.length
