"""``larql show``, ``larql verify`` and ``larql vindex3 ops`` on whole and damaged containers."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from larql.format.container import Container
from tests.builders.containers import (
    copy_container,
    edit_graph,
    edit_index,
    file_bytes,
    flip_byte,
    make_container,
)
from tests.builders.models import GemmaSpec, LlamaSpec, write_gemma_safetensors, write_llama_gguf
from tests.builders.shards import cut_bank
from tests.cli.conftest import Run

SEGMENT = "segments/target.layer.001.safetensors"


@pytest.fixture
def damaged(llama: Path, tmp_path: Path) -> Path:
    """A copy of the container, to be damaged."""
    return copy_container(llama, tmp_path / "damaged.vindex3")


# show

KEYS = [
    "path", "model", "family", "licence", "generation", "schema", "fingerprint", "source",
    "authority", "fidelity", "hidden_size", "num_layers", "parameters", "bits_per_weight",
    "components", "banks", "encodings", "end_of_text_ids", "profiles", "variants", "files", "notes",
]  # fmt: skip


def test_show_json(llama: Path, cli: Run) -> None:
    answer = cli("show", llama, "--json").ok()
    report = answer.json
    assert list(report) == KEYS
    assert report["fingerprint"] == hashlib.sha256((llama / "index.json").read_bytes()).hexdigest()
    assert (report["generation"], report["schema"]) == ("VINDEX3", 3)
    assert (report["num_layers"], report["hidden_size"]) == (3, 64)
    assert report["bits_per_weight"] == 32.0
    (component,) = report["components"]
    assert [layer["index"] for layer in component["layers"]] == [0, 1, 2]
    assert report["end_of_text_ids"] == [0, 2]
    (share,) = report["encodings"]
    assert share == {
        "encoding": "f32", "tensors": 30, "elements": report["parameters"],
        "nbytes": 4 * report["parameters"],
    }  # fmt: skip
    assert answer.err == ""


def test_show_counts_what_is_stored(tmp_path: Path, cli: Run) -> None:
    """A file of one quantisation holds several encodings; bits per weight are of all of them."""
    spec = LlamaSpec(gguf_type="q4_0", hidden=64, ffn=128, vocab=320, tokenizer=True)
    container = make_container(write_llama_gguf(tmp_path / "m.gguf", spec), tmp_path / "c").path
    report = cli("show", container, "--json").ok().json
    shares = {share["encoding"]: share for share in report["encodings"]}
    assert shares.keys() == {"q4_0", "f32"}
    stored = sum(share["nbytes"] for share in shares.values())
    assert report["bits_per_weight"] == pytest.approx(8 * stored / report["parameters"])
    assert 4.5 < report["bits_per_weight"] < 5
    assert report["licence"] == "apache-2.0"
    text = cli("show", container).ok().out
    assert re.search(r"^licence +apache-2\.0$", text, re.MULTILINE)
    assert re.search(rf"^bits per weight +{report['bits_per_weight']:.3f}$", text, re.MULTILINE)
    assert re.search(r"^q4_0 +16 +[\d,]+ +99\.\d\d %", text, re.MULTILINE)


def test_show_for_people(models: Path, cli: Run) -> None:
    text = cli("show", models / "gemma.vindex3").ok().out
    assert max(map(len, text.splitlines())) <= 100
    assert re.search(r"^licence +not stated by the source$", text, re.MULTILINE)
    assert re.search(r"^end of text +2$", text, re.MULTILINE)
    assert re.search(r"^0:5 +softmax 4/1 × 32, window 4, rope θ 10000 +gelu_tanh 128$", text, re.M)
    assert re.search(r"^5:6 +softmax 4/1 × 32, full, rope θ 1e\+06 +gelu_tanh 128$", text, re.M)
    assert re.search(r"^segments/ \(8 files\) +[\d,]+$", text, re.MULTILINE)
    assert "\nwarning: no tokenizer is carried" in text


@pytest.mark.parametrize("gone", [SEGMENT, "segments", "tokenizer.json"])
def test_show_needs_no_tensor(gone: str, llama: Path, damaged: Path, cli: Run) -> None:
    path = damaged / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    answer = cli("show", damaged).ok()
    assert answer.out == cli("show", llama).ok().out
    assert answer.err == ""


def test_show_without_a_graph_shows_the_rest(damaged: Path, cli: Run) -> None:
    (damaged / "system_graph.json").write_text("{")
    answer = cli("show", damaged).ok()
    assert answer.err.startswith("larql: warning: the layers cannot be shown: ")
    assert "system_graph.json" in answer.err
    assert "encoding" in answer.out
    assert cli("show", damaged, "--json").ok().json["components"] == []
    (damaged / "system_graph.json").unlink()
    assert "system_graph.json" in cli("show", damaged).ok().err


@pytest.mark.parametrize("command", ["show", "verify", "exec", "run", "tokenize", "perplexity"])
def test_what_is_no_model(command: str, tmp_path: Path, cli: Run) -> None:
    more = {"exec": ["--tokens", "1"], "run": ["a"], "tokenize": ["a"], "perplexity": ["-"]}
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "index.json").write_text('{"name": "a web page"}')
    for name, says in (("absent", "no such file or directory"), ("foreign", "is no model")):
        answer = cli(command, tmp_path / name, *more.get(command, []))
        assert answer.status == 2
        assert answer.problem.startswith(f"{tmp_path / name}: ")
        assert says in answer.problem


# verify


def test_a_whole_container(llama: Path, models: Path, cli: Run) -> None:
    answer = cli("verify", llama).ok()
    assert answer.err == ""
    fingerprint = Container(llama).fingerprint
    assert answer.out.splitlines() == [
        "11 files have the recorded sizes and hashes",
        "30 operands are present and will bind",
        f"fingerprint {fingerprint}",
    ]
    report = cli("verify", llama, "--source", models / "llama", "--json").ok().json
    assert report == {
        "container": str(llama),
        "fingerprint": fingerprint,
        "files": 11,
        "operands": 30,
        "source": str(models / "llama"),
        "ok": True,
        "defects": [],
        "binds": {"whole": list(Container(llama).operands), "in_part": [], "elsewhere": []},
    }


@pytest.mark.parametrize(
    "name",
    [
        SEGMENT,
        "segments/target.embedding.safetensors",
        "system_graph.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ],
)
@pytest.mark.parametrize("offset", [0, 11, -1])
def test_one_flipped_byte_is_found_and_the_file_named(
    name: str, offset: int, damaged: Path, cli: Run
) -> None:
    flip_byte(damaged / name, offset)
    answer = cli("verify", damaged)
    assert answer.status == 1
    lines = answer.out.splitlines()
    assert any(line.startswith(f"{name}: sha256 is ") for line in lines)
    assert "defect" in answer.problem
    document = cli("verify", damaged, "--json").json
    assert document["ok"] is False
    assert name in {defect["where"] for defect in document["defects"]}
    # What no hash of the damaged file bears out is not vouched for.
    assert "will bind" not in answer.out


def test_a_missing_file_is_named(damaged: Path, cli: Run) -> None:
    for name in (SEGMENT, "tokenizer.json", "system_graph.json"):
        (damaged / name).unlink()
        answer = cli("verify", damaged)
        assert answer.status == 1
        assert f"{name}: no such file" in answer.out
    (damaged / SEGMENT).mkdir()
    assert f"{SEGMENT}: is not a regular file" in cli("verify", damaged).out


def test_a_damaged_index_is_found(llama: Path, damaged: Path, cli: Run) -> None:
    """Only what merely describes can change unseen, and then the fingerprint is another."""
    data = (llama / "index.json").read_bytes()
    fingerprint = Container(llama).fingerprint
    for offset in range(0, len(data), len(data) // 60):
        (damaged / "index.json").write_bytes(data)
        flip_byte(damaged / "index.json", offset)
        answer = cli("verify", damaged)
        if answer.status == 0:
            assert fingerprint not in answer.out
        elif answer.status == 2:
            assert "index.json" in answer.problem
        else:
            assert answer.status == 1
            assert answer.problem
            assert answer.out.count("\n") >= 1


def test_an_index_that_cannot_be_read_is_a_defect(damaged: Path, cli: Run) -> None:
    (damaged / "index.json").write_text("{")
    answer = cli("verify", damaged)
    assert answer.status == 1
    assert "index.json" in answer.out
    document = cli("verify", damaged, "--json").json
    assert (document["ok"], document["defects"][0]["where"]) == (False, "index.json")
    # Without segments it may be anybody's index.json.
    shutil.rmtree(damaged / "segments")
    assert cli("verify", damaged).status == 2


def test_a_container_of_another_schema_is_refused(damaged: Path, cli: Run) -> None:
    edit_index(damaged, lambda index: index.update(version=99))
    answer = cli("verify", damaged)
    assert answer.status == 2
    assert "index.json" in answer.problem


def test_ten_runs_say_the_same(damaged: Path, cli: Run) -> None:
    flip_byte(damaged / SEGMENT)
    flip_byte(damaged / "tokenizer.json", 40)
    (damaged / "segments" / "target.layer.000.safetensors").unlink()
    edit_graph(damaged, lambda graph: graph["components"][0].update(hidden_size=65), vouch=False)
    found = {(a.status, a.out, a.err) for a in (cli("verify", damaged) for _ in range(10))}
    assert len(found) == 1


def test_what_will_not_bind_is_found_without_running(damaged: Path, cli: Run) -> None:
    def drop(index: object) -> None:
        assert isinstance(index, dict)
        del index["representations"]["target.layer.001/ffn.up.weight"]
        objects = index["objects"]["target.layer.001"]["representations"]
        objects.remove("target.layer.001/ffn.up.weight")

    edit_index(damaged, drop)
    answer = cli("verify", damaged)
    assert answer.status == 1
    assert "operand target.layer.001/ffn.up.weight of ffn.up is not in the container" in answer.out
    answer = cli("exec", damaged, "--tokens", "1")
    assert answer.status == 2
    assert "target.layer.001/ffn.up.weight" in answer.problem


def test_another_source_is_not_the_source(models: Path, tmp_path: Path, cli: Run) -> None:
    llama = models / "llama.vindex3"
    other = write_llama_gguf(tmp_path / "other.gguf", LlamaSpec(layers=3, seed=1, tokenizer=True))
    for source, says in (
        (other, "target.embedding"),
        (models / "gemma", "system_graph.json"),
        (models / "llama.gguf", "is recorded as"),
    ):
        answer = cli("verify", llama, "--source", source)
        assert answer.status == 1, source
        assert says in answer.out
        assert "defects found" in answer.problem
    answer = cli("verify", llama, "--source", llama)
    assert answer.status == 2
    assert "--source takes a checkpoint" in answer.problem
    answer = cli("verify", llama, "--source", tmp_path / "absent")
    assert answer.status == 2
    assert "absent: no such file" in answer.problem


def test_every_source_verifies_against_its_container(models: Path, cli: Run) -> None:
    for name in ("llama", "gemma", "llama.gguf"):
        answer = cli("verify", models / f"{name}.vindex3", "--source", models / name).ok()
        assert "the source compiles to this graph and holds these bytes" in answer.out


def test_a_recoded_container_verifies_against_its_source(tmp_path: Path, cli: Run) -> None:
    source = write_gemma_safetensors(tmp_path / "m", GemmaSpec(layers=1, pattern=1))
    made = tmp_path / "c.vindex3"
    cli("extract", source, "-o", made, "--quant", "q8_0").ok()
    cli("verify", made, "--source", source).ok()
    flip_byte(made / "segments" / "target.layer.000.safetensors")
    answer = cli("verify", made, "--source", source)
    assert answer.status == 1
    assert answer.out.count("target.layer.000.safetensors") >= 2


# ops


def test_ops_lists_the_plan(llama: Path, cli: Run) -> None:
    answer = cli("vindex3", "ops", llama).ok()
    lines = answer.out.splitlines()
    assert lines[0].startswith("embed: embed  256 rows of 64")
    assert lines[-1] == "operands close"
    assert max(map(len, lines)) <= 100
    names = [line.split()[0] for line in lines if line.startswith("    ")]
    assert sorted(set(names)) == sorted(Container(llama).operands)
    report = cli("vindex3", "ops", llama, "--draft-depth", "1", "--json").ok().json
    assert report["executed_layers"] == [0]
    assert {op["layer"] for op in report["operations"]} == {None, 0}
    assert report["closes"] is True


def test_ops_says_what_does_not_close(damaged: Path, cli: Run) -> None:
    name = "target.layer.001/attention.q.weight"

    def drop(index: object) -> None:
        assert isinstance(index, dict)
        del index["representations"][name]
        index["objects"]["target.layer.001"]["representations"].remove(name)

    edit_index(damaged, drop)
    answer = cli("vindex3", "ops", damaged)
    assert answer.status == 1
    assert f"    {name}  64 × 64  missing" in answer.out
    assert "1 operand does not close" in answer.problem
    document = cli("vindex3", "ops", damaged, "--json").json
    assert document["closes"] is False
    # A draft that ends before it runs, and closes.
    cli("vindex3", "ops", damaged, "--draft-depth", "1").ok()
    assert cli("vindex3", "ops", damaged, "--draft-depth", "0").status == 2
    assert cli("vindex3", "ops", damaged, "--component", "x").status == 2


def test_nothing_is_written_by_looking(llama: Path, cli: Run) -> None:
    before = file_bytes(llama)
    for arguments in (["show"], ["verify"], ["vindex3", "ops"]):
        cli(*arguments, llama).ok()
    assert file_bytes(llama) == before


def test_banks_of_experts_are_shown_and_their_defects_placed(tmp_path: Path, cli: Run) -> None:
    checkpoint = Path(__file__).parents[1] / "oracles" / "mixtral" / "checkpoint"
    container = make_container(checkpoint, tmp_path / "c").path
    assert "0:2     routed  gated-mlp-v1  2 of 4   binds    layer_000 to layer_001\n" in (
        cli("show", container).ok().out
    )
    first, _ = cli("show", container, "--json").ok().json["banks"]
    assert (first["programme"], first["storage"], first["binds"]) == (
        "gated-mlp-v1", "layer_000", True,
    )  # fmt: skip
    cut_bank(container)
    (container / "routed/layer_001.seg01.lyrw").unlink()
    out = cli("show", container).ok().out
    assert "binding_defect: target.layer.001/experts.gate, segment 1 [2:4]" in out
    answer = cli("verify", container, "--json")
    assert answer.status == 1
    (defect,) = answer.json["defects"]
    assert defect["where"] == "routed/layer_001.seg01.lyrw"
    place = {"layer": 1, "bank": "routed", "role": None, "segment": 1, "component": None}
    assert defect["place"] == place
    (container / "moe_manifest.json").write_text("{}")
    answer = cli("show", container).ok()
    assert "the banks of experts cannot be shown: moe_manifest.json: " in answer.err
    assert [d["where"] for d in cli("verify", container, "--json").json["defects"]] == [
        "moe_manifest.json", "routed/layer_001.seg01.lyrw", "moe_manifest.json",
    ]  # fmt: skip
