"""What only shows from outside a process: what is imported, and readers that leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from larql.cli import demo
from tests.cli.conftest import Run
from tests.cli.test_commands import imported_by

REFERENCE = ("--backend", "reference")
TEXT = {"tokenizers", "huggingface_hub"}


@pytest.mark.parametrize(
    ("arguments", "status", "allowed"),
    [
        (["show", "{m}"], 0, set()),
        (["show", "{m}", "--json"], 0, set()),
        (["verify", "{m}"], 0, set()),
        (["vindex3", "ops", "{m}"], 0, set()),
        (["exec", "{m}", "--tokens", "1", "--draft-depth", "0"], 2, set()),
        (["exec", "{m}", "--tokens", "1", "--draft-depth", "9"], 2, set()),
        (["exec", "{m}", "--tokens", "999"], 2, set()),
        (["exec", "{m}", "--tokens", "1,2,3", "--context", "2"], 2, set()),
        (["exec", "{m}", "--tokens", "1", "--component", "x"], 2, set()),
        (["exec", "{m}", "--tokens", "x"], 2, set()),
        (["extract", "{s}", "-o", "{m}"], 2, set()),
        (["tokenize", "{m}", "the"], 0, {"numpy", *TEXT}),
        (["exec", "{m}", "--tokens", "1,2,3", *REFERENCE], 0, {"numpy"}),
        (["exec", "{m}", "--tokens", "1,2,3", "-n", "2", *REFERENCE], 0, {"numpy"}),
        (["run", "{m}", "the", "-n", "2", *REFERENCE], 0, {"numpy", *TEXT}),
    ],
)
def test_nothing_is_loaded_that_is_not_used(
    arguments: list[str], status: int, allowed: set[str], models: Path
) -> None:
    places = {"m": models / "llama.vindex3", "s": models / "llama"}
    found, heavy, _ = imported_by(*(text.format(**places) for text in arguments))
    assert found == status
    assert heavy <= allowed


ANSWERS = pytest.mark.parametrize(
    "arguments",
    [
        ["show", "{m}"],
        ["show", "{m}", "--json"],
        ["verify", "{m}"],
        ["vindex3", "ops", "{m}"],
        ["tokenize", "{m}", "the"],
        ["exec", "{m}", "--tokens", "1", *REFERENCE],
        ["exec", "{m}", "--tokens", "1", "--json", *REFERENCE],
        ["run", "{m}", "the", "-n", "3", *REFERENCE],
    ],
    ids=" ".join,
)
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@ANSWERS
def test_a_reader_that_has_left(arguments: list[str], llama: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "larql", *(text.format(m=llama) for text in arguments)]
    process = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, env=BUFFERED)
    os.close(writer)
    assert process.communicate()[1] == b""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NO /dev/full ON THIS SYSTEM")
@pytest.mark.parametrize("flags", [["--json"], []])
def test_an_answer_that_does_not_fit(flags: list[str], llama: Path) -> None:
    command = [sys.executable, "-m", "larql", "run", str(llama), "the", "-n", "3", *REFERENCE]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*command, *flags], stdout=full, stderr=subprocess.PIPE, check=False, env=BUFFERED
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"larql: error: ")
    assert done.stderr.count(b"\n") == 1


def test_the_first_line_of_many(llama: Path) -> None:
    script = f"'{sys.executable}' -m larql vindex3 ops '{llama}' | head -1"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("embed: embed")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_the_demo(
    models: Path, fresh_cache: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MODEL", str(models / "llama"))
    report = cli("demo", "--json").ok().json
    assert [run["executed_layers"] for run in report["runs"]] == [[0, 1, 2], [0]]
    assert report["runs"][1]["operand_bytes"] < report["runs"][0]["operand_bytes"]
    assert all(len(run["generated"]) == demo.TOKENS for run in report["runs"])
    exact = cli("exec", models / "llama", "--prompt", demo.PROMPT, "-n", "8", "--json").ok().json
    assert report["runs"][0]["generated"] == exact["generated"]
    answer = cli("demo").ok()
    assert answer.err == ""
    assert "every hash and operand checked" in answer.out
    assert f"larql show {models / 'llama'}" in answer.out
    (entry,) = (fresh_cache / "containers").glob("*.vindex3")
    (entry / "tokenizer.json").write_text(json.dumps(1).ljust(entry.stat().st_size))
    assert str(entry) == report["container"]


def test_the_demo_does_not_run_what_is_damaged(
    models: Path, fresh_cache: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MODEL", str(models / "llama"))
    cli("demo", "--json").ok()
    (entry,) = (fresh_cache / "containers").glob("*.vindex3")
    path = entry / "tokenizer.json"
    path.write_bytes(path.read_bytes()[::-1])
    answer = cli("demo")
    assert answer.status == 1
    assert "tokenizer.json: sha256 is" in answer.problem
    assert "larql cache rm" in answer.problem
    assert answer.out == ""
