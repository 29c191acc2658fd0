"""Routed experts on the command line: shards, routes, policies, and refusals without output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builders.containers import copy_container, vouch_for
from tests.builders.expert_banks import Spec, weights, write
from tests.cli.conftest import Run

SPEC = Spec(8, 2, 32, 32, layers=2, vocab=256)
COMMANDS = {
    "exec": ["exec", "{m}", "--tokens", "9,8,7"],
    "exec in chunks": ["exec", "{m}", "--tokens", "9,8,7", "--chunk", "1"],
    "exec of a draft": ["exec", "{m}", "--tokens", "9,8,7", "--draft-depth", "1"],
    "exec to a dump": ["exec", "{m}", "--tokens", "9,8,7", "--logit-dump", "{to}/a.npy"],
    "exec to planes": ["exec", "{m}", "--tokens", "9,8,7", "--dump-layers", "{to}/planes"],
    "exec with tokens": ["exec", "{m}", "--tokens", "9,8,7", "--generate", "2"],
    "observe": ["observe", "{m}", "--tokens", "9,8,7"],
    "observe to a record": ["observe", "{m}", "--tokens", "9,8,7", "--record", "{to}/r.jsonl"],
    "observe to captures": [
        "observe",
        "{m}",
        "--tokens",
        "9,8,7",
        "--capture",
        "0.ffn@1",
        "--capture-out",
        "{to}/c.safetensors",
    ],
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
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("model", "kind"), [("low", "Residency"), ("broken", "BindingDefect")])
def test_measuring_drafts_is_refused_in_the_same_kind_and_leaves_nothing(
    made: Path, tmp_path: Path, cli: Run, model: str, kind: str
) -> None:
    tokens = ["--tokens", "9,8,7,6", "--backend", "reference", "--json"]
    for given in (
        ["accept", made / model, "--draft", "ngram"],
        ["ladder", made / model, "-o", tmp_path / "l.json"],
    ):
        answer = cli("vindex3", *given, *tokens)
        assert answer.status == 2
        assert answer.json["error"]["kind"].startswith(kind)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", ["bytes", "gone", "vouched"])
def test_a_manifest_that_is_not_sound_is_refused_by_what_runs_and_what_judges(
    made: Path, tmp_path: Path, cli: Run, change: str
) -> None:
    model = copy_container(made / "whole", tmp_path / "m")
    path = model / "moe_manifest.json"
    if change == "gone":
        path.unlink()
    else:
        manifest = json.loads(path.read_text())
        manifest["layers"][0]["router"]["selection"]["k"] += 1
        path.write_text(json.dumps(manifest))
    if change == "vouched":
        vouch_for(model, path.name)
    answer = cli("exec", model, "--tokens", "9,8,7", "--backend", "reference")
    assert answer.status == 2 and "moe_manifest.json" in answer.problem
    judged = cli("vindex3", "capability", model, "--json")
    assert judged.status == 1
    decode = next(o for o in judged.json["operations"] if o["name"] == "local_decode")
    assert "moe_manifest.json" in json.dumps(decode)


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


def test_pieces_that_are_together_the_whole_run_as_it_does(
    made: Path, tmp_path: Path, cli: Run
) -> None:
    """The experts in shards, and nothing of them beside the attention; or the router there too."""
    here = "embed,norms,head,tokenizer,manifest"
    cli("slice", made / "whole", "-o", tmp_path / "one", "--parts", f"{here},router").ok()
    cli("slice", made / "whole", "-o", tmp_path / "bare", "--parts", here).ok()
    shards = []
    for name, experts in (("low", "0:3"), ("high", "3:8")):
        cut = ["--preset", "expert-server", "--parts", "router", "--experts", experts]
        cli("slice", made / "whole", "-o", tmp_path / name, *cut).ok()
        shards.append(str(tmp_path / name))
    both = ",".join(shards)
    for backend in ("production", "reference"):
        common = ["--tokens", "9,8,7", "--json", "--backend", backend]
        plain = cli("exec", made / "whole", *common).ok().json
        for name in ("one", "bare"):
            for order in (both, ",".join(shards[::-1])):
                found = cli("exec", tmp_path / name, "--experts", order, *common).ok().json
                assert found["top"] == plain["top"]
                assert len(found["provenance"]["experts"]["shards"]) == 2
        part = cli("exec", tmp_path / "one", "--experts", shards[1], *common)
        assert part.status == 2 and "is not resident: experts none of 8 are bound" in part.problem
        assert part.json["error"]["refusal"] == "residency"
    alone = cli("exec", tmp_path / "one", "--tokens", "9,8,7")
    assert alone.status == 2 and "says that it is elsewhere" in alone.problem
    write(weights(SPEC, seed=6), tmp_path / "other")
    cli("slice", tmp_path / "other", "-o", tmp_path / "s", "--preset", "expert-server").ok()
    strange = cli("exec", tmp_path / "one", "--tokens", "9,8,7", "--experts", tmp_path / "s")
    assert strange.status == 2 and "it is not a shard of this model" in strange.problem


def test_verify_says_what_of_a_shard_binds_and_what_is_elsewhere(
    made: Path, tmp_path: Path, cli: Run
) -> None:
    whole = cli("verify", made / "whole", "--json").ok().json["binds"]
    assert len(whole["whole"]) == 3 + 2 * (1 + 3)
    assert whole["in_part"] == whole["elsewhere"] == []
    low = cli("verify", made / "low", "--json").ok().json["binds"]
    assert len(low["whole"]) == 5 and low["elsewhere"] == []
    assert low["in_part"][0] == {
        "operand": "target.layer.000/experts.gate", "experts": [[0, 3]], "population": 8,
    }  # fmt: skip
    assert len(low["in_part"]) == 6
    text = cli("verify", made / "low").ok().out
    assert "5 operands are present and will bind" in text
    assert "6 operands of experts are here in part, experts 0:3 of 8; by itself" in text
    bare = ["--parts", "embed,norms,head,tokenizer,manifest"]
    cli("slice", made / "whole", "-o", tmp_path / "s", *bare).ok()
    found = cli("verify", tmp_path / "s", "--json").ok().json["binds"]
    assert len(found["whole"]) == 3 and len(found["elsewhere"]) == 2 * (1 + 3)
    assert "8 operands are declared to be elsewhere, " in cli("verify", tmp_path / "s").ok().out
    # The same is said of operations: fetching helps, and nothing is wrong.
    told = cli("vindex3", "capability", made / "low", "--json").ok().json
    states = {d["state"] for one in told["operations"] for d in one["diagnoses"]}
    assert "absent: declared remote" in states and "absent: nowhere" not in states


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
