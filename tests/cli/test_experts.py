"""Routed experts on the command line: shards, routes, policies, and refusals without output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builders.expert_banks import Spec, weights, write
from tests.cli.conftest import Run

SPEC = Spec(8, 2, 32, 32, layers=2, vocab=256)
COMMANDS = {
    "exec": ["exec", "{m}", "--tokens", "9,8,7"],
    "exec in chunks": ["exec", "{m}", "--tokens", "9,8,7", "--chunk", "1"],
    "exec of a draft": ["exec", "{m}", "--tokens", "9,8,7", "--draft-depth", "1"],
    "exec to a dump": ["exec", "{m}", "--tokens", "9,8,7", "--logit-dump", "{to}/a.npy"],
    "exec to planes": ["exec", "{m}", "--tokens", "9,8,7", "--dump-layers", "{to}/planes"],
    "observe": ["observe", "{m}", "--tokens", "9,8,7"],
    "run": ["run", "{m}", "hello there"],
    "perplexity": ["perplexity", "{m}", "{text}"],
}
KINDS = {
    "residency": ("whole", ["--shard", "0:1"], "is not resident: experts 0:1 of 8 are bound"),
    "unsupported": ("padded", ["--backend", "production"], "run with --backend reference"),
    "binding_defect": ("broken", [], "the router's scores are not finite"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("experts")
    model = weights(SPEC)
    write(model, at / "whole")
    write(model, at / "low", experts=(0, 3))
    write(model, at / "high", experts=(3, 8))
    router = model.layers[0]["router"].copy()
    router[3, 5] = np.nan
    write(model.with_layer(0, router=router), at / "broken")
    padded = replace(SPEC, width=40, padding=24, encoding="q8_0")
    write(weights(padded), at / "padded")
    (at / "text").write_text("the quick brown fox jumps over the lazy dog")
    return at


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_refusal_is_one_line_and_no_output(
    made: Path, command: str, kind: str, tmp_path: Path, cli: Run
) -> None:
    name, options, says = KINDS[kind]
    names = {"m": str(made / name), "to": str(tmp_path), "text": str(made / "text")}
    given = [part.format(**names) for part in COMMANDS[command]]
    backend = [] if "--backend" in options else ["--backend", "reference"]
    answer = cli(*given, *options, *backend)
    assert answer.status == 2
    assert says in answer.problem
    assert answer.out == ""
    # Of planes those of whole layers stay, to be resumed from, and no manifest.
    assert not list(tmp_path.rglob("manifest.json")) and not list(tmp_path.rglob("a.npy*"))


def test_shards_and_routes_give_the_same_answer(made: Path, cli: Run) -> None:
    common = ["--tokens", "9,8,7", "--backend", "reference", "--json"]
    plain = cli("exec", made / "whole", *common).ok().json
    assert "experts" not in plain["provenance"] and "best_effort" not in plain["provenance"]
    for arguments in (
        [made / "whole", "--route", "in-process"],
        [made / "low", "--experts", made / "high"],
        [made / "whole", "--shard", "0:3", "--experts", made / "high"],
    ):
        found = cli("exec", *arguments, *common).ok().json
        assert found["top"] == plain["top"]
        assert found["provenance"]["experts"]["shard"] == ([0, 3] if "0:3" in arguments else None)
    both = cli("exec", made / "whole", "--experts", made / "high", *common)
    assert "is in" in both.problem and "--shard" in both.problem


def test_slices_are_shards(made: Path, tmp_path: Path, cli: Run) -> None:
    for name, experts in (("low", "0:3"), ("high", "3:8")):
        cli("slice", made / "whole", "-o", tmp_path / name, "--experts", experts).ok()
    common = ["--tokens", "9,8,7", "--backend", "reference", "--json"]
    plain = cli("exec", made / "whole", *common).ok().json
    found = cli("exec", tmp_path / "low", "--experts", tmp_path / "high", *common).ok().json
    assert found["top"] == plain["top"]
    alone = cli("exec", tmp_path / "high", *common)
    assert alone.status == 2 and "experts 3:8 of 8 are bound" in alone.err + alone.out


def test_best_effort_answers_and_warns(made: Path, cli: Run) -> None:
    answer = cli(
        "exec", made / "whole", "--tokens", "9,8,7", "--backend", "reference", "--shard", "0:3",
        "--refusals", "best-effort", "--json",
    ).ok()  # fmt: skip
    assert "positions went on without routed experts" in answer.err
    said = answer.json["provenance"]["best_effort"]
    assert said["left_out"] >= said["positions"] >= 1
    assert said["first"][0]["kind"] == "residency"
    seen = cli(
        "observe", made / "whole", "--tokens", "9,8,7", "--backend", "reference", "--shard", "0:3",
        "--refusals", "best-effort", "--json",
    ).ok()  # fmt: skip
    identity = seen.json["identity"]
    assert identity["refusals"] == "best-effort" and identity["experts"]["shard"] == [0, 3]


def test_options_about_experts_need_experts(llama: Path, made: Path, cli: Run) -> None:
    assert "no routed experts" in cli("exec", llama, "--tokens", "1", "--shard", "0:1").problem
    assert "not a range" in cli("exec", made / "whole", "--tokens", "1", "--shard", "3").problem
