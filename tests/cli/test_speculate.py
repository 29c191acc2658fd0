"""``--speculate`` on the command line: the same answers, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize("drafter", ["ngram", "depth:1", "container:{llama}"])
@pytest.mark.parametrize("command", ["exec", "run", "drawn"])
def test_answers_do_not_depend_on_a_drafter(
    llama: Path, cli: Run, drafter: str, command: str
) -> None:
    arguments: tuple[object, ...] = ("run", llama, "the the the the", "-n", "20", "--json")
    if command == "exec":
        arguments = ("exec", llama, "--prompt", "the the the the", "-n", "20", "--json")
    if command == "drawn":
        arguments += ("--temperature", "0.9", "--seed", "4")
    plain = cli(*arguments).ok().json
    options = ("--speculate", drafter.format(llama=llama), "--draft-tokens", "3")
    found = cli(*arguments, *options).ok().json
    told = found.pop("speculation")
    for key in plain.keys() - {"provenance"}:
        assert found[key] == plain[key]
    assert found.keys() == plain.keys()
    assert (told["drafter"], told["draft_tokens"]) == (drafter.format(llama=llama), 3)
    assert told["accepted"] + told["blocks"] == 19
    assert told["accepted"] == sum(int(n) * times for n, times in told["histogram"].items())
    assert told["seconds"]["single_step"] > 0 and told["speedup"] > 0
    if drafter.startswith("container") and command != "drawn":
        assert told["acceptance"] == 1.0


def test_what_people_are_told(llama: Path, cli: Run) -> None:
    for command in (("run", llama, "the"), ("exec", llama, "--prompt", "the")):
        answer = cli(*command, "-n", "20", "--speculate", f"container:{llama}").ok()
        told = [line for line in answer.err.splitlines() if "speculation: " in line]
        assert len(told) == 1
        assert "16 of 16 judged ones accepted (1.000); blocks by accepted tokens 0: 0" in told[0]
        assert "× as fast as single steps" in told[0]
        plain = cli(*command, "-n", "20", "--quiet").ok()
        if command[0] == "run":
            assert plain.out == answer.out
    answer = cli("run", llama, "the", "-n", "2", "--speculate", "ngram").ok()
    assert "ngram drafted nothing for 1 steps" in answer.err


def test_a_chat_goes_on_with_a_drafter(llama: Path, cli: Run) -> None:
    talk = "the cat\nthe cat\n"
    plain = cli("run", llama, "-n", "6", stdin=talk).ok()
    for drafter in ("ngram", "depth:2"):
        found = cli("run", llama, "-n", "6", "--speculate", drafter, stdin=talk).ok()
        assert found.out == plain.out
        assert f"speculation: {drafter} drafted" in found.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-n", "4", "--speculate", "parrot"), "--speculate 'parrot': expected one of"),
        (("--speculate", "ngram"), "give --generate with it"),
        (("-n", "4", "--speculate", "depth:3"), "runs 3 layers itself; give fewer"),
        (("-n", "4", "--speculate", "depth:2", "--draft-depth", "2"), "runs 2 layers itself"),
        (("-n", "4", "--speculate", "container:{none}"), "none.vindex3"),
        (("-n", "4", "--speculate", "ngram", "--draft-tokens", "0"), "--draft-tokens"),
    ],
)
def test_what_is_refused(
    llama: Path, tmp_path: Path, cli: Run, options: tuple[str, ...], words: str
) -> None:
    filled = [text.format(none=tmp_path / "none.vindex3") for text in options]
    assert words in cli("exec", llama, "--tokens", "1,2,3", *filled).problem
