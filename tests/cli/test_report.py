"""``larql report``: what it writes and refuses."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from larql.report.contents import read_contents
from larql.report.page import page
from tests.builders.records import write_record
from tests.cli.conftest import Run


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return write_record(tmp_path / "run.jsonl")


def test_a_record_of_a_run_is_drawn(llama: Path, tmp_path: Path, cli: Run) -> None:
    record, out = tmp_path / "r.jsonl", tmp_path / "r.html"
    options = ("--lens-tokens", "4,5", "--lens-attention", "--run-id", "mine", "-n", "2")
    cli("observe", llama, "--prompt", "Hello", "--record", record, *options).ok()
    png, svg = tmp_path / "r.png", tmp_path / "r.svg"
    answer = cli("report", record, "-o", out, "--png", png, "--svg", svg).ok()
    assert answer.err == ""
    assert [line.split()[0] for line in answer.out.splitlines()] == ["page", "png", "svg"]
    contents = read_contents(record)
    assert out.read_text(encoding="utf-8") == page(contents)
    assert contents.lens is not None and len(contents.lens.sites) == 6
    assert png.read_bytes().startswith(b"\x89PNG") and b"<svg" in svg.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html", "r.jsonl", "r.png", "r.svg"]


def test_json_names_what_was_written(record: Path, tmp_path: Path, cli: Run) -> None:
    out = tmp_path / "r.svg"
    found = cli("report", record, "--svg", out, "--json").ok().json
    data = out.read_bytes()
    assert found["svg"] == {
        "path": str(out), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
    }  # fmt: skip
    assert found["notes"] == [] and "page" not in found


def test_a_killed_run_is_drawn_with_a_warning(tmp_path: Path, cli: Run) -> None:
    record = write_record(tmp_path / "killed.jsonl", ending="killed")
    answer = cli("report", record, "-o", tmp_path / "r.html").ok()
    assert "warning: This record has no receipt" in answer.err
    assert "This record has no receipt" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_changed_record_is_not_drawn(record: Path, tmp_path: Path, cli: Run) -> None:
    record.write_bytes(record.read_bytes().replace(b'"token":2}', b'"token":5}'))
    answer = cli("report", record, "-o", tmp_path / "r.html")
    assert answer.status == 1 and "the log was changed" in answer.problem
    assert not (tmp_path / "r.html").exists()


def test_what_exists_is_kept_unless_forced(record: Path, tmp_path: Path, cli: Run) -> None:
    out, png = tmp_path / "r.html", tmp_path / "r.png"
    png.write_text("mine")
    answer = cli("report", record, "-o", out, "--png", png)
    assert answer.status == 2 and f"{png}: exists; give --force" in answer.problem
    assert png.read_text() == "mine" and not out.exists()
    cli("report", record, "--png", png, "--force").ok()
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "nothing to write; give -o, --png or --svg"),
        (["-o", "run.jsonl", "--force"], "is the record itself"),
        (["-o", "link.html", "--force"], "is the record itself"),
        (["-o", "x", "--png", "./x"], "two outputs have the same path"),
        (["-o", "x.html", "--png", "."], "is a directory"),
        (["-o", "absent/x.html"], "absent does not exist; create it first"),
    ],
)
def test_outputs_that_are_refused(
    options: list[str], problem: str, record: Path, tmp_path: Path, cli: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "link.html").hardlink_to(record)
    monkeypatch.chdir(tmp_path)
    before = record.read_bytes()
    answer = cli("report", "run.jsonl", *options)
    assert answer.status == 2 and problem in answer.problem
    assert record.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "run.jsonl"]


def test_what_is_no_record_is_refused(tmp_path: Path, cli: Run) -> None:
    (tmp_path / "odd").write_text("no record")
    for name, problem in {"odd": "is no run record", "absent": "cannot be read"}.items():
        answer = cli("report", tmp_path / name, "-o", tmp_path / "r.html")
        assert answer.status == 2 and problem in answer.problem


@pytest.mark.parametrize(
    ("option", "missing"), [("-o", "plotly"), ("--png", "matplotlib"), ("--svg", "matplotlib")]
)
def test_a_missing_library_is_refused_in_one_line(
    option: str, missing: str, record: Path, tmp_path: Path, cli: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.setitem(sys.modules, missing, None)
    answer = cli("report", record, option, tmp_path / "x")
    assert answer.status == 2
    assert answer.problem == (
        f"{missing}, which draws reports, is not installed; pip install 'larql-vindex3[report]'"
    )
    assert not (tmp_path / "x").exists()


def test_a_failure_while_writing_leaves_nothing(
    record: Path, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: Any) -> int:
        self.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    answer = cli("report", record, "-o", tmp_path / "r.html")
    assert answer.status == 2 and "the disk is full" in answer.problem
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]
