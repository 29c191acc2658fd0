"""A directory made by hand, opened: what is read of it, and what is wrong with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from larql.errors import ContainerError, GenerationError, LarqlError, UsageError
from larql.format.container import Container, open_container, verify_container
from larql.format.generation import Generation
from larql.format.progress import SilentProgress
from larql.format.slicing.presets import Part
from larql.format.vindex2.container import Vindex2
from tests.builders.containers import flip_byte
from tests.builders.vindex2 import (
    TINY_EMBEDDINGS,
    TINY_GATE,
    TINY_RECORDS,
    tiny_index,
    vouch_v2,
    write_tiny,
)


def lines(directory: Path) -> list[str]:
    return [d.line() for d in verify_container(open_container(directory), SilentProgress())]


@pytest.mark.parametrize("version", [1, 2])
def test_what_was_written_by_hand_is_read(tmp_path: Path, version: int) -> None:
    directory = open_container(write_tiny(tmp_path / "d", tiny_index(version)))
    assert isinstance(directory, Vindex2)
    assert directory.generation is Generation.VINDEX2
    for layer, rows in TINY_GATE.items():
        assert directory.gate(layer).rows(0, len(rows)).tolist() == [list(row) for row in rows]
    assert directory.embeddings().rows(1, 3).tolist() == [list(r) for r in TINY_EMBEDDINGS[1:]]
    assert list(directory.down_meta.tokens(0, 0)) == TINY_RECORDS[0]
    assert directory.parts == {
        Part.EMBED: ("embeddings.bin",),
        Part.GATE: ("gate_vectors.bin",),
        Part.DOWN_META: ("down_meta.bin",),
    }
    with pytest.raises(UsageError, match="layer 2 has no gate vectors"):
        directory.gate(2)


def test_without_a_graph_it_is_not_executed(tmp_path: Path) -> None:
    directory = open_container(write_tiny(tmp_path / "d"))
    assert directory.index.representations == {}
    with pytest.raises(ContainerError, match="nothing says what the model computes"):
        directory.select(None)


def test_each_loader_refuses_the_other_generation_by_name(tmp_path: Path, small: Path) -> None:
    tiny = write_tiny(tmp_path / "d")
    with pytest.raises(GenerationError, match="version 2 requires the VINDEX2 loader"):
        Container(tiny)
    with pytest.raises(GenerationError, match="version 3 requires the VINDEX3 loader"):
        Vindex2(small)
    assert open_container(small).generation is Generation.VINDEX3
    with pytest.raises(GenerationError, match="VINDEX2 directory"):
        open_container(tiny).bank_file("x")


def test_verify_of_a_sound_directory(tmp_path: Path) -> None:
    assert lines(write_tiny(tmp_path / "d")) == []
    legacy = lines(write_tiny(tmp_path / "old", tiny_index(1)))
    assert legacy == ["index.json: has no `checksums`, so nothing vouches for any file"]


@pytest.mark.parametrize("name", ["gate_vectors.bin", "embeddings.bin", "down_meta.bin"])
def test_verify_names_each_file_that_is_changed_or_gone(tmp_path: Path, name: str) -> None:
    directory = write_tiny(tmp_path / "d")
    flip_byte(directory / name)
    (line,) = lines(directory)
    assert line.startswith(f"{name}: sha256 is ")
    (directory / name).unlink()
    assert lines(directory) == [f"{name}: no such file"]
    assert open_container(directory).details.model == "tiny"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "cut", "match"),
    [
        ("gate_vectors.bin", 1, "has 23 bytes, but is said to hold 24"),
        ("embeddings.bin", 4, "has 20 bytes, but is said to hold 24"),
        ("down_meta.bin", 1, "has 90 bytes, expected 91"),
    ],
)
def test_a_short_file_is_found_though_its_hash_is_right(
    tmp_path: Path, name: str, cut: int, match: str
) -> None:
    directory = write_tiny(tmp_path / "d")
    (directory / name).write_bytes((directory / name).read_bytes()[:-cut])
    vouch_v2(directory, name)
    (line,) = lines(directory)
    assert line == f"{name}: {match}" or line.startswith(f"{name}: {match}")
    opened = Vindex2(directory)
    with pytest.raises(ContainerError, match=name):
        _ = [opened.gate(1), opened.embeddings(), opened.down_meta.layer(1)]


def test_a_changed_file_is_not_read(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "d")
    flip_byte(directory / "gate_vectors.bin", 0)
    with pytest.raises(ContainerError, match=r"gate_vectors\.bin: has sha256"):
        Vindex2(directory).gate(0)


def test_defects_come_in_one_order(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "d")
    for name in ("gate_vectors.bin", "embeddings.bin", "down_meta.bin"):
        flip_byte(directory / name)
    found = lines(directory)
    assert [line.split(":")[0] for line in found] == [
        "down_meta.bin",
        "embeddings.bin",
        "gate_vectors.bin",
    ]
    assert lines(directory) == found


@pytest.mark.parametrize(
    ("graph", "match"),
    [(3, "expected a JSON object"), ({"schema": 99}, "graph schema 99"), ({"schema": 1}, "array")],
)
def test_a_graph_that_is_none(tmp_path: Path, graph: Any, match: str) -> None:
    index = tiny_index() | {"model_config": {"system_graph": graph}}
    directory = write_tiny(tmp_path / "d", index)
    (line,) = lines(directory)
    assert line.startswith("index.json: ") and match in line
    with pytest.raises(LarqlError, match=match):
        open_container(directory).select(None)


def test_names_of_files_that_it_does_not_know_are_ignored(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "d")
    (directory / "later.bin").write_bytes(b"x")
    assert lines(directory) == []
    vouch_v2(directory, "later.bin")
    assert lines(directory) == []
    assert Vindex2(directory).parts[Part.OTHER] == ("later.bin",)


def test_opening_and_verifying_import_no_numba(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "d")
    code = (
        "import sys, json; from larql.cli.main import main\n"
        f"assert main(['show', {str(directory)!r}, '--json']) == 0\n"
        f"assert main(['verify', {str(directory)!r}]) == 0\n"
        "assert 'numba' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout[: done.stdout.rindex("}") + 1])
    assert document["generation"] == "VINDEX2"
    assert document["level"] == "browse"
