"""``larql exec``: what goes in, what is reported, what is refused and why."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import larql
from larql.format.container import Container
from larql.format.segment import Segment
from tests.builders.containers import copy_container, make_container
from tests.builders.models import LlamaSpec, write_llama_safetensors
from tests.cli.conftest import LLAMA, Run
from tests.oracles.recorded import OWN

IDS = "1,2,3,5,8,13"
REFERENCE = ("--backend", "reference")


def nan_container(directory: Path) -> Path:
    """A container whose logits are not numbers."""
    norm = np.full(64, np.nan, np.float32)
    source = write_llama_safetensors(
        directory / "nan", LlamaSpec(tokenizer=True), extra={"model.norm.weight": norm}
    )
    return make_container(source, directory / "nan.vindex3").path


# What goes in


@pytest.mark.parametrize(
    ("arguments", "stdin", "ids"),
    [
        (["--tokens", "1,2,3"], "", [1, 2, 3]),
        (["--tokens", " 1 2,\n3, "], "", [1, 2, 3]),
        (["--tokens", "-"], "1, 2\n3\n", [1, 2, 3]),
        (["--tokens", "text:the"], "", [0, 119, 247]),
        (["--tokens", "text:the", "--no-bos"], "", [119, 247]),
        (["--tokens-file", "{ids}"], "", [7, 8, 9]),
        (["--tokens-file", "-"], "4 5", [4, 5]),
        (["--prompt", "the"], "", [0, 119, 247]),
        (["--prompt", "the", "--no-bos"], "", [119, 247]),
        (["--prompt", "<|endoftext|>the"], "", [0, 119, 247]),
        (["--prompt", ""], "", [0]),
        (["--prompt", "-"], "the", [0, 119, 247]),
        (["--prompt", "-"], "the\n", [0, 119, 247, 13]),
        (["--prompt", "text:the"], "", [0, 119, 104, 123, 119, 61, 119, 247]),
        (["--prompt-file", "{text}"], "", [0, 119, 247]),
        (["--prompt-file", "-"], "the", [0, 119, 247]),
    ],
)
def test_every_form_of_input(
    arguments: list[str], stdin: str, ids: list[int], llama: Path, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / "ids").write_text("7,8\n9\n")
    (tmp_path / "text").write_text("the")
    places = {"ids": tmp_path / "ids", "text": tmp_path / "text"}
    arguments = [text.format(**places) for text in arguments]
    answer = cli("exec", llama, *arguments, *REFERENCE, "--json", stdin=stdin).ok()
    assert answer.json["provenance"]["tokens"] == ids
    assert answer.err == ""


def test_ids_that_only_the_embedding_has_are_read_and_never_asked_for(
    tmp_path: Path, cli: Run
) -> None:
    """93 logits, and 96 rows in the embedding."""
    path = make_container(OWN / "inkling-published" / "checkpoint", tmp_path / "c").path
    for command in ("exec", "observe"):
        cli(command, path, "--tokens", "3,95", *REFERENCE, "--json").ok()
    assert larql.open(path, backend="reference").observe([3, 95]).tokens.tolist() == [3, 95]
    answer = cli("exec", path, "--tokens", "3,96", *REFERENCE)
    assert "token 96 at position 1 is outside the vocabulary of 96" in answer.problem
    answer = cli("observe", path, "--tokens", "3", "--lens-tokens", "93", *REFERENCE)
    assert "--lens-tokens: token 93 at position 0 is outside the vocabulary of 93" in answer.problem


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "expected one of --tokens, --tokens-file, --prompt and --prompt-file, found none"),
        (["--tokens", "1", "--prompt", "a"], "found --tokens and --prompt"),
        (["--tokens-file", "x", "--prompt-file", "y"], "found --tokens-file and --prompt-file"),
        (["--tokens", ""], "no token id given"),
        (["--tokens", "-"], "no token id given"),
        (["--tokens", "-1,2"], "entry 0 is '-1'; token ids are whole numbers of at least 0"),
        (["--tokens", "1,x"], "entry 1 is 'x'"),
        (["--tokens", "1.5"], "entry 0 is '1.5'"),
        (["--tokens", "²"], "entry 0 is '²'"),
        (
            ["--tokens", "1,256"],
            "--tokens: token 256 at position 1 is outside",
        ),
        (["--tokens", "9" * 30], "whole numbers"),
        (["--tokens-file", "{tmp}/no"], "--tokens-file {tmp}/no: cannot be read: No such file"),
        (["--tokens-file", "{tmp}"], "cannot be read: Is a directory"),
        (["--prompt-file", "{tmp}/bad"], "--prompt-file {tmp}/bad: is not UTF-8 at byte 2"),
        (["--tokens-file", "{tmp}/bad"], "--tokens-file {tmp}/bad: is not UTF-8 at byte 2"),
        (["--prompt", "\udcff"], "half a surrogate pair"),
        (["--prompt", "", "--no-bos"], "the text is empty"),
        (["--tokens", "1", "--component", "mtp"], "no component 'mtp'; it has target"),
        (["--tokens", "1", "--draft-depth", "0"], "a draft executes at least layer 0"),
        (["--tokens", "1", "--draft-depth", "-1"], "a draft executes at least layer 0"),
        (["--tokens", "1", "--draft-depth", "4"], "the component has only 3 layers"),
        (
            ["--tokens", "1", "--activations", "q8", "--backend", "reference"],
            "--activations q8: the reference backend executes f32",
        ),
        (["--tokens", "1", "--kv", "q8"], "--kv: 'q8': expected one of f32, f16"),
        (["--tokens", "1,2,3", "--context", "2"], "--context 2: the run takes 3 positions"),
        (["--tokens", "1,2", "-n", "4", "--context", "4"], "the run takes 5 positions"),
        (["--tokens", "1", "-n", "1" + "0" * 15], "expected at most 16777216"),
        (["--tokens", "1", "--context", "1" + "0" * 15], "expected at most 16777216"),
        (["--tokens", "1", "--resume"], "--sites belong to --dump-layers"),
        (["--tokens", "1", "--dump-layers", "{tmp}/d", "-n", "1"], "does not go with"),
        (["--tokens", "1", "--dump-layers", "d", "--logit-dump", "a.npy"], "does not go with"),
        (["--tokens", "1", "--logit-dump", "{tmp}/a.txt"], "ends in .npy, .f32, .safetensors"),
        (["--tokens", "1", "--logit-dump", "{tmp}/no/a.npy"], "the directory {tmp}/no does not"),
    ],
)
def test_what_is_refused(
    arguments: list[str], says: str, llama: Path, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / "bad").write_bytes(b"1 \xff")
    before = sorted(tmp_path.rglob("*"))
    arguments = [text.format(tmp=tmp_path) for text in arguments]
    answer = cli("exec", llama, *arguments)
    assert answer.status == 2
    assert says.format(tmp=tmp_path) in answer.problem
    assert answer.out == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("option", ["--tokens", "--tokens-file", "--prompt", "--prompt-file"])
def test_a_closed_standard_input(option: str, llama: Path, cli: Run) -> None:
    answer = cli("exec", llama, option, "-", stdin=None)
    assert answer.problem == f"{option} -: standard input is closed"


def test_standard_input_that_is_no_text(llama: Path, cli: Run) -> None:
    answer = cli("exec", llama, "--prompt", "-", stdin=b"a\xffb")
    assert answer.problem == "--prompt -: is not UTF-8 at byte 1"


def test_text_needs_a_tokenizer_and_ids_do_not(gemma: Path, cli: Run) -> None:
    answer = cli("exec", gemma, "--prompt", "the")
    assert "carries no tokenizer" in answer.problem
    assert "--tokens" in answer.problem
    cli("exec", gemma, "--tokens", "1", *REFERENCE).ok()


def test_a_cap_on_formats_that_is_none(
    llama: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARQL_CPU_MAX_FORMAT", "f8")
    answer = cli("exec", llama, "--tokens", "1")
    assert answer.problem == (
        "LARQL_CPU_MAX_FORMAT is 'f8', expected one of as-stored, q8, f16, f32"
    )
    monkeypatch.setenv("LARQL_CPU_MAX_FORMAT", "f32")
    provenance = cli("exec", llama, "--tokens", "1", *REFERENCE, "--json").ok().json["provenance"]
    assert provenance["max_format"] == "f32"


def test_what_cannot_run_is_refused_before_the_input_is_read(llama: Path, cli: Run) -> None:
    answer = cli("exec", llama, "--tokens", "-", "--draft-depth", "9", stdin=None)
    assert "only 3 layers" in answer.problem


# What comes out


def test_the_report(llama: Path, cli: Run) -> None:
    report = cli("exec", llama, "--prompt", "the", "--top-k", "3", "--json").ok().json
    assert list(report) == ["nan_logits", "top", "provenance"]
    assert report["nan_logits"] == 0
    logits = [entry["logit"] for entry in report["top"]]
    assert logits == sorted(logits, reverse=True)
    assert len(logits) == 3
    assert all(isinstance(entry["text"], str) for entry in report["top"])
    provenance = report["provenance"]
    assert provenance["container"]["fingerprint"] == Container(llama).fingerprint
    assert provenance["executed_layers"] == [0, 1, 2]
    assert provenance["draft_depth"] is None
    assert (provenance["backend"], provenance["activations"]) == ("production", "f32")
    assert provenance["operand_reads"] == 2 + 3 * 9 + 1
    assert provenance["context"] == 3


def test_the_report_for_people(llama: Path, cli: Run) -> None:
    answer = cli("exec", llama, "--prompt", "the", "-n", "3", *REFERENCE).ok()
    lines = answer.out.splitlines()
    names = [line.split("  ")[0] for line in lines if line]
    assert names[:6] == ["container", "backend", "numerics", "layers", "tokens", "operands"]
    assert "0,119,247" in lines[4]
    assert [line.split() for line in lines if line.startswith("token ")] == [
        ["token", "logit", "text"]
    ]
    assert names[-3:] == ["generated", "text", "ended"]


def test_long_lists_are_folded(llama: Path, cli: Run) -> None:
    ids = ",".join(["101"] * 100)
    text = cli("exec", llama, "--tokens", ids, "-n", "60", *REFERENCE).ok().out
    assert max(map(len, text.splitlines())) <= 100
    assert "101,… (100)" in text
    report = cli("exec", llama, "--tokens", ids, "-n", "60", *REFERENCE, "--json").ok().json
    block = text[text.index("\ngenerated") + 1 : text.index("\nended")]
    shown = "".join(line.removeprefix("generated").strip() for line in block.splitlines())
    assert shown == ",".join(map(str, report["generated"]))


def test_generation_goes_the_same_way_from_ids_and_from_text(llama: Path, cli: Run) -> None:
    """Neither the end ids nor anything else hangs on whether a tokenizer was loaded."""
    text = cli("exec", llama, "--prompt", "the", "-n", "12", "--json").ok().json
    ids = cli("exec", llama, "--tokens", "0,119,247", "-n", "12", "--json").ok().json
    for key in ("generated", "ended", "end_of_text_ids"):
        assert text[key] == ids[key]
    assert len(text["generated"]) == 12
    assert text["end_of_text_ids"] == [0, 2]
    assert isinstance(text["text"], str)
    assert "text" not in ids


def test_generation_ends_at_any_declared_id(models: Path, tmp_path: Path, cli: Run) -> None:
    """The last declared id is one that only the tokenizer's files name."""
    ids = "0,119,247"
    made = cli("exec", models / "llama.vindex3", "--tokens", ids, "-n", "6", "--json").ok().json
    third = made["generated"][2]
    assert third not in made["generated"][:2]
    for number, files in enumerate(
        (
            {"config.json": {"eos_token_id": third}},
            {"generation_config.json": {"eos_token_id": [1, third]}},
            {"tokenizer_config.json": {"eos_token": "<new end>"}, "tokenizer.json": third},
        )
    ):
        source = write_llama_safetensors(tmp_path / str(number), LLAMA)
        for name, change in files.items():
            document = json.loads((source / name).read_text())
            if isinstance(change, dict):
                document |= change
            else:
                vocab = document["model"]["vocab"]
                piece = next(piece for piece, i in vocab.items() if i == change)
                vocab["<new end>"] = vocab.pop(piece)
                token = {**document["added_tokens"][0], "id": change, "content": "<new end>"}
                document["added_tokens"].append(token)
                document["model"]["merges"] = []
            (source / name).write_text(json.dumps(document))
        container = make_container(source, tmp_path / f"{number}.vindex3")
        for given in (("--tokens", ids), ("--tokens", "text:<|endoftext|>", "--no-bos")):
            found = cli("exec", container.path, *given, "-n", "6", "--json").ok().json
            assert third in found["end_of_text_ids"], number
        found = cli("exec", container.path, "--tokens", ids, "-n", "6", "--json").ok().json
        assert found["generated"] == made["generated"][:3]
        assert found["ended"] is True
        shown = cli("show", container.path, "--json").ok().json
        assert third in shown["end_of_text_ids"]


def test_beyond_the_context_of_the_model_there_is_a_warning(tmp_path: Path, cli: Run) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(context=4, layers=1))
    container = make_container(source, tmp_path / "m.vindex3").path
    answer = cli("exec", container, "--tokens", "1,2,3,4", *REFERENCE).ok()
    assert answer.err == ""
    answer = cli("exec", container, "--tokens", "1,2,3,4,5", *REFERENCE).ok()
    assert answer.err == ("larql: warning: the run takes 5 positions; the model was made for 4\n")
    answer = cli("exec", container, "--tokens", "1,2,3", "-n", "3", *REFERENCE).ok()
    assert "takes 5 positions" in answer.err


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_logits_that_are_not_numbers(backend: str, tmp_path: Path, cli: Run) -> None:
    container = nan_container(tmp_path)
    dump = tmp_path / "a.f32"
    answer = cli(
        "exec", container, "--tokens", "1,2", "--backend", backend, "--logit-dump", dump, "--json"
    ).ok()
    assert answer.json["nan_logits"] == 512
    assert [entry["logit"] for entry in answer.json["top"]] == [None] * 5
    assert dump.read_bytes() == bytes.fromhex("0000c07f") * 512
    assert answer.err == "larql: warning: 512 of the logits are not numbers\n"
    answer = cli("exec", container, "--tokens", "1,2", "--backend", backend).ok()
    assert "nan" in answer.out
    for arguments in (["exec", "--tokens", "1"], ["run", "the"]):
        command, *rest = arguments
        answer = cli(command, container, *rest, "-n", "2", "--backend", backend, "--json")
        assert "is not a number; no token can be chosen" in answer.problem
        assert answer.json["error"]["kind"] == "UsageError"


def test_a_container_that_will_not_bind(llama: Path, tmp_path: Path, cli: Run) -> None:
    damaged = copy_container(llama, tmp_path / "d.vindex3")
    segment = damaged / "segments" / "target.layer.001.safetensors"
    segment.unlink()
    answer = cli("exec", damaged, "--tokens", "1", "--json")
    assert answer.status == 2
    assert "target.layer.001.safetensors: no such file" in answer.problem
    assert answer.json["error"]["refusal"] == "binding_defect"
    # A draft does not read what is behind it.
    cli("exec", damaged, "--tokens", "1", "--draft-depth", "1").ok()


def test_both_names_are_one_command(llama: Path, cli: Run) -> None:
    first = cli("exec", llama, "--tokens", IDS, *REFERENCE, "--json").ok().json
    second = cli("vindex3", "exec", llama, "--tokens", IDS, *REFERENCE, "--json").ok().json
    assert first["top"] == second["top"]


# What the machine spends


@pytest.mark.parametrize("command", ["exec", "run", "perplexity"])
def test_weights_brought_in_beforehand_change_no_bit(
    command: str, llama: Path, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text"
    text.write_text("the cat sat on the mat " * 4)
    inputs = {
        "exec": ("exec", llama, "--tokens", IDS, "-n", "3"),
        "run": ("run", llama, "the", "-n", "3"),
        "perplexity": ("perplexity", llama, text, "--window", "8"),
    }
    made: list[str] = []
    real = Segment.prefault

    def prefault(segment: Segment, tensor: str) -> None:
        made.append(tensor)
        real(segment, tensor)

    monkeypatch.setattr(Segment, "prefault", prefault)
    lazy = cli(*inputs[command], *REFERENCE, "--json").ok().json
    assert made == []
    told = cli(*inputs[command], *REFERENCE, "--json", "--prefault").ok().json
    assert len(made) == 3 * 9 + 2  # all operands but the embedding, which is not the head here
    provenance = [report.pop("provenance") for report in (lazy, told)]
    assert lazy == told
    assert provenance[0].keys() == provenance[1].keys()
    for said in provenance:
        assert 0 < said["resident_file_bytes"] < said["resident_bytes"]
        assert said["resident_bytes"] <= said["peak_resident_bytes"]


def test_what_is_occupied_is_shown_where_the_system_tells(
    llama: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = cli("exec", llama, "--tokens", IDS).ok().out.splitlines()
    assert any(re.fullmatch(r"resident +\S+ MB, \S+ MB of it mapped from files", s) for s in shown)
    monkeypatch.setattr("larql.runtime.run.resident", dict)
    assert "resident" not in cli("exec", llama, "--tokens", IDS).ok().out
