"""The verdict on a checkpoint: what is said, at what cost, and that nothing is written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.containers import read_json, write_json
from tests.builders.hub_server import HubServer, use_only
from tests.builders.safetensors import safetensors_bytes
from tests.cli.conftest import Run


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["llama", "llama.gguf", "gemma"])
def test_an_admissible_checkpoint(name: str, models: Path, fresh_cache: Path, cli: Run) -> None:
    before = tree(models)
    found = cli("vindex3", "plan", models / name, "--json").ok().json
    assert found["admissible"] is True
    assert found["reason"] is None
    assert found["unread"] == []
    assert set(found["keys"].values()) <= {"consumed", "irrelevant"}
    (component,) = found["components"]
    container = cli("show", models / f"{name}.vindex3", "--json").ok().json
    assert component["layers"] == container["num_layers"]
    assert component["hidden_size"] == container["hidden_size"]
    ops = cli("vindex3", "ops", models / f"{name}.vindex3", "--json").ok().json["operations"]
    assert component["operations"] == [
        {key: op[key] for key in ("layer", "site", "op", "detail")} for op in ops
    ]
    text = cli("vindex3", "plan", models / name).ok().out
    assert "admissible" in text
    assert "softmax_attention" in text
    assert "0:" in text
    assert tree(models) == before
    assert not (fresh_cache / "containers").exists()


def test_a_key_that_nobody_judges_blocks(models: Path, tmp_path: Path, cli: Run) -> None:
    source = tmp_path / "m"
    shutil.copytree(models / "llama", source)
    config = read_json(source / "config.json")
    write_json(source / "config.json", {**config, "depth_gate": 3, "nothing": None})
    answer = cli("vindex3", "plan", source, "--json")
    assert answer.status == 1
    assert answer.json["admissible"] is False
    assert "`depth_gate`" in answer.json["reason"]
    assert "inadmissible: " in answer.problem
    keys = answer.json["keys"]
    assert keys["depth_gate"] == "blocking"
    assert keys["nothing"] == "irrelevant"
    assert [key for key, verdict in keys.items() if verdict == "blocking"] == ["depth_gate"]
    assert answer.json["components"][0]["operations"]
    text = cli("vindex3", "plan", source)
    assert text.status == 1
    assert "depth_gate" in text.out
    assert "blocking" in text.out


def test_all_that_blocks_is_listed_at_once(models: Path, tmp_path: Path, cli: Run) -> None:
    """Keys of every kind of refusal, and tensors; judging goes on behind each of them."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    source = tmp_path / "m"
    shutil.copytree(models / "llama", source)
    config = read_json(source / "config.json")
    bad = {
        "hidden_act": "sine",
        "attention_dropout": 0.1,
        "depth_gate": 3,
        "mlp_bias": "false",
        "pretraining_tp": 4,
        "rms_norm_eps": -1.0,
        "dtype": "bfloat16",
        "torch_dtype": "float16",
        "rope_parameters": {"rope_type": "ntk", "rope_theta": 10.0, "alpha": 2.0},
    }
    config = {key: value for key, value in config.items() if not key.startswith("rope_")}
    write_json(source / "config.json", {**config, **bad})
    tensors = load_file(source / "model.safetensors")
    missing, wrong = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
    del tensors[missing]
    tensors[wrong] = np.ones(3, np.float32)
    tensors["model.layers.0.extra.weight"] = np.ones((2, 2), np.float32)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})

    answer = cli("vindex3", "plan", source, "--json")
    assert answer.status == 1
    found = answer.json
    expected = [
        "dtype", "hidden_act", "mlp_bias", "pretraining_tp", "rms_norm_eps",
        "rope_parameters.rope_type", "depth_gate", missing, wrong, "model.layers.0.extra.weight",
    ]  # fmt: skip
    assert sorted(problem["name"] for problem in found["problems"]) == sorted(expected)
    kinds = {problem["name"]: problem["kind"] for problem in found["problems"]}
    assert {name: kind for name, kind in kinds.items() if kind == "tensor"} == dict.fromkeys(
        (missing, wrong, "model.layers.0.extra.weight"), "tensor"
    )
    keys = found["keys"]
    assert set(keys) == {*config, *bad, *(f"rope_parameters.{k}" for k in bad["rope_parameters"])}
    assert set(keys.values()) == {"consumed", "irrelevant", "blocking"}
    blocking = {key for key, verdict in keys.items() if verdict == "blocking"}
    alpha = "rope_parameters.alpha"  # of a rope type that was refused
    assert blocking == {name for name in kinds if kinds[name] == "key"} | {"torch_dtype", alpha}
    assert keys["attention_dropout"] == "irrelevant"
    assert found["reason"] == found["problems"][0]["text"]
    assert found["assumed"] is None
    assert found["unread"] == ["model.layers.0.extra.weight"]
    assert len(found["components"][0]["operations"]) > 4

    text = cli("vindex3", "plan", source)
    assert text.status == 1
    for problem in found["problems"]:
        assert problem["text"] in text.out
    assert "(and 9 more)" in text.problem
    made = tmp_path / "made.vindex3"
    answer = cli("extract", source, "-o", made)
    assert answer.status == 2
    assert answer.problem.count("\n") == 0
    assert found["reason"] in answer.problem
    assert "(and 9 more problems: see larql vindex3 plan)" in answer.problem
    assert not made.exists()


def test_no_tensor_is_held_against_a_stand_in(models: Path, tmp_path: Path, cli: Run) -> None:
    source = tmp_path / "m"
    shutil.copytree(models / "llama", source)
    config = read_json(source / "config.json")
    del config["hidden_size"]
    write_json(source / "config.json", {**config, "depth_gate": 3, "hidden_act": "sine"})
    answer = cli("vindex3", "plan", source, "--json")
    assert answer.status == 1
    found = answer.json
    names = [problem["name"] for problem in found["problems"]]
    assert sorted(names) == ["depth_gate", "hidden_act", "hidden_size"]
    assert found["keys"]["hidden_size"] == "blocking"
    assert found["assumed"] == "hidden_size"
    assert found["unread"] == []
    assert "what follows from `hidden_size` is open" in cli("vindex3", "plan", source).out


def test_a_family_that_is_not_known(models: Path, tmp_path: Path, cli: Run) -> None:
    """Keys that mean the same everywhere are judged; nobody knows of the others."""
    source = tmp_path / "m"
    shutil.copytree(models / "llama", source)
    config = read_json(source / "config.json")
    write_json(source / "config.json", {**config, "model_type": "nobody"})
    found = cli("vindex3", "plan", source, "--json").json
    assert [problem["name"] for problem in found["problems"]] == ["model_type"]
    assert found["keys"]["architectures"] == "irrelevant"
    assert found["keys"]["model_type"] == found["keys"]["hidden_size"] == "blocking"
    assert set(found["keys"]) == set(config)


def test_a_tensor_that_nothing_reads(models: Path, tmp_path: Path, cli: Run) -> None:
    import numpy as np

    source = tmp_path / "m"
    shutil.copytree(models / "llama", source)
    extra = safetensors_bytes({"model.layers.0.extra.weight": np.ones((2, 2), np.float32)})
    (source / "model-00002-of-00002.safetensors").write_bytes(extra)
    (source / "model.safetensors").rename(source / "model-00001-of-00002.safetensors")
    answer = cli("vindex3", "plan", source, "--json")
    assert answer.status == 1
    assert answer.json["unread"] == ["model.layers.0.extra.weight"]
    assert "model.layers.0.extra.weight" in cli("vindex3", "plan", source).out


def test_bytes_in_an_unknown_form_are_inadmissible(models: Path, tmp_path: Path, cli: Run) -> None:
    source = tmp_path / "m"
    shutil.copytree(models / "llama", source)
    path = source / "model.safetensors"
    content = path.read_bytes()
    # F8 has half the bytes of a bf16 element: what matters is the name of the type.
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = next(n for n in header if n.endswith("q_proj.weight"))
    entry = header[name]
    entry["dtype"] = {"F32": "I32", "BF16": "I16", "F16": "I16"}[entry["dtype"]]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    answer = cli("vindex3", "plan", source, "--json")
    assert answer.status == 1
    assert name in answer.json["reason"]
    # It is told beside what else there is.
    config = read_json(source / "config.json")
    write_json(source / "config.json", {**config, "depth_gate": 3})
    found = cli("vindex3", "plan", source, "--json").json["problems"]
    assert [problem["name"] for problem in found] == ["depth_gate", name]
    assert found[1]["kind"] == "tensor"


def test_a_damaged_header_is_inadmissible(models: Path, tmp_path: Path, cli: Run) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes((models / "llama.gguf").read_bytes()[:300])
    answer = cli("vindex3", "plan", source, "--json")
    assert answer.status == 1
    assert answer.json["format"] is None
    assert answer.json["reason"]


def test_what_is_no_checkpoint_is_wrong_usage(models: Path, tmp_path: Path, cli: Run) -> None:
    for name in (models / "llama.vindex3", tmp_path / "nowhere"):
        answer = cli("vindex3", "plan", name, "--json")
        assert answer.status == 2
        assert answer.json["error"]["kind"] == "UsageError"
    assert "larql show" in cli("vindex3", "plan", models / "llama.vindex3").problem
    assert cli("vindex3", "plan").status == 2


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with HubServer() as server:
        use_only(server, tmp_path, monkeypatch)
        yield server


def sent(hub: HubServer) -> int:
    """How many bytes of weights were asked for."""
    total = 0
    for request in hub.asked("/cdn/", "GET"):
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        total += int(last) - int(first) + 1
    return total


def shards(models: Path) -> dict[str, bytes]:
    """Return the tiny model as two shards, each with a large tensor that a verdict leaves."""
    import numpy as np

    files = {name: data for name, data in tree(models / "llama").items() if "/" not in name}
    first = files.pop("model.safetensors")
    files["model-00001-of-00002.safetensors"] = first
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(1 << 20, np.float32)}
    files["model-00002-of-00002.safetensors"] = safetensors_bytes(buffer)
    return files


def test_a_model_on_a_hub_costs_its_headers(
    models: Path, hub: HubServer, fresh_cache: Path, tmp_path: Path, cli: Run
) -> None:
    hub.repo("o/m").commit(shards(models))
    answer = cli("vindex3", "plan", "hf://o/m", "--json").ok()
    assert answer.json["admissible"] is True
    assert answer.json["left"] == {
        "model.layers.0.self_attn.rotary_emb.inv_freq": "a derived buffer"
    }
    assert answer.json["bytes"] > 4 << 20
    assert answer.json["headers_fetched"] == sent(hub) < 1 << 20
    assert answer.json["revision"] in hub.repos["o/m"].commits
    # Only the first request goes to the hub with a token; nothing is left behind.
    assert not list(tmp_path.glob("larql-plan-*"))
    cached = [p.name for p in (tmp_path / "hub-cache").rglob("*") if p.is_file()]
    assert not [name for name in cached if name.endswith(".safetensors")]
    same = cli("vindex3", "plan", models / "llama", "--json").json
    assert answer.json["components"] == same["components"]
    assert answer.json["keys"] == same["keys"]


def test_a_long_header_takes_another_request(
    models: Path, hub: HubServer, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, cli: Run
) -> None:
    from larql.format.source import hub_headers

    monkeypatch.setattr(hub_headers, "_FIRST", 100)
    gguf = (models / "llama.gguf").read_bytes()
    hub.repo("o/m").commit(shards(models))
    hub.repo("o/g").commit({"model.gguf": gguf + bytes(0)})
    assert cli("vindex3", "plan", "hf://o/m", "--json").ok().json["admissible"]
    assert len(hub.asked("/cdn/", "GET")) == 4
    hub.requests.clear()
    found = cli("vindex3", "plan", "hf://o/g", "--json").ok().json
    assert found["format"] == "gguf"
    assert len(hub.asked("/cdn/", "GET")) > 1
    assert sent(hub) == found["headers_fetched"] <= len(gguf)
    local = cli("vindex3", "plan", models / "llama.gguf", "--json").json
    assert found["components"] == local["components"]
    # A hub without ranges answers the second request from the beginning, which is not what was
    # asked for.
    hub.ignore_ranges = True
    answer = cli("vindex3", "plan", "hf://o/m")
    assert answer.status == 2
    assert "serves no ranges" in answer.problem


def test_a_refusal_does_not_name_the_place_of_the_headers(
    models: Path, hub: HubServer, fresh_cache: Path, tmp_path: Path, cli: Run
) -> None:
    files = shards(models)
    config = json.loads(files["config.json"])
    files["config.json"] = json.dumps({**config, "depth_gate": 1}).encode()
    hub.repo("o/m").commit(files)
    answer = cli("vindex3", "plan", "hf://o/m", "--json")
    assert answer.status == 1
    assert answer.json["reason"].startswith("config.json: `depth_gate`")
    assert str(tmp_path) not in answer.out + answer.err
    hub.repo("o/g").commit({"model.gguf": (models / "llama.gguf").read_bytes()[:400]})
    del files["config.json"]
    hub.repo("o/n").commit(files)
    for name in ("o/g", "o/n"):
        answer = cli("vindex3", "plan", f"hf://{name}", "--json")
        assert answer.status == 1
        assert str(tmp_path) not in answer.out + answer.err


def test_a_hub_without_ranges_or_offline(
    models: Path,
    hub: HubServer,
    fresh_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Run,
) -> None:
    hub.repo("o/m").commit(shards(models))
    hub.ignore_ranges = True
    assert cli("vindex3", "plan", "hf://o/m", "--json").ok().json["admissible"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # The configuration alone is cached, which is no model.
    assert cli("vindex3", "plan", "hf://o/m").status == 2
    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub.ignore_ranges = False
    cli("pull", "hf://o/m").ok()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = cli("vindex3", "plan", "hf://o/m", "--json").ok().json
    assert found["admissible"]
    assert found["headers_fetched"] == 0
    assert os.environ["HF_HUB_OFFLINE"] == "1"
