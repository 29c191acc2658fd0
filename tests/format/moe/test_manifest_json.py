"""The manifest: a strict round trip, and no wrong value that gets through silently."""

from __future__ import annotations

import json
from typing import Any

import pytest

from larql.errors import ContainerError, LarqlError, UnsupportedRefusal
from larql.format.moe.manifest import Manifest
from larql.format.moe.manifest_json import manifest_from_json, manifest_to_json
from tests.builders.mutate import WRONG, paths, removed, replaced, value_at
from tests.format.moe.manifests import ALL, DOCUMENT, SINK, STORAGES

SMALL = Manifest((SINK,), STORAGES[4:])
OPTIONAL = {
    "gate_bias", "correction_bias", "quantile_balance", "route_scale", "global_scale",
    "expert_scale", "shared_sink", "dense_sinks", "input", "source", "eps", "scale", "factor",
    "transforms", "shared_bank", "reduction", "routed_output_norm", "combine", "input_space",
    "fused_rows", "group_width", "storages",
}  # fmt: skip


def test_one_type_round_trips_every_router() -> None:
    document = json.loads(json.dumps(manifest_to_json(ALL)))
    assert manifest_from_json(document, "m") == ALL
    assert manifest_to_json(manifest_from_json(document, "m")) == document


def test_the_document_written_by_hand_is_read_and_written() -> None:
    assert manifest_from_json(DOCUMENT, "m") == SMALL
    assert manifest_to_json(SMALL) == DOCUMENT
    assert list(manifest_to_json(SMALL)) == ["schema", "layers", "storages"]


def test_each_key_is_required_or_has_a_default() -> None:
    for path in paths(DOCUMENT):
        if isinstance(path[-1], int):
            continue
        document = removed(DOCUMENT, path)
        if path[-1] in OPTIONAL and path[-2:-1] != ("dims",):
            manifest_from_json(document, "m")
            continue
        with pytest.raises((ContainerError, UnsupportedRefusal)) as caught:
            manifest_from_json(document, "m")
        assert str(path[-1]) in str(caught.value) or path[-1] == "op"


def test_an_unknown_key_is_refused_wherever_it_stands() -> None:
    for path in [(), *paths(DOCUMENT)]:
        target = value_at(DOCUMENT, path)
        if not isinstance(target, dict):
            continue
        changed: Any = {**target, "surprise": 1}
        document = replaced(DOCUMENT, path, changed) if path else changed
        with pytest.raises(ContainerError, match="has unknown key 'surprise'"):
            manifest_from_json(document, "m")


def test_wrong_values_are_refused_in_one_line_or_read_as_they_are() -> None:
    for path in paths(DOCUMENT):
        for wrong in WRONG:
            document = replaced(DOCUMENT, path, wrong)
            try:
                found = manifest_from_json(document, "m")
            except LarqlError as error:
                text = str(error)
                assert text.startswith("m: ")
                assert "\n" not in text
                assert len(text) < 400
            else:
                written = value_at(manifest_to_json(found), path)
                if wrong == {} and path[-1] == "input":
                    assert written == {"source": "expert_input", "factor": 1.0}
                    continue
                assert written == wrong, path
                assert type(written) in (type(wrong), float)


@pytest.mark.parametrize("schema", [0, 2, "1", True, None, 1.0])
def test_another_schema_is_unsupported(schema: object) -> None:
    with pytest.raises(UnsupportedRefusal, match="is not known to this build, which reads 1"):
        manifest_from_json({**DOCUMENT, "schema": schema}, "m")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("layers", 0, "router", "selection", "op"), "sample", "is selection 'sample'; this build"),
        (("layers", 0, "router", "score"), "relu", "is 'relu'; this build knows 'softmax', 'sig"),
        (("layers", 0, "combine"), ["add"], r"layers\[0\].combine is \['add'\]; this build"),
    ],
)
def test_choices_that_are_not_known_are_unsupported(
    path: tuple[str | int, ...], value: object, words: str
) -> None:
    with pytest.raises(UnsupportedRefusal, match=words):
        manifest_from_json(replaced(DOCUMENT, path, value), "m")


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b", "a//b", "", "a\0b"])
def test_files_stay_inside_the_container(name: str) -> None:
    with pytest.raises(ContainerError, match=r"storage 'e': (empty )?file name"):
        manifest_from_json(replaced(DOCUMENT, ("storages", 0, "files", 0), name), "m")


@pytest.mark.parametrize("document", [None, [], "x", 1])
def test_what_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(ContainerError, match="expected a JSON object, found"):
        manifest_from_json(document, "m")


def test_numbers_keep_their_limits() -> None:
    for path, value, words in (
        (("layers", 0, "layer"), 1 << 48, "expected a count"),
        (("layers", 0, "layer"), -1, "expected a count"),
        (("layers", 0, "router", "route_scale"), 10**400, "expected a finite number"),
        (("layers", 0, "router", "route_scale"), float("nan"), "expected a finite number"),
    ):
        with pytest.raises(ContainerError, match=words):
            manifest_from_json(replaced(DOCUMENT, path, value), "m")
