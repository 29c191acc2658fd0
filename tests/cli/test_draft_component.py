"""A draft head in a checkpoint, from plan to reconstruction; only drafting hangs on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tests.builders.containers import read_json
from tests.builders.hybrids import Tensors, changed, draft_tensors, recorded
from tests.builders.safetensors import write_safetensors_dir
from tests.cli.conftest import Run

TOKENS = ("--tokens", "3,1,4,1,5,9,2,6")
GONE = "mtp.layers.0.mlp.up_proj.weight"
# Families whose draft layers have experts of their own, and how a file names one of their tensors.
LEFT = {
    "qwen3_next": ("mtp.fc.weight",),
    "qwen3_5_moe": ("mtp.fc.weight",),
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


@pytest.mark.parametrize("name", sorted(LEFT))
def test_draft_layers_with_experts_are_left_and_listed(tmp_path: Path, cli: Run, name: str) -> None:
    """They are no component; the trunk is what it is without them."""
    config, tensors = recorded(name)
    extra = {tensor: np.ones((2, 2), np.float32) for tensor in LEFT[name]}
    config = changed(
        config, {"num_nextn_predict_layers": 1} if "v3" in name or "glm" in name else {}
    )
    plain = write_safetensors_dir(tmp_path / "plain", config, tensors)
    source = write_safetensors_dir(tmp_path / "m", config, {**tensors, **extra})
    planned = cli("vindex3", "plan", source, "--json").ok().json
    assert set(planned["left"]) == set(extra)
    assert [component["id"] for component in planned["components"]] == ["target"]
    dumps = []
    for at in (plain, source):
        made = tmp_path / f"{at.name}.vindex3"
        cli("extract", at, "-o", made).ok()
        cli("exec", made, *TOKENS, "--logit-dump", tmp_path / f"{at.name}.npy").ok()
        dumps.append(np.load(tmp_path / f"{at.name}.npy").tobytes())
    assert dumps[0] == dumps[1]
    assert cli("exec", made, *TOKENS, "--component", "mtp").status == 2
