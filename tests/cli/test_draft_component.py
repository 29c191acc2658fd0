"""A draft head in a checkpoint, from plan to reconstruction; only drafting hangs on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tests.builders.containers import read_json
from tests.builders.hybrids import Tensors, changed, draft_tensors, recorded, with_experts
from tests.builders.safetensors import write_safetensors_dir
from tests.cli.conftest import Run

TOKENS = ("--tokens", "3,1,4,1,5,9,2,6")
GONE = "mtp.layers.0.mlp.up_proj.weight"
EXPERT = "mtp.layers.0.mlp.experts.2.up_proj.weight"
ROUTED = ("dense trunk", "routed trunk", "apart", "packed")
# Families whose draft layers are no component yet, and how a file names some of their tensors.
LEFT = {
    "glm4_moe": tuple(f"model.layers.3.{n}.weight" for n in ("eh_proj", "enorm", "hnorm")),
    "deepseek_v3": tuple(f"model.layers.3.{n}.weight" for n in ("eh_proj", "enorm", "hnorm")),
}


def write(at: Path, extra: Tensors) -> Path:
    """A checkpoint of a text model without biases, and tensors beside it."""
    config, tensors = recorded("qwen3_5")
    config = changed(config, {"attention_bias": False, "mtp_num_hidden_layers": 1})
    trunk = {name: value for name, value in tensors.items() if "_proj.bias" not in name}
    return write_safetensors_dir(at, config, {**trunk, **extra})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("drafts")
    extra = draft_tensors(recorded("qwen3_5")[0])
    write(at / "with", extra)
    write(at / "without", {})
    write(at / "lacking", {name: value for name, value in extra.items() if name != GONE})
    return at


def stored(checkpoint: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = {}
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                found[name] = (str(tensor.dtype), tensor.shape, tensor.tobytes())
    return found


def test_it_is_planned_carried_verified_and_written_back(
    checkpoints: Path, tmp_path: Path, cli: Run
) -> None:
    source, made, back = checkpoints / "with", tmp_path / "m.vindex3", tmp_path / "back"
    planned = cli("vindex3", "plan", source, "--json").ok().json
    target, draft = planned["components"]
    assert (target["id"], draft["id"], draft["layers"]) == ("target", "mtp", 1)
    assert [op["op"] for op in draft["operations"]] == [
        "embed", "draft_input", "norm", "softmax_attention", "norm", "dense_ffn", "norm", "head",
    ]  # fmt: skip
    assert planned["left"] == {} and planned["unread"] == []
    assert planned["keys"]["mtp_num_hidden_layers"] == "consumed"
    text = cli("vindex3", "plan", source).ok().out
    assert "component mtp: 1 layers" in text
    assert "32 from two norms, the embedding's first" in text

    cli("extract", source, "-o", made).ok()
    assert "component mtp: 1 layers" in cli("show", made).ok().out
    shown = cli("show", made, "--json").ok().json
    assert [component["id"] for component in shown["components"]] == ["target", "mtp"]
    assert cli("verify", made, "--json").ok().json["defects"] == []
    cli("reconstruct", made, "-o", back).ok()
    assert stored(back) == stored(source)
    assert read_json(back / "config.json") == read_json(source / "config.json")


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_the_trunk_is_the_same_with_it_without_it_and_with_a_part_of_it(
    checkpoints: Path, tmp_path: Path, cli: Run, backend: str
) -> None:
    dumps = {}
    for name in ("with", "without", "lacking"):
        made, dump = tmp_path / f"{name}.vindex3", tmp_path / f"{name}.npy"
        cli("extract", checkpoints / name, "-o", made).ok()
        cli("exec", made, *TOKENS, "--backend", backend, "--logit-dump", dump).ok()
        dumps[name] = np.load(dump).tobytes()
    assert dumps["with"] == dumps["without"] == dumps["lacking"]


def test_one_tensor_less_leaves_it_behind_by_name(
    checkpoints: Path, tmp_path: Path, cli: Run
) -> None:
    source, made = checkpoints / "lacking", tmp_path / "m.vindex3"
    problem = f"tensor {GONE} is missing from the checkpoint"
    planned = cli("vindex3", "plan", source, "--json").ok().json
    assert planned["admissible"]
    assert [component["id"] for component in planned["components"]] == ["target"]
    assert len(planned["left"]) == 14 and set(planned["left"].values()) == {problem}
    assert f"warning: the draft head was left behind: {problem}" in planned["notes"]
    answer = cli("extract", source, "-o", made).ok()
    assert f"the draft head was left behind: {problem}" in answer.err
    cli("verify", made).ok()
    cli("exec", made, *TOKENS).ok()
    refused = cli("exec", made, *TOKENS, "--component", "mtp")
    assert refused.status == 2
    assert GONE in refused.problem
    refused = cli("exec", made, *TOKENS, "-n", "2", "--speculate", "mtp")
    assert refused.status == 2
    assert GONE in refused.problem


def routing(at: Path, kind: str, drop: str = "", *, drafts: bool = True) -> Path:
    """A checkpoint whose draft head routes."""
    config, tensors, extra = with_experts(kind)
    kept = {key: value for key, value in extra.items() if drafts and key != drop}
    return write_safetensors_dir(at, config, {**tensors, **kept})


def logits(cli: Run, made: Path, backend: str) -> bytes:
    dump = made.with_suffix(f".{backend}.npy")
    cli("exec", made, *TOKENS, "--backend", backend, "--logit-dump", dump).ok()
    return np.load(dump).tobytes()


@pytest.mark.parametrize("kind", ROUTED)
def test_a_head_with_experts_is_carried_and_written_back(
    tmp_path: Path, cli: Run, kind: str
) -> None:
    source, made = routing(tmp_path / "c", kind), tmp_path / "m.vindex3"
    planned = cli("vindex3", "plan", source, "--json").ok().json
    target, draft = planned["components"]
    assert (target["id"], draft["id"], draft["layers"]) == ("target", "mtp", 1)
    assert "routed_ffn" in [op["op"] for op in draft["operations"]]
    assert planned["left"] == {} and planned["unread"] == []
    cli("extract", source, "-o", made).ok()
    shown = cli("show", made, "--json").ok().json
    places = [(bank["component"], bank["layer"], bank["storage"]) for bank in shown["banks"]]
    assert places[-1] == ("mtp", 0, "mtp.layer_000")
    assert all(place[0] == "target" for place in places[:-1])
    assert shown["banks"][-1]["files"] == ["routed/mtp.layer_000.lyrw"]
    assert shown["banks"][-1]["binds"]
    assert "mtp 0:1" in cli("show", made).ok().out
    assert cli("verify", made, "--json").ok().json["defects"] == []
    operations = cli("vindex3", "capability", made, "--json").ok().json["operations"]
    assert [op["diagnoses"] for op in operations if op["name"] != "walk"] == [[]] * 3
    cli("reconstruct", made, "-o", tmp_path / "back").ok()
    assert stored(tmp_path / "back") == stored(source)


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize("kind", ROUTED)
def test_the_trunk_does_not_notice_a_head_with_experts(
    tmp_path: Path, cli: Run, kind: str, backend: str
) -> None:
    lost = "mtp.layers.0.mlp.experts.down_proj" if kind == "packed" else EXPERT
    for at, drop, drafts in (("with", "", True), ("without", "", False), ("lacking", lost, True)):
        source = routing(tmp_path / at, kind, drop, drafts=drafts)
        cli("extract", source, "-o", tmp_path / f"{at}.vindex3").ok()
    arms = [tmp_path / f"{at}.vindex3" for at in ("with", "without", "lacking")]
    found = [logits(cli, made, backend) for made in arms]
    assert found[0] == found[1] == found[2]
    made = {at: read_json(tmp_path / f"{at}.vindex3" / "index.json") for at in ("with", "without")}
    # what the target's banks are called, and what is in them, is what it was without
    for file, entry in made["without"]["segments"].items():
        assert made["with"]["segments"][file] == entry
    cli("verify", tmp_path / "lacking.vindex3").ok()
    for options in (("--component", "mtp"), ("-n", "2", "--speculate", "mtp")):
        refused = cli("exec", tmp_path / "lacking.vindex3", *TOKENS, *options)
        assert refused.status == 2
        assert f"tensor {lost} is missing from the checkpoint" in refused.problem
        cli("exec", tmp_path / "with.vindex3", *TOKENS, *options, "--backend", backend).ok()


def test_a_defect_of_its_bank_says_whose_it_is(tmp_path: Path, cli: Run) -> None:
    made = tmp_path / "m.vindex3"
    cli("extract", routing(tmp_path / "c", "packed"), "-o", made).ok()
    file = made / "routed/mtp.layer_000.lyrw"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found = cli("verify", made, "--json")
    assert found.status == 1
    places = [defect["place"] for defect in found.json["defects"]]
    assert places == [
        {"layer": 0, "bank": "routed", "role": "down", "segment": None, "component": "mtp"}
    ]
    file.unlink()
    found = cli("verify", made, "--json")
    assert {d["place"]["component"] for d in found.json["defects"]} == {"mtp"}
    logits(cli, made, "production")
    refused = cli("exec", made, *TOKENS, "--component", "mtp")
    assert refused.status == 2 and "mtp.layer.000/experts" in refused.problem


def test_the_target_is_not_asked_for_what_is_the_head_s(tmp_path: Path, cli: Run) -> None:
    made = tmp_path / "m.vindex3"
    cli("extract", routing(tmp_path / "c", "routed trunk"), "-o", made).ok()
    for file in ("segments/mtp.layer.000.safetensors", "routed/mtp.layer_000.lyrw"):
        (made / file).unlink()
    operations = cli("vindex3", "capability", made, "--json").json["operations"]
    found = {op["component"]: op["diagnoses"] for op in operations if op["name"] == "local_decode"}
    assert found["target"] == []
    wheres = " ".join(diagnosis["where"] for diagnosis in found["mtp"])
    assert "mtp.layer.000/ffn.router.weight" in wheres and "mtp.layer.000/experts" in wheres


def test_a_manifest_that_gives_its_bank_to_another_component_is_a_defect(
    tmp_path: Path, cli: Run
) -> None:
    made = tmp_path / "m.vindex3"
    cli("extract", routing(tmp_path / "c", "dense trunk"), "-o", made).ok()
    manifest = read_json(made / "moe_manifest.json")
    assert [layer["component"] for layer in manifest["layers"]] == ["mtp"]
    del manifest["layers"][0]["component"]
    (made / "moe_manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    problems = [d["problem"] for d in cli("verify", made, "--json").json["defects"]]
    assert "is not the manifest that the graph implies" in problems


def test_slices_of_a_head_with_experts(tmp_path: Path, cli: Run) -> None:
    made = tmp_path / "m.vindex3"
    cli("extract", routing(tmp_path / "c", "packed"), "-o", made).ok()
    rows = "--logit-dump", tmp_path / "whole.npy"
    cli("exec", made, *TOKENS, "--component", "mtp", *rows).ok()
    # shards by expert, of both components' banks
    for name, part in (("a", "0:3"), ("b", "3:6")):
        cli("slice", made, "-o", tmp_path / f"{name}.vindex3", "--experts", part).ok()
        cli("verify", tmp_path / f"{name}.vindex3").ok()
    files = {path.name for path in (tmp_path / "b.vindex3/routed").iterdir()}
    assert {"mtp.layer_000.seg01.lyrw", "layer_000.seg01.lyrw"} <= files
    refused = cli("exec", tmp_path / "a.vindex3", *TOKENS, "--component", "mtp", "--json")
    assert refused.status == 2
    beside = "--experts", tmp_path / "b.vindex3", "--logit-dump", tmp_path / "pieces.npy"
    cli("exec", tmp_path / "a.vindex3", *TOKENS, "--component", "mtp", *beside).ok()
    assert np.load(tmp_path / "whole.npy").tobytes() == np.load(tmp_path / "pieces.npy").tobytes()
    # a shallower model has no head, and every preset is a container
    cli("slice", made, "-o", tmp_path / "one.vindex3", "--draft-depth", "1").ok()
    assert [c["id"] for c in cli("show", tmp_path / "one.vindex3", "--json").ok().json["components"]
            ] == ["target"]  # fmt: skip
    assert not (tmp_path / "one.vindex3/routed/mtp.layer_000.lyrw").exists()
    for preset in ("client", "server", "browse", "router", "expert-server", "all"):
        cli("slice", made, "-o", tmp_path / f"{preset}.vindex3", "--preset", preset).ok()
        cli("verify", tmp_path / f"{preset}.vindex3").ok()


def test_a_dense_head_of_a_family_with_experts(tmp_path: Path, cli: Run) -> None:
    config, tensors = recorded("qwen3_next")
    dense = {key: value for key, value in config.items() if key != "num_experts"}
    source = write_safetensors_dir(tmp_path / "c", config, {**tensors, **draft_tensors(dense)})
    cli("extract", source, "-o", tmp_path / "m.vindex3").ok()
    assert cli("show", tmp_path / "m.vindex3", "--json").ok().json["banks"] == []
    cli("exec", tmp_path / "m.vindex3", *TOKENS, "--component", "mtp").ok()


@pytest.mark.parametrize("name", sorted(LEFT))
def test_draft_layers_of_other_families_are_left_and_listed(
    tmp_path: Path, cli: Run, name: str
) -> None:
    """They are no component; the trunk is what it is without them."""
    config, tensors = recorded(name)
    extra = {tensor: np.ones((2, 2), np.float32) for tensor in LEFT[name]}
    config = changed(config, {"num_nextn_predict_layers": 1})
    plain = write_safetensors_dir(tmp_path / "plain", config, tensors)
    source = write_safetensors_dir(tmp_path / "m", config, {**tensors, **extra})
    planned = cli("vindex3", "plan", source, "--json").ok().json
    assert set(planned["left"]) == set(extra)
    assert any("left behind" in note for note in planned["notes"])
    assert [component["id"] for component in planned["components"]] == ["target"]
    dumps = []
    for at in (plain, source):
        made = tmp_path / f"{at.name}.vindex3"
        cli("extract", at, "-o", made).ok()
        cli("exec", made, *TOKENS, "--logit-dump", tmp_path / f"{at.name}.npy").ok()
        dumps.append(np.load(tmp_path / f"{at.name}.npy").tobytes())
    assert dumps[0] == dumps[1]
    assert cli("exec", made, *TOKENS, "--component", "mtp").status == 2
