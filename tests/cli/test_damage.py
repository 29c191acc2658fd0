"""A damaged byte is refused by name before any number, whatever would have used it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.containers import copy_container, flip_byte
from tests.cli.conftest import Run


@pytest.fixture
def damaged(llama: Path, tmp_path: Path) -> Path:
    return copy_container(llama, tmp_path / "m.vindex3")


@pytest.mark.parametrize(
    "name",
    [
        "segments/target.embedding.safetensors",
        "segments/target.layer.001.safetensors",
        "segments/target.norms.safetensors",
        "system_graph.json",
    ],
)
@pytest.mark.parametrize("backend", ["production", "reference"])
def test_what_a_run_uses(damaged: Path, cli: Run, name: str, backend: str, tmp_path: Path) -> None:
    dump = tmp_path / "a.npy"
    arguments = ("exec", damaged, "--tokens", "1,2", "--backend", backend, "--logit-dump", dump)
    assert cli(*arguments).status == 0
    dump.unlink()
    if name.endswith(".json"):
        path = damaged / name
        path.write_text(path.read_text().replace('"scale": 0.25', '"scale": 0.26', 1))
    else:
        flip_byte(damaged / name)
    answer = cli(*arguments)
    assert answer.status == 2
    assert name in answer.err
    assert "the file is damaged" in answer.err
    assert answer.err.count("\n") == 1
    assert not dump.exists()


def test_what_a_draft_does_not_use_does_not_stop_it(damaged: Path, cli: Run) -> None:
    flip_byte(damaged / "segments" / "target.layer.002.safetensors")
    assert cli("exec", damaged, "--tokens", "1,2", "--draft-depth", "2").status == 0
    assert cli("exec", damaged, "--tokens", "1,2", "--draft-depth", "3").status == 2


def test_text(damaged: Path, cli: Run) -> None:
    path = damaged / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b" ")
    for arguments in (("tokenize", damaged, "the"), ("exec", damaged, "--prompt", "the")):
        answer = cli(*arguments)
        assert answer.status == 2
        assert "tokenizer.json" in answer.err
    assert cli("exec", damaged, "--tokens", "1,2").status == 0


def test_show_still_describes_it_and_says_how_true_the_bytes_are(damaged: Path, cli: Run) -> None:
    flip_byte(damaged / "segments" / "target.layer.001.safetensors")
    assert "source-exact" in cli("show", damaged).ok().out
