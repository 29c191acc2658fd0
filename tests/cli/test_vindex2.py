"""The older generation at the command line: extracted, shown, verified, run, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.containers import flip_byte
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def vindex(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from larql.cli.main import main

    at = tmp_path_factory.mktemp("v2") / "llama.vindex"
    source = str(models / "llama")
    assert main(["extract", source, "-o", str(at), "--generation", "v2", "--level", "all"]) == 0
    return at


@pytest.fixture
def copy(vindex: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(vindex, tmp_path / "c"))


def test_extract_says_what_it_made(cli: Run, models: Path, tmp_path: Path) -> None:
    made = cli("extract", models / "llama.gguf", "-o", tmp_path / "v", "--generation", "v2",
               "--level", "browse", "--json").ok()  # fmt: skip
    index = json.loads((tmp_path / "v" / "index.json").read_text())
    assert (index["version"], index["extract_level"], index["dtype"]) == (2, "browse", "f32")
    files = {p.name for p in (tmp_path / "v").iterdir()}
    assert {"gate_vectors.bin", "embeddings.bin", "down_meta.bin", "tokenizer.json"} <= files
    assert "attn_weights.bin" not in files
    assert made.json["bytes"] == sum(p.stat().st_size for p in (tmp_path / "v").iterdir())
    shown = cli("show", tmp_path / "v", "--json").ok().json
    assert shown["fingerprint"] == made.json["fingerprint"]
    assert shown["absent_operands"] > 0


def test_the_default_level_is_inference(cli: Run, models: Path, tmp_path: Path) -> None:
    cli("extract", models / "gemma", "-o", tmp_path / "v", "--generation", "v2",
        "--ffn-layout", "per_layer").ok()  # fmt: skip
    shown = cli("show", tmp_path / "v", "--json").ok().json
    assert (shown["level"], shown["ffn_layout"]) == ("inference", "per_layer")
    assert cli("run", tmp_path / "v", "--help").status == 0
    cli("exec", tmp_path / "v", "--tokens", "1,2", "-n", "2").ok()


def test_show_and_verify(cli: Run, vindex: Path) -> None:
    text = cli("show", vindex).ok().out
    for line in ("generation       VINDEX2 (schema 2)", "level            all", "gate_vectors.bin"):
        assert line in text
    assert "have the recorded sizes and hashes" in cli("verify", vindex).ok().out
    assert cli("verify", vindex, "--json").ok().json["ok"]


def test_verify_names_what_is_damaged_and_show_still_describes_it(cli: Run, copy: Path) -> None:
    flip_byte(copy / "norms.bin")
    (copy / "up_weights.bin").unlink()
    answer = cli("verify", copy)
    assert answer.status == 1
    assert [line.split(":")[0] for line in answer.out.splitlines()] == [
        "norms.bin",
        "up_weights.bin",
    ]
    assert cli("verify", copy).out == answer.out
    assert "VINDEX2" in cli("show", copy).ok().out
    assert "norms.bin" in cli("exec", copy, "--tokens", "1").problem
    (copy / "weight_manifest.json").write_text("{")
    assert "VINDEX2" in cli("show", copy).ok().out
    assert "weight_manifest.json" in cli("verify", copy).out
    assert "weight_manifest.json" in cli("exec", copy, "--tokens", "1").problem
    (copy / "index.json").write_text("{")
    assert cli("verify", copy).out.startswith("index.json: ")


def test_what_executes_gives_the_bits_of_the_other_generation(
    cli: Run, vindex: Path, llama: Path, tmp_path: Path
) -> None:
    def payload(model: Path, name: str) -> str:
        dump = tmp_path / name
        made = cli("exec", model, "--tokens", "1,2,3", "--json", "--logit-dump", dump).ok()
        return str(made.json["payload_sha256"])

    assert payload(vindex, "a.npy") == payload(llama, "b.npy")
    same = cli("run", vindex, "the", "--generate", "4").ok().out
    assert same == cli("run", llama, "the", "--generate", "4").ok().out
    sidecar = json.loads((tmp_path / "a.npy.json").read_text())
    assert sidecar["container"]["fingerprint"] == cli("show", vindex, "--json").json["fingerprint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("observe", "--tokens", "1,2"),
        ("tokenize", "the"),
        ("perplexity", "{text}", "--window", "8", "--stride", "4"),
        ("vindex3 ops",),
        ("publish", "owner/name", "--dry-run"),
        ("vindex3 parity", "--tokens", "1,2"),
        ("vindex3 ladder", "--tokens", "1,2"),
        ("vindex3 accept", "--tokens", "1,2", "--draft", "depth:1"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_that_execute_take_it(
    cli: Run, vindex: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "text.txt").write_text("the and in er on an " * 8)
    command, *rest = (part.format(text=tmp_path / "text.txt") for part in arguments)
    cli(*command.split(), vindex, *rest).ok()


@pytest.mark.parametrize(
    "arguments",
    [
        ("represent", "-o", "{to}", "--pack"),
        ("reconstruct", "-o", "{to}"),
        ("vindex3 capability",),
        ("verify", "--source", "{source}"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_only_the_other_generation_has_is_refused_by_name(
    cli: Run, vindex: Path, models: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    places = {"to": tmp_path / "out", "source": models / "llama"}
    command, *rest = (part.format(**places) for part in arguments)
    answer = cli(*command.split(), vindex, *rest)
    assert answer.status == 2
    assert "is of generation VINDEX2" in answer.problem
    assert "works on VINDEX3 alone; extract the checkpoint into one" in answer.problem
    assert not (tmp_path / "out").exists()
    plan = cli("vindex3", "plan", vindex)
    assert plan.status == 2
    assert "is a container already" in plan.problem


def test_experts_elsewhere_are_a_matter_of_the_other_generation(cli: Run, vindex: Path) -> None:
    answer = cli("exec", vindex, "--tokens", "1", "--experts", vindex)
    assert "requires the VINDEX2 loader" in answer.problem
