"""Verification: whatever was done to a container, the file is named, and always in one order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from larql.errors import BindingDefect, ContainerError, LarqlError, UsageError
from larql.format.container import Container, is_container, verify_container
from larql.format.progress import SilentProgress
from larql.format.segment import Segment
from tests.builders.containers import (
    edit_graph,
    edit_index,
    file_bytes,
    flip_byte,
    read_json,
    vouch_for,
    write_json,
)
from tests.format.test_segment import sparse_segment

SEGMENT = "segments/target.layer.001.safetensors"
FILES = (
    "generation_config.json",
    "segments/target.embedding.safetensors",
    "segments/target.layer.000.safetensors",
    "segments/target.layer.001.safetensors",
    "segments/target.norms.safetensors",
    "segments/target.output_head.safetensors",
    "source_config.json",
    "system_graph.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


class Recorder(SilentProgress):
    """What the progress was told."""

    def __init__(self) -> None:
        self.total: int | None = 0
        self.done = 0
        self.finished = 0

    def start(self, label: str, total: int | None) -> None:
        self.total = total

    def advance(self, n: int) -> None:
        self.done += n

    def finish(self) -> None:
        self.finished += 1


def lines(directory: Path) -> list[str]:
    found = [defect.line() for defect in verify_container(Container(directory), SilentProgress())]
    assert all("\n" not in line for line in found)
    again = [defect.line() for defect in verify_container(Container(directory), SilentProgress())]
    assert again == found
    return found


def test_a_whole_container_has_no_defects(small: Path) -> None:
    assert lines(small) == []
    assert tuple(Container(small).index.files) == FILES
    assert set(file_bytes(small)) == {*FILES, "index.json"}


def test_verifying_reads_each_listed_byte_once_and_says_so(small: Path) -> None:
    progress = Recorder()
    verify_container(Container(small), progress)
    total = sum(len(data) for name, data in file_bytes(small).items() if name != "index.json")
    assert (progress.total, progress.done, progress.finished) == (total, total, 1)


@pytest.mark.parametrize("offset", [0, "middle", -1])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_found_in_every_kind_of_file(
    damaged: Path, name: str, offset: int | str
) -> None:
    path = damaged / name
    flip_byte(path, path.stat().st_size // 2 if isinstance(offset, str) else offset)
    found = lines(damaged)
    assert found[0].startswith(f"{name}: sha256 is ")
    assert len(found) == 1 or (name == "system_graph.json" and found[1].startswith(f"{name}: "))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(damaged: Path, name: str) -> None:
    (damaged / name).unlink()
    assert lines(damaged) == [f"{name}: no such file"]


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_grown_file_is_named_with_both_sizes(damaged: Path, name: str) -> None:
    path = damaged / name
    data = path.read_bytes()
    for changed in (data[:-1], data + b"\n", b""):
        path.write_bytes(changed)
        assert f"{name}: is {len(changed)} bytes, expected {len(data)}" in lines(damaged)


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_any_more_is_named(damaged: Path, name: str) -> None:
    (damaged / name).unlink()
    os.mkfifo(damaged / name)
    assert f"{name}: is not a regular file" in lines(damaged)


def test_all_defects_come_in_order_of_name(damaged: Path) -> None:
    for name in reversed(FILES):
        if name != "system_graph.json":
            flip_byte(damaged / name)
    found = [line.split(":")[0] for line in lines(damaged)]
    assert found == [name for name in FILES if name != "system_graph.json"]


def test_the_order_does_not_hang_on_the_process(damaged: Path) -> None:
    for name in FILES[::2]:
        if name != "system_graph.json":
            (damaged / name).unlink()
    edit_index(damaged, lambda index: index["representations"].clear())
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from larql.format.container import Container, verify_container\n"
        "from larql.format.progress import SilentProgress\n"
        "for d in verify_container(Container(Path(sys.argv[1])), SilentProgress()): print(d.line())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, str(damaged)],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) > 20


def test_operand_defects_follow_file_defects_in_execution_order(damaged: Path) -> None:
    names = [
        "target.layer.001/ffn.up.weight",
        "target.embedding/weight",
        "target.layer.000/attention.k.weight",
    ]
    edit_index(damaged, lambda index: [index["representations"].pop(name) for name in names])
    flip_byte(damaged / "tokenizer.json")
    found = lines(damaged)
    assert found[0].startswith("tokenizer.json: ")
    assert [name for line in found[1:] for name in names if name in line] == [
        names[1],
        names[2],
        names[0],
    ]


def test_a_consistent_forgery_is_still_checked_against_the_graph(damaged: Path) -> None:
    """Hashes made to fit do not help a segment that lacks what the index says it has."""
    layer0 = (damaged / "segments/target.layer.000.safetensors").read_bytes()
    (damaged / "segments/target.norms.safetensors").write_bytes(layer0)
    vouch_for(damaged, "segments/target.norms.safetensors")
    assert lines(damaged) == [
        "segments/target.norms.safetensors: operand target.norms/output.weight: "
        "segments/target.norms.safetensors: tensor output.weight is missing from the segment"
    ]


def test_a_segment_that_is_no_segment_is_named(damaged: Path) -> None:
    (damaged / SEGMENT).write_bytes(b"\x05\0\0\0\0\0\0\0[1,2]")
    vouch_for(damaged, SEGMENT)
    found = lines(damaged)
    assert len(found) == 9, "one for each operand in it"
    assert all(line.startswith(f"{SEGMENT}: operand target.layer.001/") for line in found)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("shape", [64, 32], "has shape [64, 32], expected [64, 64]"),
        ("encoding", "f16", "stored as F32 [64, 64], expected F16 [64, 64] for f16"),
        ("encoding", "q8_0", "expected U8 [64, 68] for q8_0"),
        ("tensor", "nothing", "tensor nothing is missing from the segment"),
        ("segment", "segments/nothing", "nothing vouches for it"),
        ("segment", "tokenizer.json", "operand target.layer.000/attention.q.weight"),
    ],
)
def test_a_representation_that_contradicts_segment_or_graph_is_named(
    damaged: Path, key: str, value: object, words: str
) -> None:
    at = "target.layer.000/attention.q.weight"
    edit_index(damaged, lambda index: index["representations"][at].update({key: value}))
    found = lines(damaged)
    assert any(words in line for line in found), found


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_size", 128, "index.json: hidden_size is 128, the graph says 64"),
        ("num_layers", 3, "index.json: num_layers is 3, the graph says 2"),
        ("components", [], "target: component is not listed in the index"),
        ("components", ["target", "mtp"], "mtp: component is listed in the index but not in the"),
        ("moe_manifest", "moe.json", "moe.json: manifest is not listed in `files`"),
        ("system_graph", "other.json", "other.json: graph is not listed in `files`"),
    ],
)
def test_an_index_that_contradicts_the_graph_is_named(
    damaged: Path, key: str, value: object, words: str
) -> None:
    edit_index(damaged, lambda index: index.update({key: value}))
    assert any(line.startswith(words) for line in lines(damaged)), lines(damaged)


def test_a_segment_that_nothing_vouches_for_is_named(damaged: Path) -> None:
    edit_index(damaged, lambda index: index["files"].pop(SEGMENT))
    assert lines(damaged) == [
        f"{SEGMENT}: segment is not listed in `files`, so nothing vouches for it"
    ]
    edit_index(damaged, lambda index: index["segments"].pop(SEGMENT))
    assert lines(damaged) == [
        f"{SEGMENT}: segment is not listed in `files`, so nothing vouches for it"
    ]


def test_two_statements_about_one_file_must_agree(damaged: Path) -> None:
    edit_index(damaged, lambda index: index["segments"][SEGMENT].update(size=1))
    assert lines(damaged) == [f"{SEGMENT}: `segments` and `files` state different sizes or hashes"]


def test_files_that_the_index_does_not_list_are_outside(damaged: Path) -> None:
    (damaged / "notes.txt").write_text("mine")
    (damaged / "segments" / "extra.safetensors").write_bytes(b"junk")
    assert lines(damaged) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g["components"][0].update(clamp=1), "unknown key 'clamp'"),
        (lambda g: g["components"][0]["layers"].pop(), "contradicts the state"),
        (lambda g: g["components"][0]["head"]["norm"].update(op="mystery"), "'mystery'"),
        (lambda g: g.update(schema=9), "graph schema 9"),
        (lambda g: g["components"].clear(), "non-empty array"),
    ],
)
def test_a_graph_that_cannot_be_read_is_a_defect_and_never_runs(
    damaged: Path, change: Any, words: str
) -> None:
    edit_graph(damaged, change)
    (found,) = lines(damaged)
    assert found.startswith("system_graph.json: ")
    assert words in found
    with pytest.raises(LarqlError, match=r"system_graph\.json"):
        Container(damaged).component("target")


def test_a_container_without_a_graph_is_verified_by_its_files(damaged: Path) -> None:
    def change(index: Any) -> None:
        index.update(system_graph=None, moe_manifest="moe_manifest.json")

    write_json(damaged / "moe_manifest.json", {"schema": 1, "layers": [], "storages": []})
    vouch_for(edit_index(damaged, change), "moe_manifest.json")
    assert lines(damaged) == []
    flip_byte(damaged / SEGMENT)
    assert len(lines(damaged)) == 1


def test_show_needs_no_segment(damaged: Path) -> None:
    for path in (damaged / "segments").iterdir():
        path.unlink()
    container = Container(damaged)
    (share,) = container.census()
    assert (share.encoding, share.tensors) == ("f32", 21)
    assert share.nbytes == 4 * share.elements
    assert len(container.component("target").layers) == 2
    assert set(container.text_files()) == {
        "generation_config.json",
        "source_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_the_fingerprint_is_the_hash_of_the_index(small: Path, damaged: Path) -> None:
    import hashlib

    expected = hashlib.sha256((small / "index.json").read_bytes()).hexdigest()
    assert Container(small).fingerprint == expected == Container(damaged).fingerprint
    edit_index(damaged, lambda index: index.update(model="other"))
    assert Container(damaged).fingerprint != expected


def test_a_component_that_does_not_exist_is_refused_naming_those_that_do(small: Path) -> None:
    with pytest.raises(UsageError, match="no component 'mtp'; it has target"):
        Container(small).component("mtp")


def test_a_missing_segment_is_a_binding_defect_naming_operand_and_file(damaged: Path) -> None:
    from larql.runtime.run import RunOptions, open_run

    (damaged / SEGMENT).unlink()
    with pytest.raises(BindingDefect) as caught:
        open_run(Container(damaged), RunOptions(backend="reference"))
    assert "operand target.layer.001/attention.norm.weight" in str(caught.value)
    assert str(damaged / SEGMENT) in str(caught.value)


def test_opening_reads_the_index_and_nothing_else(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten gigabytes of weights cost as much to open as none."""
    name = "segments/target.embedding.safetensors"
    huge = 10 << 30
    sparse_segment(damaged / name, huge)

    def change(index: Any) -> None:
        index["representations"]["target.embedding/weight"] |= {
            "tensor": "weight",
            "shape": [huge // 256, 64],
        }

    edit_index(damaged, change)
    read: dict[str, int] = {}
    pread = os.pread

    def counting(descriptor: int, count: int, offset: int) -> bytes:
        data = pread(descriptor, count, offset)
        opened = Path(f"/proc/self/fd/{descriptor}").readlink().name
        read[opened] = read.get(opened, 0) + len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    container = Container(damaged)
    assert container.index.representations["target.embedding/weight"].nbytes == huge
    assert max(share.nbytes for share in container.census()) > huge
    assert set(read) == {"index.json"}
    assert container.component("target").hidden_size == 64
    assert set(read) == {"index.json", "system_graph.json"}
    segment = container.segment(name)
    assert isinstance(segment, Segment)
    assert read[Path(name).name] < 4096
    assert container.segment(name) is segment


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"version": 3, "model": "m", "hidden_size": 1, "num_layers": 1}, True),
        ({"version": 2, "model": "m", "hidden_size": 1, "num_layers": 1}, True),
        ({"version": 3, "model": None, "hidden_size": "broken", "num_layers": []}, True),
        ({"version": 3}, False),
        ({"version": 1, "name": "some other program's", "dependencies": {}}, False),
        ({"version": 9, "model": "m", "hidden_size": 1, "num_layers": 1}, False),
        ({"model": "m", "hidden_size": 1, "num_layers": 1}, False),
        ([], False),
    ],
)
def test_what_is_a_container_and_what_is_not(
    tmp_path: Path, document: object, expected: bool
) -> None:
    write_json(tmp_path / "index.json", document)
    assert is_container(tmp_path) is expected
    assert not is_container(tmp_path / "index.json")
    assert not is_container(tmp_path / "missing")


def test_names_of_representations_are_not_paths(damaged: Path) -> None:
    """Only segments are files; an operand may be called anything."""

    def change(index: Any) -> None:
        index["representations"]["../x"] = {
            **index["representations"]["target.embedding/weight"],
            "operand": "/etc/passwd",
        }

    edit_index(damaged, change)
    assert lines(damaged) == []
    assert json.dumps(read_json(damaged / "index.json"))


def test_a_component_is_not_found_in_a_missing_graph(damaged: Path) -> None:
    (damaged / "system_graph.json").unlink()
    with pytest.raises(ContainerError, match=r"system_graph\.json: no such file"):
        Container(damaged).component("target")


def test_an_index_does_not_vouch_for_itself(damaged: Path) -> None:
    def change(index: Any) -> None:
        index["files"]["index.json"] = {"size": 1, "sha256": "0" * 64}

    edit_index(damaged, change)
    lines = [d.line() for d in verify_container(Container(damaged), SilentProgress())]
    assert lines[0].startswith("index.json: lists itself")
