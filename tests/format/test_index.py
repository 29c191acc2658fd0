"""``index.json``: hostile ones are refused before anything is opened, unknown fields survive."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from larql.errors import ContainerError, GenerationError, LarqlError, UnsupportedRefusal
from larql.format.container import Container, is_container
from larql.format.index import (
    MAX_JSON_BYTES,
    Index,
    dump_json,
    index_from_json,
    index_to_json,
    load_json,
)
from larql.format.names import check_relative_name
from larql.format.rows import RowSelection
from tests.builders.containers import edit_index, read_json, write_json
from tests.builders.mutate import WRONG, paths, removed, replaced, value_at

BAD_NAMES = (
    "../x",
    "segments/../../x",
    "..",
    ".",
    "./x",
    "a//b",
    "a/",
    "/etc/passwd",
    "//x",
    "a\0b",
    "a\nb",
    "a\x7fb",
    "a\\b",
    "..\\x",
    "C:\\x",
    "",
)
# Free text or free-form objects, whose content means nothing to the reader of an index.
FREE = ("source", "text", "objects", "precision_map", "profiles", "variants")


@pytest.fixture
def document(small: Path) -> Any:
    return read_json(small / "index.json")


@pytest.fixture
def few(document: Any) -> Any:
    """The index with two of each kind of entry."""
    for key in ("representations", "segments", "files", "objects"):
        document[key] = dict(list(document[key].items())[-2:])
    return document


def read(document: Any) -> Index:
    return index_from_json(document, "m/index.json")


def refusal(document: Any, kind: type[LarqlError] = ContainerError) -> str:
    with pytest.raises(kind) as caught:
        read(document)
    message = str(caught.value)
    assert message.startswith("m/index.json: ")
    assert "\n" not in message
    return message


def test_reading_and_writing_is_a_round_trip(small: Path) -> None:
    raw = (small / "index.json").read_bytes()
    assert dump_json(index_to_json(read(json.loads(raw)))) == raw


def test_fields_that_this_build_does_not_know_are_kept(small: Path, document: Any) -> None:
    segment = next(iter(document["segments"]))
    document["new"] = {"a": [1, {"b": None}]}
    document["representations"]["target.embedding/weight"]["hint"] = "x"
    document["representations"]["target.embedding/weight"]["source"]["revision"] = "y"
    document["files"]["tokenizer.json"]["mode"] = 420
    document["segments"][segment] |= {"schema": "newer", "align": 64}
    rewritten = index_to_json(read(document))
    assert rewritten == document
    assert read(rewritten) == read(document)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_leave_the_directory_are_refused(document: Any, name: str) -> None:
    entry = document["files"]["tokenizer.json"]
    for place in ("files", "segments"):
        refusal({**document, place: {**document[place], name: entry}})
    for place in ("system_graph", "moe_manifest"):
        refusal({**document, place: name})
    changed = replaced(document, ("representations", "target.embedding/weight", "segment"), name)
    assert "representations.target.embedding/weight.segment" in refusal(changed)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_before_anything_is_opened(
    damaged: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_index(
        damaged, lambda index: index["files"].update({name: index["files"]["system_graph.json"]})
    )
    opened: list[str] = []
    really_open = os.open

    def recording(path: Path, flags: int) -> int:
        opened.append(str(path))
        return really_open(path, flags)

    monkeypatch.setattr(os, "open", recording)
    with pytest.raises(ContainerError):
        Container(damaged)
    assert [Path(path).name for path in opened] == ["index.json"]


@pytest.mark.parametrize(
    "name", ["a", "a/b", "segments/target.layer.007.safetensors", "ä ö.x", "..x"]
)
def test_plain_relative_names_are_fine(name: str) -> None:
    assert check_relative_name(name, "w", ContainerError) == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/a", "is absolute"),
        ("a/../b", "leaves its directory"),
        ("a\\b", "backslash"),
        ("a\0", "control character"),
        ("", "empty"),
    ],
)
def test_a_name_is_refused_for_what_is_wrong_with_it(name: str, words: str) -> None:
    with pytest.raises(ContainerError, match=words):
        check_relative_name(name, "w", ContainerError)


@pytest.mark.parametrize("name", [None, 1, True, ["a"], {"a": 1}, b"a"])
def test_a_name_is_a_string(name: object) -> None:
    with pytest.raises(ContainerError, match="not a string"):
        check_relative_name(name, "w", ContainerError)


VERSIONS: tuple[tuple[object, str | None], ...] = (
    (0, "schema version 0"),
    (1, "requires the VINDEX2 loader"),
    (2, "requires the VINDEX2 loader"),
    (3, None),
    (4, None),
    (5, "schema version 5"),
    ("3", "is '3'"),
    (3.0, "is 3.0"),
    (True, "is True"),
    (-1, "schema version -1"),
    (None, "no `version`"),
)


@pytest.mark.parametrize(("version", "words"), VERSIONS)
def test_the_version_decides(damaged: Path, version: object, words: str | None) -> None:
    edit_index(damaged, lambda index: index.update(version=version))
    if words is None:
        container = Container(damaged)
        assert container.index.schema.number == version
        assert container.generation.value == "VINDEX3"
        assert index_to_json(container.index)["version"] == version
        return
    with pytest.raises(GenerationError) as caught:
        Container(damaged)
    assert words in str(caught.value)
    assert str(damaged / "index.json") in str(caught.value)


def test_a_missing_version_is_refused(damaged: Path) -> None:
    edit_index(damaged, lambda index: index.pop("version"))
    with pytest.raises(GenerationError, match="no `version` field"):
        Container(damaged)


def test_other_generations_are_refused_before_their_fields_are_read(tmp_path: Path) -> None:
    write_json(tmp_path / "index.json", {"version": 2, "layers": "as another generation has it"})
    with pytest.raises(GenerationError, match="requires the VINDEX2 loader"):
        Container(tmp_path)


def test_wrong_types_are_refused_or_harmless_everywhere(few: Any) -> None:
    """One wrong value in each place of the index: a refusal of one line, or nothing is lost."""
    refused: set[str] = set()
    for path in paths(few):
        for wrong in WRONG:
            changed = replaced(few, path, wrong)
            try:
                index = read(changed)
            except LarqlError as error:
                assert str(error).startswith("m/index.json: ")
                assert "\n" not in str(error)
                refused.add(str(path[0]))
                continue
            nulls: dict[str, object] = {key: {} for key in FREE if changed[key] is None}
            assert index_to_json(index) == {**changed, **nulls}
    assert refused == set(few)


def test_missing_fields_are_refused_or_have_a_stated_default(few: Any) -> None:
    needed = set()
    for path in paths(few):
        if path[0] not in FREE and isinstance(path[-1], str):
            try:
                read(removed(few, path))
            except LarqlError as error:
                assert str(error).startswith("m/index.json: ")
                needed.add((path[0], path[-1]) if len(path) > 2 else path[0])
    assert needed == {
        *("version", "model", "family", "hidden_size", "num_layers", "components"),
        *("system_graph", "representations", "authority", "segments", "files"),
        *(("files", key) for key in ("size", "sha256")),
        *(("segments", key) for key in ("size", "sha256")),
        *(
            ("representations", key)
            for key in ("operand", "encoding", "fidelity", "shape", "segment", "tensor", "source")
        ),
        ("representations", "sha256"),
    }


@pytest.mark.parametrize("key", ["size", "sha256"])
def test_a_file_needs_size_and_hash(document: Any, key: str) -> None:
    name = next(iter(document["files"]))
    for place in (("files", name, key), ("segments", next(iter(document["segments"])), key)):
        assert key in refusal(removed(document, place))


@pytest.mark.parametrize("value", [True, False, -1, 1.0, "1", None, [1]])
def test_a_count_is_a_plain_integer(document: Any, value: object) -> None:
    name = next(iter(document["segments"]))
    for path in (
        ("hidden_size",),
        ("num_layers",),
        ("files", name, "size"),
        ("segments", name, "size"),
    ):
        assert f"`{'.'.join(path)}` is {value!r}" in refusal(replaced(document, path, value))


@pytest.mark.parametrize("value", ["0" * 63, "0" * 65, "G" * 64, "A" * 64, ""])
def test_a_hash_is_64_lower_case_hexadecimal_digits(document: Any, value: str) -> None:
    for path in [p for p in paths(document) if p[-1] == "sha256" and p[0] != "source"]:
        assert "64 hexadecimal digits" in refusal(replaced(document, path, value))


def test_neither_graph_nor_manifest_is_refused(document: Any) -> None:
    message = refusal({**document, "system_graph": None})
    assert "neither `system_graph` nor `moe_manifest`" in message
    assert "neither" in refusal(removed(document, ("system_graph",)))


def test_a_container_with_only_a_manifest_opens(damaged: Path) -> None:
    edit_index(
        damaged, lambda index: index.update(system_graph=None, moe_manifest="moe_manifest.json")
    )
    container = Container(damaged)
    assert container.census()
    with pytest.raises(ContainerError, match="has no system graph"):
        container.component("target")


def test_an_encoding_of_a_newer_build_is_unsupported(document: Any) -> None:
    path = ("representations", "target.embedding/weight", "encoding")
    assert "'q9_z'" in refusal(replaced(document, path, "q9_z"), UnsupportedRefusal)


@pytest.mark.parametrize("key", ["fidelity", "authority"])
def test_closed_choices_are_closed(document: Any, key: str) -> None:
    path = (key,) if key in document else ("representations", "target.embedding/weight", key)
    assert " or " in refusal(replaced(document, path, "perfect"))


def test_a_shape_that_cuts_a_block_is_refused(document: Any) -> None:
    at = ("representations", "target.embedding/weight")
    changed = replaced(replaced(document, (*at, "encoding"), "q4_k"), (*at, "shape"), [256, 64])
    assert "not a multiple of its block" in refusal(changed)


@pytest.mark.parametrize(
    "shape", [[], [0, 64], [64, -1], [1 << 48, 1], [True, 64], [64.0], ["64"], "64", 64, {}]
)
def test_a_shape_is_a_list_of_positive_integers(document: Any, shape: object) -> None:
    path = ("representations", "target.embedding/weight", "shape")
    assert "array of positive integers" in refusal(replaced(document, path, shape))


TEXTS = {
    "cut short": (b'{"version": 3,', "is not JSON"),
    "empty": (b"", "is not JSON"),
    "array": (b"[3]", "not a JSON object but a list"),
    "null": (b"null", "not a JSON object but a NoneType"),
    "twice at the top": (b'{"version": 3, "version": 3}', "duplicate key 'version'"),
    "twice below": (b'{"version": 3, "files": {"a": 1, "a": 2}}', "duplicate key 'a'"),
    "nan": (b'{"version": 3, "a": NaN}', "NaN is not a JSON number"),
    "infinity": (b'{"version": 3, "a": Infinity}', "Infinity is not a JSON number"),
    "minus infinity": (b'{"version": 3, "a": -Infinity}', "-Infinity is not a JSON number"),
    "overflow": (b'{"version": 3, "a": 1e999}', "number '1e999' is too large"),
    "minus overflow": (b'{"version": 3, "a": -1e999}', "number '-1e999' is too large"),
    "digits": (b'{"version": ' + b"9" * 5000 + b"}", "is not JSON"),
    "depth": (b'{"version": 3, "a": ' + b"[" * 100_000 + b"}", "nested too deeply"),
    "latin 1": (b'{"model": "\xe9"}', "is not UTF-8 at byte 11"),
    "utf 16": ('{"version": 3}'.encode("utf-16"), "is not UTF-8 at byte 0"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS"),
}


@pytest.mark.parametrize(("text", "words"), TEXTS.values(), ids=TEXTS.keys())
def test_an_index_is_strict_json(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "index.json").write_bytes(text)
    with pytest.raises(ContainerError, match=words) as caught:
        Container(tmp_path)
    assert str(tmp_path / "index.json") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert not is_container(tmp_path)


def test_an_absurdly_large_index_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    with path.open("wb") as stream:
        stream.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(ContainerError, match=f"more than the {MAX_JSON_BYTES} expected"):
        load_json(path)


def test_what_is_no_file_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="no such file"):
        Container(tmp_path)
    (tmp_path / "index.json").mkdir()
    with pytest.raises(ContainerError, match="not a regular file"):
        Container(tmp_path)
    (tmp_path / "index.json").rmdir()
    os.mkfifo(tmp_path / "index.json")
    with pytest.raises(ContainerError, match="not a regular file"):
        Container(tmp_path)


@pytest.mark.parametrize("name", ["missing", "file/below", "n" * 300, "a\0b"])
def test_what_is_no_directory_is_no_container(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ContainerError):
        Container(tmp_path / name)


def test_dumped_json_is_one_canonical_form() -> None:
    assert (
        dump_json({"b": [1, "ä"], "a": None})
        == '{\n "b": [\n  1,\n  "ä"\n ],\n "a": null\n}\n'.encode()
    )
    with pytest.raises(ValueError):
        dump_json({"a": float("nan")})


def test_the_first_representation_of_an_operand_is_bound(document: Any) -> None:
    first = value_at(document, ("representations", "target.embedding/weight"))
    document["representations"]["another"] = {**first, "encoding": "f16"}
    assert read(document).by_operand()["target.embedding/weight"].id == "target.embedding/weight"


@pytest.mark.parametrize("rows", [[0, 4, 3, 2], [1, 2, 3], "all", [0, 1, 1, -1], [0, 1.5, 2, 1]])
def test_rows_of_a_source_are_runs_that_do_not_overlap(document: Any, rows: object) -> None:
    next(iter(document["representations"].values()))["source"]["rows"] = rows
    assert "`representations" in refusal(document)


def test_rows_of_a_source_are_kept(document: Any) -> None:
    next(iter(document["representations"].values()))["source"]["rows"] = [2, 3, 4, 5]
    found = next(iter(read(document).representations.values())).source.rows
    assert found == RowSelection(2, 3, 4, 5)
    assert index_to_json(read(document)) == document
