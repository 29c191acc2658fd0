"""``vindex3 capability`` and ``reconstruct`` as a user meets them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.builders.containers import copy_container, edit_index
from tests.cli.conftest import Run

LAYER = "target.layer.001"


def test_a_whole_container_is_told_in_words_and_in_json(cli: Run, llama: Path) -> None:
    out = cli("vindex3", "capability", llama).ok().out
    assert "walk (target, scope profile): yes, source-exact, 3 of 3 banks" in out
    assert "local_decode (target, scope profile): yes, source-exact" in out
    document = cli("vindex3", "capability", llama, "--json").ok().json
    assert (document["ok"], document["profile"], document["inherits"]) == (True, None, [])
    walk, decode, back = document["operations"]
    assert walk["banks"] == walk["covered"] == [f"target.layer.{i:03d}/ffn" for i in range(3)]
    assert decode["authority"] == {"level": "source-exact", "cap": "none", "regions": []}
    assert (back["scope"], back["component"], back["admitted"]) == ("document", None, True)


def test_a_gguf_container_is_whole_though_it_is_not_written_back(cli: Run, models: Path) -> None:
    document = cli("vindex3", "capability", models / "llama.gguf.vindex3", "--json").ok().json
    (found,) = document["operations"][-1]["diagnoses"]
    assert (found["cause"], found["kind"], found["defect"]) == ("no route", "unsupported", False)
    assert "GGUF" in found["detail"]


def test_exit_statuses(cli: Run, llama: Path, tmp_path: Path) -> None:
    directory = copy_container(llama, tmp_path / "c")
    (directory / f"segments/{LAYER}.safetensors").unlink()
    answer = cli("vindex3", "capability", directory)
    assert answer.status == 1
    assert answer.problem.startswith(f"{directory}: 9 defects found")
    assert "missing input: " + LAYER in answer.out
    assert "absent: nowhere" in answer.out

    def change(index: Any) -> None:
        index["profiles"] = {"default": {"omits": [LAYER]}, "loop": {"inherits": "loop"}}

    edit_index(directory, change)
    answer = cli("vindex3", "capability", directory)
    assert answer.status == 0
    assert "absent: omitted by the active profile" in answer.out
    assert "local_decode (target, scope profile): no route" in answer.out
    for profile, words in (
        ("none", "no profile 'none'; the container has default, loop"),
        ("loop", "inherits from itself: loop -> loop"),
    ):
        answer = cli("vindex3", "capability", directory, "--profile", profile)
        assert (answer.status, answer.out) == (2, "")
        assert words in answer.problem
    partial = cli("vindex3", "capability", directory, "--partial", "--json").ok().json
    walk = partial["operations"][0]
    assert (walk["admitted"], len(walk["covered"]), len(walk["banks"])) == (True, 2, 3)


def test_neither_imports_numba(llama: Path, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from larql.cli.main import main\n"
        f"assert main(['vindex3', 'capability', {str(llama)!r}, '--quiet']) == 0\n"
        f"assert main(['reconstruct', {str(llama)!r}, '-o', {str(tmp_path / 'o')!r}]) == 0\n"
        "assert 'numba' not in sys.modules and 'larql.runtime' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_checkpoint_is_written_and_extracts_again(cli: Run, gemma: Path, tmp_path: Path) -> None:
    made = tmp_path / "checkpoint"
    out = cli("reconstruct", gemma, "-o", made).ok().out
    assert "source-exact" in out and "by copy" in out
    assert "exists; give --force" in cli("reconstruct", gemma, "-o", made).problem
    document = cli("reconstruct", gemma, "-o", made, "--force", "--json").ok().json
    assert document["left"] == {} and document["configuration"] is True
    cli("extract", made, "-o", tmp_path / "again").ok()
    cli("verify", gemma, "--source", made).ok()


def test_reconstruction_says_what_it_leaves(cli: Run, models: Path, tmp_path: Path) -> None:
    def change(index: Any) -> None:
        index["source"]["left"] = {"vision.weight": "not the text model"}
        index["files"].pop("source_config.json")

    directory = edit_index(copy_container(models / "llama.vindex3", tmp_path / "c"), change)
    answer = cli("reconstruct", directory, "-o", tmp_path / "o").ok()
    assert "not written: vision.weight (not the text model)" in answer.out
    assert "no config.json" in answer.err and "1 tensors were never carried" in answer.err
    assert cli("reconstruct", models / "llama.gguf.vindex3", "-o", tmp_path / "g").status == 2
