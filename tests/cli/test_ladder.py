"""``larql vindex3 ladder``: the table, the file, banks of prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_a_ladder_scores_as_two_dumps_do(llama: Path, tmp_path: Path, cli: Run) -> None:
    tokens = ("--tokens", "1,2,3,5,8,13,21")
    out = tmp_path / "ladder.json"
    answer = cli("vindex3", "ladder", llama, *tokens, "-o", out).ok()
    assert len(answer.out.splitlines()) == 1 + 3 and "written to" in answer.err
    document = json.loads(out.read_text())
    assert [rung["depth"] for rung in document["rungs"]] == [1, 2, 3]
    for name, options in (("full", ()), ("d2", ("--draft-depth", "2"))):
        cli("exec", llama, *tokens, *options, "--logit-dump", tmp_path / f"{name}.npy").ok()
    scored = cli("vindex3", "score", tmp_path / "full.npy", tmp_path / "d2.npy", "--json").ok().json
    assert document["per_position"]["1"]["2"] == scored["per_position"]
    assert document["rungs"][1]["summary"] == scored["summary"]
    assert document["rungs"][2]["summary"]["divergence"]["value"] == 0
    assert document["rungs"][2]["gains"] == {}
    assert set(document["rungs"][0]["gains"]) == {"1", "2", "4", "8"}
    provenance = document["provenance"]
    assert (provenance["tokens"], provenance["draft_depth"]) == ([1, 2, 3, 5, 8, 13, 21], None)
    found = cli("vindex3", "ladder", llama, *tokens, "--depths", "2,1", "--json").ok().json
    assert found["per_position"]["1"]["2"] == scored["per_position"]
    assert sorted(path.name for path in tmp_path.iterdir() if "json" in path.name) == [
        "d2.npy.json", "full.npy.json", "ladder.json",
    ]  # fmt: skip


def test_a_bank_of_prompts(llama: Path, tmp_path: Path, cli: Run) -> None:
    bank = tmp_path / "bank.jsonl"
    bank.write_text(
        '{"prompt": "the cat"}\n{"id": "ids", "tokens": [1, 2, 3]}\n'
        '{"messages": [{"role": "user", "content": "the"}]}\n'
    )
    found = (
        cli("vindex3", "ladder", llama, "--prompts", bank, "--depths", "1:3", "--json").ok().json
    )
    assert [entry["id"] for entry in found["entries"]] == ["1", "ids", "3"]
    assert found["entries"][0]["tokens"][0] == 0  # the beginning token
    assert set(found["per_position"]) == {"1", "ids", "3"}
    assert [rung["depth"] for rung in found["rungs"]] == [1, 2]
    positions = sum(len(entry["tokens"]) for entry in found["entries"])
    assert found["rungs"][0]["summary"]["positions"] == positions
    bank.write_text('{"tokens": [256]}\n')
    problem = cli("vindex3", "ladder", llama, "--prompts", bank).problem
    assert problem.startswith("--prompts: line 1: token 256 at position 0 is outside")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--depths", "0,1"), "--depths: 0 is not between 1 and the 3 layers"),
        (("--depths", "2:5"), "--depths: 4 is not between"),
        (("--depths", "2,2"), "--depths: 2 stands there twice"),
        (("--depths", "a"), "--depths: 'a' is neither a range"),
        (("--resume",), "--resume belongs to --out"),
        (("--prompt", "a"), "found --tokens and --prompt"),
    ],
)
def test_what_is_refused(llama: Path, cli: Run, options: tuple[str, ...], words: str) -> None:
    assert words in cli("vindex3", "ladder", llama, "--tokens", "1,2", *options).problem


def test_an_existing_ladder_is_kept(llama: Path, tmp_path: Path, cli: Run) -> None:
    out = tmp_path / "l.json"
    out.write_text("x")
    assert "l.json" in cli("vindex3", "ladder", llama, "--tokens", "1", "-o", out).problem
    assert out.read_text() == "x"
    cli("vindex3", "ladder", llama, "--tokens", "1", "-o", out, "--force").ok()
    assert json.loads(out.read_text())["kind"] == "ladder"
