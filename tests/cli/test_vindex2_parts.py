"""VINDEX2 directories that are cut and searched, beside the same model as a VINDEX3 container."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.cli.main import main
from tests.builders.containers import copy_container, flip_byte
from tests.builders.vindex2 import vouch_v2, write_tiny
from tests.cli.conftest import Run
from tests.cli.test_commands import imported_by

ORACLES = Path(__file__).parents[1] / "oracles"
NAMES = {
    "client": {"embeddings.bin", "norms.bin", "attn_weights.bin", "weight_manifest.json", "T"},
    "attn": {"norms.bin", "attn_weights.bin", "weight_manifest.json"},
    "embed": {"embeddings.bin", "T"},
    "server": {
        "embeddings.bin",
        "norms.bin",
        "gate_vectors.bin",
        "down_meta.bin",
        "up_weights.bin",
        "down_weights.bin",
        "weight_manifest.json",
        "T",
    },
    "browse": {"embeddings.bin", "gate_vectors.bin", "down_meta.bin", "T"},
}
LEVELS = {
    "client": "attention",
    "attn": "attention",
    "embed": "browse",
    "server": "browse",
    "browse": "browse",
    "all": "all",
}


def extracted(source: Path, to: Path, *options: str) -> Path:
    assert main(["extract", str(source), "-o", str(to), *options]) == 0
    return to


@pytest.fixture(scope="module")
def vindex(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("v2") / "llama.vindex"
    return extracted(models / "llama", at, "--generation", "v2", "--level", "all")


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers 0 and 2 route to 7 experts; layer 1 is dense."""
    at = tmp_path_factory.mktemp("v2") / "experts.vindex"
    source = ORACLES / "qwen3_moe" / "checkpoint"
    return extracted(source, at, "--generation", "v2", "--level", "all")


def index_of(directory: Path) -> Any:
    return json.loads((directory / "index.json").read_text())


def files_of(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def text_files(directory: Path) -> set[str]:
    return {name for name in files_of(directory) if "tokenizer" in name or "generation_" in name}


@pytest.mark.parametrize("preset", sorted(LEVELS))
def test_presets_carve_files_and_state_what_is_left(
    preset: str, cli: Run, vindex: Path, tmp_path: Path
) -> None:
    listed = cli("slice", vindex, "--preset", preset, "--dry-run", "--json").ok().json
    made = cli("slice", vindex, "-o", tmp_path / "s", "--preset", preset, "--json").ok().json
    files = files_of(tmp_path / "s") - {"index.json"}
    if preset == "all":
        assert files == files_of(vindex) - {"index.json"}
    else:
        wanted = NAMES[preset] - {"T"}
        assert files == wanted | (text_files(vindex) if "T" in NAMES[preset] else set())
    index = index_of(tmp_path / "s")
    assert index["version"] == 2
    assert set(index["checksums"]) == files == {file["name"] for file in listed["files"]}
    assert index["extract_level"] == LEVELS[preset]
    assert index["has_model_weights"] is (preset == "all")
    assert index["remote"] == made["left_out"] == listed["left_out"]
    assert index["derived_from_model"] == made["cut_from"]
    assert listed["bytes"] + (tmp_path / "s" / "index.json").stat().st_size == made["bytes"]
    cli("verify", tmp_path / "s").ok()
    shown = cli("show", tmp_path / "s", "--json").ok().json
    assert (shown["generation"], shown["authority"]) == ("VINDEX2", "derived")
    able = {o["name"]: o["admitted"] for o in made["operations"]}
    assert able["walk"] is (preset in ("server", "browse", "all"))
    assert able["local_decode"] is (preset == "all")
    if preset == "all":
        assert dump(cli, tmp_path / "s", tmp_path / "a.npy") == dump(
            cli, vindex, tmp_path / "b.npy"
        )
    else:
        run = cli("exec", tmp_path / "s", "--tokens", "1,2", "-n", "1")
        assert run.status == 2
        assert "profile default says that it is elsewhere" in run.problem
    # What was kept whole shares its bytes: a second name of one file, or a clone.
    kept = next(file["name"] for file in listed["files"] if file["how"] == "whole")
    assert (tmp_path / "s" / kept).read_bytes() == (vindex / kept).read_bytes()
    assert made["files"]["cloned"] or (vindex / kept).samefile(tmp_path / "s" / kept)


def test_experts_have_their_own_presets(cli: Run, experts: Path, tmp_path: Path) -> None:
    cli("slice", experts, "-o", tmp_path / "r", "--preset", "router").ok()
    assert "router_weights.bin" in files_of(tmp_path / "r")
    assert not any(name.startswith("layers/") for name in files_of(tmp_path / "r"))
    cli("slice", experts, "-o", tmp_path / "e", "--preset", "expert-server").ok()
    held = files_of(tmp_path / "e")
    assert {"layers/layer_00.weights", "layers/layer_02.weights", "up_weights.bin"} <= held
    assert not {"router_weights.bin", "attn_weights.bin", "gate_vectors.bin"} & held
    for name in "re":
        cli("verify", tmp_path / name).ok()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--preset", "router"), "there is no router in it"),
        (("--parts", "expert_layers"), "there is no expert_layers in it"),
        (("--preset", "none"), "there is no preset 'none'"),
        (("--experts", "0:1"), "no experts to choose among"),
        (("--layers", "0:9"), "there are 3 layers"),
        (("--draft-depth", "4"), "the model has 3 layers"),
        (("--parts", "tokenizer"), "nothing of the model is left"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    arguments: tuple[str, ...], problem: str, cli: Run, vindex: Path, tmp_path: Path
) -> None:
    answer = cli("slice", vindex, "-o", tmp_path / "s", *arguments)
    assert answer.status == 2
    assert problem in answer.problem
    assert not (tmp_path / "s").exists()


def test_the_directory_is_not_its_own_slice(cli: Run, vindex: Path, tmp_path: Path) -> None:
    before = index_of(vindex)
    assert "choose another path" in cli("slice", vindex, "-o", vindex, "--force").problem
    assert index_of(vindex) == before
    cli("slice", vindex, "-o", tmp_path / "s", "--preset", "embed").ok()
    assert cli("slice", vindex, "-o", tmp_path / "s").status == 2
    cli("slice", vindex, "-o", tmp_path / "s", "--force").ok()
    assert index_of(tmp_path / "s")["extract_level"] == "all"


def test_a_damaged_file_is_not_taken_over(cli: Run, vindex: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(vindex, tmp_path / "c"))
    flip_byte(copy / "gate_vectors.bin", 100)
    for cut in (("--preset", "browse"), ("--layers", "0:1")):
        answer = cli("slice", copy, "-o", tmp_path / "s", *cut)
        assert answer.status == 2
        assert "gate_vectors.bin: has sha256" in answer.problem
        assert not (tmp_path / "s").exists()


def dump(cli: Run, at: Path, to: Path, *more: str) -> str:
    asked = ("--tokens", "1,2,3", "--json", "--logit-dump", to, *more)
    return str(cli("exec", at, *asked).ok().json["payload_sha256"])


@pytest.mark.parametrize("which", ["vindex", "experts", "per_layer"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_shallower_slice_is_a_model_of_its_own(
    which: str,
    depth: int,
    cli: Run,
    request: pytest.FixtureRequest,
    models: Path,
    tmp_path: Path,
) -> None:
    if which == "per_layer":
        options = ("--generation", "v2", "--level", "all", "--ffn-layout", "per_layer")
        at = extracted(models / "llama", tmp_path / "p", *options)
    else:
        at = request.getfixturevalue(which)
    cut = tmp_path / "s"
    made = cli("slice", at, "-o", cut, "--draft-depth", depth, "--json").ok().json
    assert made["left_out"] == []
    index = index_of(cut)
    assert (index["num_layers"], len(index["layers"])) == (depth, depth)
    assert index["extract_level"] == "all"
    cli("verify", cut).ok()
    own = dump(cli, cut, tmp_path / "a.npy")
    assert own == dump(cli, at, tmp_path / "b.npy", "--draft-depth", str(depth))
    if which == "experts" and depth == 1:
        refused = cli("walk", cut, "--tokens", "1")
        assert "experts are not searched in this generation" in refused.problem
        return
    walked = cli("walk", cut, "--tokens", "1", "--json").ok().json["banks"]
    whole = cli("walk", at, "--tokens", "1", "--layers", f"0:{depth}", "--json").ok().json["banks"]
    assert walked == whole


def test_a_range_of_layers_keeps_its_numbers(cli: Run, experts: Path, tmp_path: Path) -> None:
    cut = tmp_path / "s"
    cli("slice", experts, "-o", cut, "--layers", "1:3").ok()
    cli("verify", cut).ok()
    assert {n for n in files_of(cut) if n.startswith("layers/")} == {"layers/layer_02.weights"}
    whole = cli("walk", experts, "--tokens", "1", "--layers", "1:2", "--json").ok().json
    assert cli("walk", cut, "--tokens", "1", "--json").ok().json["banks"] == whole["banks"]
    refused = cli("exec", cut, "--tokens", "1")
    assert "target.layer.000/attention.norm.weight" in refused.problem
    again = tmp_path / "t"
    cli("slice", cut, "-o", again, "--layers", "1:2").ok()
    cli("verify", again).ok()
    assert index_of(again)["derived_from_model"] == index_of(cut)["derived_from_model"]


@pytest.mark.parametrize("given", [["--layers", "1:2"], ["--layers", "0:1", "--draft-depth", "2"]])
def test_a_range_of_dense_layers_is_sound(
    cli: Run, vindex: Path, tmp_path: Path, given: list[str]
) -> None:
    cut = tmp_path / "s"
    cli("slice", vindex, "-o", cut, *given).ok()
    cli("verify", cut).ok()
    cli("publish", cut, "a/b", "--dry-run").ok()


def test_what_is_no_file_is_refused_and_not_waited_for(
    cli: Run, vindex: Path, tmp_path: Path
) -> None:
    damaged = copy_container(vindex, tmp_path / "m")
    (damaged / "down_meta.bin").unlink()
    os.mkfifo(damaged / "down_meta.bin")
    assert "not a regular file" in cli("walk", damaged, "--tokens", "1").problem


def test_more_is_asked_for_than_there_is(cli: Run, vindex: Path) -> None:
    walked = cli("walk", vindex, "--tokens", "1", "--top-k", str(10**8), "--json").ok().json
    features = {row["layer"]: row["num_features"] for row in index_of(vindex)["layers"]}
    assert {b["layer"]: len(b["hits"]) for b in walked["banks"]} == features


def test_shards_of_experts_keep_the_population(cli: Run, experts: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    cli("slice", experts, "-o", a, "--experts", "0:4").ok()
    cli("slice", experts, "-o", b, "--experts", "4:7").ok()
    name = "layers/layer_02.weights"
    head = 24 + 7 * 32
    whole = (experts / name).read_bytes()
    assert whole[head:] == (a / name).read_bytes()[head:] + (b / name).read_bytes()[head:]
    said = cli("verify", a).ok().out
    assert "experts 0:4 of 7" in said
    tokens = ",".join(map(str, range(1, 30)))
    refused = cli("exec", a, "--tokens", tokens)
    assert refused.status == 2
    assert "experts 0:4 of 7 are bound" in refused.problem
    # One who keeps them all keeps the file, and a shard is cut again only inside of itself.
    cli("slice", experts, "-o", tmp_path / "c", "--experts", "0:7").ok()
    assert "experts" not in index_of(tmp_path / "c")
    cli("slice", a, "-o", tmp_path / "d", "--experts", "2:6").ok()
    assert index_of(tmp_path / "d")["experts"] == [2, 4]
    cli("verify", tmp_path / "d").ok()
    assert (
        "is a shard with the experts 0:4"
        in cli("slice", a, "-o", tmp_path / "e", "--experts", "5:7").problem
    )


def test_a_shard_that_says_it_is_whole_is_a_defect(cli: Run, experts: Path, tmp_path: Path) -> None:
    cli("slice", experts, "-o", tmp_path / "a", "--experts", "0:4").ok()
    path = tmp_path / "a" / "index.json"
    document = json.loads(path.read_text())
    del document["experts"]
    path.write_text(json.dumps(document))
    answer = cli("verify", tmp_path / "a")
    assert answer.status == 1
    assert "layers/layer_00.weights: has 4 experts of 7, which must all be here" in answer.out


def test_slicing_is_reproducible_and_computes_nothing(
    cli: Run, vindex: Path, tmp_path: Path
) -> None:
    for name in "ab":
        cli("slice", vindex, "-o", tmp_path / name, "--draft-depth", "2").ok()
    assert (tmp_path / "a" / "index.json").read_bytes() == (
        tmp_path / "b" / "index.json"
    ).read_bytes()
    status, heavy, _ = imported_by("slice", str(vindex), "-o", str(tmp_path / "s"))
    assert (status, heavy) == (0, set())


def test_without_a_graph_files_are_cut_and_layers_are_not(cli: Run, tmp_path: Path) -> None:
    at = write_tiny(tmp_path / "d")
    cli("slice", at, "-o", tmp_path / "s", "--preset", "browse").ok()
    cli("verify", tmp_path / "s").ok()
    cli("slice", at, "-o", tmp_path / "t", "--layers", "1:2").ok()
    assert index_of(tmp_path / "t")["layers"][0]["num_features"] == 0
    assert (tmp_path / "t" / "gate_vectors.bin").stat().st_size == 8
    refused = cli("slice", at, "-o", tmp_path / "u", "--draft-depth", "1")
    assert "nothing says what the model computes" in refused.problem


# --- searching -----------------------------------------------------------------------------------


def test_both_generations_of_a_dense_model_answer_alike(
    cli: Run, vindex: Path, llama: Path
) -> None:
    """Every bank, hit, score and token; so does a description."""
    for asked in (
        ("walk", "--prompt", "the", "--writes", "10"),
        ("walk", "--prompt", "the and in", "--residuals"),
        ("describe", "the", "--writes", "10"),
    ):
        command, *more = asked
        old, new = (cli(command, at, *more, "--json").ok().json for at in (vindex, llama))
        key = "banks" if command == "walk" else "features"
        assert old[key] == new[key]
        assert old[key]


def test_the_features_are_those_of_the_formula(cli: Run, tmp_path: Path) -> None:
    at = write_tiny(tmp_path / "d")
    vector = np.array([2.0, 1.0], np.float32)
    np.save(tmp_path / "v.npy", vector)
    found = cli("walk", at, "--vector", tmp_path / "v.npy", "--json").ok().json
    first, second = found["banks"]
    assert [(h["feature"], h["score"]) for h in first["hits"]] == [(0, 4.0), (1, 2.0)]
    assert [(w["token"], w["score"]) for w in first["hits"][0]["writes"]] == [(2, 1.5), (0, 0.5)]
    assert [(h["feature"], h["score"]) for h in second["hits"]] == [(0, 1.25)]
    assert found["authority"]["level"] == "numerically-approximate"
    # Token 2 is (-1, 2), times the scale of 1.5.
    by_token = cli("walk", at, "--tokens", "1,2", "--json").ok().json
    assert [h["score"] for h in by_token["banks"][0]["hits"]] == [4.5, -16.5]
    assert any("no tokenizer" in note for note in by_token["notes"])
    assert "down_meta.bin records 2 tokens of each feature" in by_token["notes"]
    assert cli("walk", at, "--tokens", "3").status == 2
    assert "nothing says what" in cli("walk", at, "--tokens", "1", "--residuals").problem
    assert "has 3 elements" not in cli("walk", at, "--tokens", "1").ok().err


def test_experts_are_not_searched(cli: Run, experts: Path) -> None:
    found = cli("walk", experts, "--tokens", "1", "--json").ok().json
    assert [bank["bank"] for bank in found["banks"]] == ["target.layer.001/ffn"]
    assert (
        "layers 0:1 have no bank"
        in cli("walk", experts, "--tokens", "1", "--layers", "0:1").problem
    )


def test_a_vector_needs_gate_vectors_alone(cli: Run, vindex: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.linspace(-1, 1, 64, dtype=np.float32))
    cli("slice", vindex, "-o", tmp_path / "s", "--parts", "gate").ok()
    asked = ("--vector", tmp_path / "v.npy", "--json", "--writes", "0")
    whole = cli("walk", vindex, *asked).ok().json
    cut = cli("walk", tmp_path / "s", *asked[:-2]).ok().json
    assert cut["banks"] == whole["banks"]
    assert "down_meta.bin is not here, so features have no tokens" in cut["notes"]
    assert "target.embedding/weight" in cli("walk", tmp_path / "s", "--tokens", "1").problem


def test_what_is_not_here_is_named_or_dropped(cli: Run, vindex: Path, tmp_path: Path) -> None:
    cli("slice", vindex, "-o", tmp_path / "s", "--layers", "0:2").ok()
    refused = cli("walk", tmp_path / "s", "--tokens", "1")
    assert refused.status == 2
    assert "target.layer.002/ffn.gate.weight" in refused.problem
    answer = cli("walk", tmp_path / "s", "--tokens", "1", "--partial", "--json").ok().json
    assert [bank["layer"] for bank in answer["banks"]] == [0, 1]
    assert answer["dropped"]
    cli("slice", vindex, "-o", tmp_path / "t", "--preset", "embed").ok()
    assert cli("walk", tmp_path / "t", "--tokens", "1", "--partial").status == 2


def test_labels_are_carried_and_shown(cli: Run, vindex: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(vindex, tmp_path / "c"))
    asked = ("--tokens", "1", "--layers", "1:2", "--top-k", "2")
    plain = cli("walk", copy, *asked, "--json").ok().json["banks"][0]["hits"]
    assert "label" not in plain[0]
    best = plain[0]["feature"]
    (copy / "feature_labels.json").write_text(json.dumps({f"L1_F{best}": "capital"}))
    clusters = {"labels": ["capital", "river"], "counts": [3, 1], "k": 2}
    (copy / "relation_clusters.json").write_text(json.dumps(clusters))
    vouch_v2(copy, "feature_labels.json", "relation_clusters.json")
    cli("slice", copy, "-o", tmp_path / "s", "--preset", "browse").ok()
    for at in (copy, tmp_path / "s"):
        hits = cli("walk", at, *asked, "--json").ok().json["banks"][0]["hits"]
        assert [hit["label"] for hit in hits] == ["capital", None]
        assert "capital" in cli("walk", at, *asked).ok().out
        told = cli("describe", at, "1").ok().out
        assert "relations: capital (3), river (1)" in told
    (copy / "feature_labels.json").write_text('{"7": "x"}')
    vouch_v2(copy, "feature_labels.json")
    assert "expected L<layer>_F<feature>" in cli("walk", copy, *asked).problem


def test_scores_do_not_hang_on_threads(cli: Run, vindex: Path) -> None:
    one, two = (
        cli("walk", vindex, "--tokens", "5", "--json", "--threads", n).ok().json["banks"]
        for n in "12"
    )
    assert one == two
