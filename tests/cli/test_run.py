"""``larql run``: a prompt continued, a chat, and what both refuse."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders.containers import make_container
from tests.builders.models import LlamaSpec, write_llama_safetensors
from tests.cli.conftest import Run


def test_a_prompt_is_continued_as_exec_does(llama: Path, cli: Run) -> None:
    answer = cli("run", llama, "the", "-n", "9", "--json").ok()
    report = answer.json
    assert list(report) == ["text", "generated", "ended", "end_of_text_ids", "provenance"]
    other = cli("exec", llama, "--prompt", "the", "-n", "9", "--json").ok().json
    for key in ("generated", "text", "ended", "end_of_text_ids"):
        assert report[key] == other[key]
    assert report["provenance"]["tokens"] == [0, 119, 247]
    assert answer.err == ""


def test_the_text_goes_to_standard_output_and_nothing_else(llama: Path, cli: Run) -> None:
    report = cli("run", llama, "the", "-n", "9", "--json").ok().json
    answer = cli("run", llama, "the", "-n", "9").ok()
    shown = "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode()
        for c in report["text"]
    )
    assert answer.out == f"{shown}\n"
    assert answer.err == "larql: 9 tokens, ended by --generate\n"
    answer = cli("run", llama, "the", "-n", "9", "--quiet").ok()
    assert (answer.out, answer.err) == (f"{shown}\n", "")


@pytest.mark.parametrize(
    ("arguments", "stdin", "ids"),
    [
        (["the"], "", [0, 119, 247]),
        (["the", "--no-bos"], "", [119, 247]),
        (["-"], "the", [0, 119, 247]),
        (["--prompt-file", "{text}"], "", [0, 119, 247]),
        (["--prompt-file", "-"], "the", [0, 119, 247]),
        ([""], "", [0]),
        (["--", "--json"], "", [0, 48, 48, 109, 118, 252]),
    ],
)
def test_where_the_prompt_may_come_from(
    arguments: list[str], stdin: str, ids: list[int], llama: Path, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / "text").write_text("the")
    arguments = [text.format(text=tmp_path / "text") for text in arguments]
    answer = cli("run", llama, "-n", "1", "--json", *arguments, stdin=stdin).ok()
    assert answer.json["provenance"]["tokens"] == ids


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a", "--prompt-file", "b"], "expected one of PROMPT and --prompt-file, found both"),
        (["--json"], "--json answers once; give a prompt with it"),
        (["a", "--system", "b"], "--system begins a chat; give --chat with it"),
        (["a", "--chat", "--no-bos"], "--no-bos does not go with a chat"),
        (["a", "--temperature", "-1"], "--temperature -1.0: expected a number of at least 0"),
        (["a", "--temperature", "nan"], "--temperature nan"),
        (["a", "--top-p", "0"], "--top-p 0.0: expected a number above 0, at most 1"),
        (["a", "--top-p", "1.5"], "--top-p 1.5"),
        (["a", "--seed", "-1"], "--seed -1"),
        (["", "--no-bos"], "the prompt is empty"),
        (["a", "--draft-depth", "4"], "only 3 layers"),
        (["the end", "--context", "2"], "--context 2: the run takes"),
        (["--prompt-file", "/no/such"], "--prompt-file /no/such: cannot be read"),
        (["\udcff"], "half a surrogate pair"),
    ],
)
def test_what_is_refused(arguments: list[str], says: str, llama: Path, cli: Run) -> None:
    answer = cli("run", llama, *arguments)
    assert answer.status == 2
    assert says in answer.problem


@pytest.mark.parametrize("arguments", [["-"], []])
def test_a_closed_standard_input(arguments: list[str], llama: Path, cli: Run) -> None:
    assert "standard input" in cli("run", llama, *arguments, stdin=None).problem


def test_generation_stops_where_the_context_is_full(llama: Path, cli: Run) -> None:
    """The last token is chosen and not run, so it needs no position."""
    answer = cli("run", llama, "the", "-n", "9", "--context", "5", "--json").ok()
    assert len(answer.json["generated"]) == 3
    answer = cli("run", llama, "the", "-n", "9", "--context", "5").ok()
    assert answer.err == "larql: 3 tokens, ended by the end of the context\n"
    answer = cli("run", llama, "the", "-n", "3", "--context", "5").ok()
    assert answer.err == "larql: 3 tokens, ended by --generate\n"


def test_the_model_s_context_bounds_a_run_that_names_none(tmp_path: Path, cli: Run) -> None:
    spec = LlamaSpec(layers=1, context=6, tokenizer=True, bos=True)
    container = make_container(write_llama_safetensors(tmp_path / "m", spec), tmp_path / "c").path
    answer = cli("run", container, "the").ok()
    assert answer.err == "larql: 4 tokens, ended by the end of the context\n"
    answer = cli("run", container, "abcdefg")
    assert "the prompt takes 8 positions, and the model was made for 6" in answer.problem
    answer = cli("run", container, "abcdefg", "--context", "20", "-n", "2").ok()
    assert answer.err.splitlines()[0] == (
        "larql: warning: the run takes 9 positions; the model was made for 6"
    )


def test_nothing_to_generate(llama: Path, cli: Run) -> None:
    answer = cli("run", llama, "the", "-n", "0").ok()
    assert (answer.out, answer.err) == ("\n", "larql: 0 tokens, ended by --generate\n")


def test_the_same_seed_draws_the_same_tokens(llama: Path, cli: Run) -> None:
    def draw(*options: str) -> list[int]:
        arguments = ("the", "-n", "12", "--json", *options)
        report = cli("run", llama, *arguments).ok().json
        found: list[int] = report["generated"]
        return found

    greedy = draw()
    warm = draw("--temperature", "2", "--seed", "7")
    assert warm == draw("--temperature", "2", "--seed", "7", "--threads", "1", "--chunk", "1")
    assert warm != draw("--temperature", "2", "--seed", "8")
    assert warm != greedy
    assert draw("--temperature", "2", "--top-p", "1e-9", "--seed", "7") == greedy
    assert draw("--seed", "9") == greedy


def test_an_end_token_ends_and_is_not_shown(models: Path, tmp_path: Path, cli: Run) -> None:
    ids = cli("run", models / "llama.vindex3", "the", "-n", "5", "--json").ok().json["generated"]
    assert ids[1] != ids[0]
    source = write_llama_safetensors(
        tmp_path / "m", LlamaSpec(layers=3, tokenizer=True, bos=True),
        config={"eos_token_id": ids[1]},
    )  # fmt: skip
    container = make_container(source, tmp_path / "c").path
    report = cli("run", container, "the", "--json").ok().json
    assert report["generated"] == ids[:2]
    assert report["ended"] is True
    answer = cli("run", container, "the").ok()
    assert answer.err.startswith("larql: 2 tokens, ended by the token ")
    assert answer.err.endswith(f"({ids[1]})\n")
    first = cli("run", models / "llama.vindex3", "the", "-n", "1", "--json").ok().json
    assert report["text"] == first["text"]


# Chats


def test_a_prompt_in_the_model_s_template(llama: Path, cli: Run) -> None:
    arguments = ("the", "--chat", "-n", "4", "--json")
    report = cli("run", llama, *arguments, "--system", "a").ok().json
    keys = ["text", "generated", "ended", "end_of_text_ids", "messages", "provenance"]
    assert list(report) == keys
    assert [m["role"] for m in report["messages"]] == ["system", "user", "assistant"]
    assert report["messages"][2]["content"] == report["text"]
    rendered = "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nthe<|im_end|>\n" + (
        "<|im_start|>assistant\n"
    )
    expected = cli("tokenize", llama, rendered, "--json").ok().json["ids"]
    assert report["provenance"]["tokens"] == expected
    assert expected.count(0) == 1
    other = cli("exec", llama, "--prompt", rendered, "-n", "4", "--json").ok().json
    assert report["generated"] == other["generated"]
    assert len(report["generated"]) == 4


def test_a_chat_goes_through_the_lines_of_standard_input(llama: Path, cli: Run) -> None:
    answer = cli("run", llama, "-n", "3", stdin="the\n\n  \nin an end").ok()
    assert answer.err == ""
    single = cli("run", llama, "the", "--chat", "-n", "3", "--quiet").ok()
    assert answer.out.startswith(single.out)
    second = answer.out.removeprefix(single.out)
    assert second.endswith("\n")
    # The second turn is what a chat that begins with the first one says.
    first = cli("run", llama, "the", "--chat", "-n", "3", "--json").ok().json["messages"]
    rendered = "".join(
        f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n"
        for m in [*first, {"role": "user", "content": "in an end"}]
    )
    fresh = cli(
        "run", llama, f"{rendered}<|im_start|>assistant\n", "-n", "3", "--context", "4096",
        "--quiet",
    ).ok()  # fmt: skip
    assert second == fresh.out
    assert cli("run", llama, stdin="").ok().out == ""


def test_a_chat_that_outgrows_its_context(llama: Path, cli: Run) -> None:
    answer = cli("run", llama, "-n", "3", "--context", "40", stdin="the\nthe\nthe\nthe\n")
    assert answer.status == 2
    assert "does not fit a context of 40; start anew, or give a larger --context" in answer.problem
    assert answer.out.count("\n") >= 1


def test_a_model_without_a_template(tmp_path: Path, cli: Run) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1, tokenizer=True))
    config = source / "tokenizer_config.json"
    config.write_text('{"eos_token": "<|im_end|>"}')
    container = make_container(source, tmp_path / "c").path
    for arguments in ([], ["--chat", "the"]):
        answer = cli("run", container, *arguments)
        assert answer.status == 2
        assert "the model has no chat template" in answer.problem
        assert "without --chat" in answer.problem
    cli("run", container, "the", "-n", "1").ok()


def test_an_interruption_is_one_line(llama: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "larql", "run", str(llama), "the", "-n", "400", *SLOWLY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, problem = process.communicate()
    assert process.returncode == 130
    assert problem == b"larql: error: interrupted\n"


SLOWLY = ("--backend", "reference", "--quiet")


def test_text_appears_as_it_is_made(llama: Path) -> None:
    """A reader sees the first pieces while the last are not made yet."""
    process = subprocess.Popen(
        [sys.executable, "-m", "larql", "run", str(llama), "the", "-n", "400", *SLOWLY],
        stdout=subprocess.PIPE,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
    )
    assert process.stdout is not None
    times = []
    while select.select([process.stdout], [], [], 60)[0] and os.read(process.stdout.fileno(), 99):
        times.append(time.monotonic())
    assert process.wait() == 0
    assert len(times) > 10
