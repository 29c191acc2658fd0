"""``larql tokenize`` and ``larql perplexity``."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.builders.containers import make_container, read_json
from tests.builders.models import LlamaSpec, write_llama_safetensors
from tests.cli.conftest import Run
from tests.cli.test_exec import nan_container

REFERENCE = ("--backend", "reference")


# tokenize


@pytest.mark.parametrize(
    ("arguments", "stdin", "out"),
    [
        (["the"], "", "0,119,247\n"),
        (["the", "--no-bos"], "", "119,247\n"),
        (["-"], "the", "0,119,247\n"),
        (["--prompt-file", "{text}"], "", "0,119,247,13\n"),
        (["--prompt-file", "-"], "the", "0,119,247\n"),
        (["", "--no-bos"], "", "\n"),
        (["<|endoftext|>the"], "", "0,119,247\n"),
        (["--decode", "119,247"], "", "the\n"),
        (["--decode", "0, 119 247"], "", "<|endoftext|>the\n"),
        (["--decode", "-"], "119\n247\n", "the\n"),
        (["--decode", "30,13,119"], "", "\\x1b\nt\n"),
    ],
)
def test_text_to_ids_and_back(
    arguments: list[str], stdin: str, out: str, llama: Path, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / "text").write_text("the\n")
    arguments = [text.format(text=tmp_path / "text") for text in arguments]
    answer = cli("tokenize", llama, *arguments, stdin=stdin).ok()
    assert (answer.out, answer.err) == (out, "")


@pytest.mark.parametrize("text", ["the cat", " the", "a\tb\n\n", "é🦙", "\u202e", ""])
def test_there_and_back(text: str, llama: Path, cli: Run) -> None:
    """What --tokens takes is what tokenize prints, and decodes to the text."""
    ids = cli("tokenize", llama, text).ok().out.strip()
    found = cli("tokenize", llama, "--decode", ids, "--json").ok().json
    assert found["text"] == f"<|endoftext|>{text}"
    report = cli("exec", llama, "--tokens", ids, *REFERENCE, "--json").ok().json
    assert report["provenance"]["tokens"] == found["ids"]


def test_pieces(llama: Path, cli: Run) -> None:
    answer = cli("tokenize", llama, "the é\n", "--pieces").ok()
    rows = [line.split(maxsplit=1) for line in answer.out.splitlines()]
    assert rows[:3] == [["token", "text"], ["0", "'<|endoftext|>'"], ["119", "'t'"]]
    assert rows[-1][1] == r"'\n'"
    report = cli("tokenize", llama, "the é\n", "--json").ok().json
    assert list(report) == ["ids", "pieces", "text", "bos_ids", "end_of_text_ids"]
    assert report["pieces"][:3] == ["<|endoftext|>", "t", "he"]
    assert report["pieces"][-3:] == ["<0xC3>", "<0xA9>", "\n"]
    assert (report["bos_ids"], report["end_of_text_ids"]) == ([0], [0, 2])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "expected one of TEXT, --prompt-file and --decode, found none"),
        (["a", "--decode", "1"], "found TEXT and --decode"),
        (["--decode", "x"], "--decode: entry 0 is 'x'"),
        (["--decode", "256"], "256"),
        (["\udcff"], "half a surrogate pair"),
        (["--prompt-file", "/no/such"], "--prompt-file /no/such: cannot be read"),
    ],
)
def test_what_tokenize_refuses(arguments: list[str], says: str, llama: Path, cli: Run) -> None:
    answer = cli("tokenize", llama, *arguments)
    assert answer.status == 2
    assert says in answer.problem
    assert answer.out == ""


def test_a_model_without_a_tokenizer(gemma: Path, cli: Run) -> None:
    assert "carries no tokenizer" in cli("tokenize", gemma, "the").problem


# perplexity

TEXT = "the cat in the hat on an iron ring " * 4


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def log_softmax(rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    shifted = rows - rows.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def test_perplexity_is_that_of_the_logits(
    llama: Path, text: Path, tmp_path: Path, cli: Run
) -> None:
    """One window that holds all of the text: exec's dump has the same numbers."""
    report = cli("perplexity", llama, text, "--window", "200", "--json").ok().json
    dump = tmp_path / "a.npy"
    given = cli("exec", llama, "--prompt-file", text, "--logit-dump", dump, "--json").ok().json
    ids = given["provenance"]["tokens"]
    rows = log_softmax(np.load(dump).astype(np.float64))
    nll = -rows[np.arange(len(ids) - 1), ids[1:]]
    assert report["scored"] == report["tokens"] == len(ids) - 1
    assert report["windows"] == 1
    assert report["mean_nll"] == pytest.approx(nll.mean(), abs=1e-9)
    assert report["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=1e-9)
    assert report["provenance"]["tokens"] == ids[1:]


def test_the_dump_and_its_sidecar(llama: Path, text: Path, tmp_path: Path, cli: Run) -> None:
    dump = tmp_path / "nll.npy"
    options = ("--window", "16", "--stride", "5", "--nll-dump", dump)
    report = cli("perplexity", llama, text, *options, "--json").ok().json
    found = np.load(dump)
    assert found.shape == (report["scored"], 1)
    assert float(found.astype(np.float64).mean()) == pytest.approx(report["mean_nll"], rel=1e-6)
    sidecar = read_json(tmp_path / "nll.npy.json")
    for key in ("sha256", "payload_sha256", "perplexity", "window", "stride", "windows", "bos_ids"):
        assert sidecar[key] == report[key]
    for key in ("container", "executed_layers", "tokens_sha256", "threads", "environment"):
        assert sidecar[key] == report["provenance"][key]
    assert sidecar["kind"] == "nll"
    first = dump.read_bytes()
    for change in (("--threads", "1"), ("--chunk", "3"), ("--draft-depth", "3")):
        cli("perplexity", llama, text, *options, *change).ok()
        assert dump.read_bytes() == first
    cli("perplexity", llama, text, *options, "--no-bos").ok()
    assert dump.read_bytes() != first


def test_rounded_activations_are_said_to_be(models: Path, text: Path, cli: Run) -> None:
    container = models / "llama.gguf.vindex3"
    for command, *rest in (("perplexity", text, "--window", "16"), ("run", "the", "-n", "2")):
        for kind in ("f32", "q8"):
            report = cli(command, container, *rest, "--activations", kind, "--json").ok().json
            assert report["provenance"]["activations"] == kind


def test_rounded_keys_and_values_are_said_to_be(llama: Path, text: Path, cli: Run) -> None:
    for command, *rest in (("perplexity", text, "--window", "16"), ("run", "the", "-n", "2")):
        for kind in ("f32", "f16"):
            report = cli(command, llama, *rest, "--kv", kind, "--json").ok().json
            assert report["provenance"]["kv"] == kind


def test_perplexity_for_people(llama: Path, text: Path, cli: Run) -> None:
    answer = cli("perplexity", llama, text, *REFERENCE, "--window", "32", "--max-tokens", "40").ok()
    names = [line.split("  ")[0] for line in answer.out.splitlines()]
    assert names == ["perplexity", "nats per token", "scored", "window", "container"]
    assert "40 of 40 tokens" in answer.out
    assert "32, stride 16" in answer.out
    piped = cli(
        "perplexity", llama, "-", *REFERENCE, "--window", "32", "--max-tokens", "40", stdin=TEXT
    ).ok()
    assert piped.out == answer.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{text}", "--window", "2"], "--window 2: expected at least 3 positions"),
        (["{text}", "--window", "8", "--stride", "8"], "--stride 8: expected 1 to 7"),
        (["{text}", "--draft-depth", "0"], "at least layer 0"),
        (["{empty}"], "the text has 0 tokens; none of them can be scored"),
        (["/no/such"], "FILE /no/such: cannot be read"),
        (["{text}", "--nll-dump", "a.txt"], "ends in .npy, .f32, .safetensors"),
    ],
)
def test_what_perplexity_refuses(
    arguments: list[str], says: str, llama: Path, text: Path, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / "empty").write_text("")
    places = {"text": text, "empty": tmp_path / "empty"}
    answer = cli("perplexity", llama, *(part.format(**places) for part in arguments))
    assert answer.status == 2
    assert says in answer.problem
    assert answer.out == ""


def test_a_window_beyond_the_context_of_the_model(tmp_path: Path, text: Path, cli: Run) -> None:
    spec = LlamaSpec(layers=1, context=8, tokenizer=True)
    container = make_container(write_llama_safetensors(tmp_path / "m", spec), tmp_path / "c").path
    answer = cli("perplexity", container, text, "--window", "16", *REFERENCE).ok()
    assert answer.err == ("larql: warning: the run takes 16 positions; the model was made for 8\n")
    # The default window is only as long as the text and the model allow.
    assert cli("perplexity", container, text, *REFERENCE).ok().err == ""


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_numbers_that_json_has_no_word_for(
    backend: str, tmp_path: Path, text: Path, cli: Run
) -> None:
    options = ("--backend", backend, "--window", "16")
    answer = cli("perplexity", nan_container(tmp_path), text, *options, "--json").ok()
    assert answer.json["perplexity"] is None
    assert answer.err == ""
    weight = np.full(64, 1e30, np.float32)
    source = write_llama_safetensors(
        tmp_path / "huge", LlamaSpec(tokenizer=True), extra={"model.norm.weight": weight}
    )
    container = make_container(source, tmp_path / "huge.vindex3").path
    answer = cli("perplexity", container, text, *options, "--json").ok()
    assert answer.json["mean_nll"] > 1e20
    assert answer.json["perplexity"] is None
    assert "inf" in cli("perplexity", container, text, *options).ok().out
