"""``larql walk`` and ``larql describe`` as a user meets them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.cli.test_commands import imported_by


def test_a_prompt_is_walked_layer_by_layer(cli: Run, llama: Path) -> None:
    answer = cli("walk", llama, "--prompt", "the", "--top-k", "2", "--json").ok().json
    assert answer["query"]["kind"] == "embedding"
    assert [bank["bank"] for bank in answer["banks"]] == [
        f"target.layer.{i:03d}/ffn" for i in range(3)
    ]
    for bank in answer["banks"]:
        first, second = bank["hits"]
        assert first["score"] >= second["score"]
        assert first["expert"] is None
        assert [set(w) for w in first["writes"]] == [{"token", "score", "text"}] * 3
    text = cli("walk", llama, "--prompt", "the", "--top-k", "2", "--layers", "1:2").ok().out
    rows = text.splitlines()
    assert rows[0].split() == ["layer", "bank", "feature", "score", "writes"]
    assert [row.split()[0] for row in rows[1:]] == ["1", "1"]
    by_ids = cli("walk", llama, "--tokens", answer["query"]["tokens"][-1], "--json", "--top-k", "2")
    assert by_ids.ok().json["banks"] == answer["banks"]


def test_a_vector_is_walked_without_a_tokenizer(cli: Run, llama: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.linspace(-1, 1, 64, dtype=np.float32))
    cli("slice", llama, "-o", tmp_path / "s", "--parts", "gate").ok()
    asked = ("--vector", tmp_path / "v.npy", "--json", "--top-k", "3")
    whole = cli("walk", llama, *asked, "--writes", "0").ok().json
    cut = cli("walk", tmp_path / "s", *asked).ok().json
    assert cut["banks"] == whole["banks"]
    assert cut["notes"] and not whole["dropped"]
    refused = cli("walk", tmp_path / "s", "--tokens", "1")
    assert refused.status == 2
    assert "target.embedding/weight" in refused.problem


def test_what_is_dropped_is_listed(cli: Run, llama: Path, tmp_path: Path) -> None:
    cli("slice", llama, "-o", tmp_path / "s", "--layers", "0:2").ok()
    refused = cli("walk", tmp_path / "s", "--tokens", "1")
    assert refused.status == 2
    assert "target.layer.002/ffn.gate.weight" in refused.problem
    out = cli("walk", tmp_path / "s", "--tokens", "1", "--partial", "--top-k", "1").ok().out
    assert "dropped: missing input: target.layer.002/ffn.gate.weight" in out


def test_a_token_is_described_over_all_layers(cli: Run, llama: Path) -> None:
    answer = cli("describe", llama, "the", "--top-k", "5", "--json").ok().json
    scores = [hit["score"] for hit in answer["features"]]
    assert len(scores) == 5 and scores == sorted(scores, reverse=True)
    by_id = cli("describe", llama, answer["token"], "--top-k", "5", "--json").ok().json
    assert by_id["features"] == answer["features"]
    assert cli("describe", llama, "text:7", "--json").ok().json["token"] != 7
    assert cli("describe", llama, "the").ok().out.startswith(f"token {answer['token']} ")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "expected one of --tokens"),
        (("--prompt", "a", "--vector", "v.npy"), "found --prompt and --vector"),
        (("--vector", "v.npy", "--residuals"), "does not go with --vector"),
        (("--vector", "absent.npy"), "--vector absent.npy"),
        (("--tokens", "999"), "token 999 at position 0 is outside the vocabulary"),
        (("--tokens", "1", "--layers", "5:6"), "layers 5:6 have no bank"),
        (("--tokens", "1", "--component", "mtp"), "no component 'mtp'"),
    ],
)
def test_what_cannot_be_walked_is_refused(
    cli: Run, llama: Path, arguments: tuple[str, ...], problem: str
) -> None:
    answer = cli("walk", llama, *arguments)
    assert answer.status == 2
    assert problem in answer.problem


@pytest.mark.parametrize("command", [["walk", "--tokens", "1"], ["describe", "1"]])
def test_a_profile_is_that_of_every_command(
    command: list[str], cli: Run, models: Path, tmp_path: Path
) -> None:
    name, *rest = command
    at = tmp_path / "packed"
    cli("represent", models / "llama.gguf.vindex3", "-o", at, "--pack").ok()
    plain = cli(name, at, *rest, "--json").ok().json
    packed = cli(name, at, *rest, "--profile", "packed", "--json").ok().json
    assert (plain.pop("profile"), packed.pop("profile")) == (None, "packed")
    for document in (plain, packed):
        for seconds in ("seconds", "token_seconds"):
            document.pop(seconds, None)
        document.pop("authority")  # packed rows are called equivalent to their source, not exact
    assert packed == plain
    refused = cli(name, at, *rest, "--profile", "absent")
    assert refused.status == 2
    assert "there is no profile 'absent'; the container has packed" in refused.problem


def test_a_refusal_loads_no_kernels(llama: Path) -> None:
    assert imported_by("walk", str(llama))[1] <= {"numpy"}
    absent = ("walk", str(llama), "--tokens", "1", "--profile", "absent")
    assert imported_by(*absent)[1] <= {"numpy"}
