"""``larql vindex3 accept`` and ``draft-cost``: what they tell, and their verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_acceptance_is_told_by_place(llama: Path, cli: Run) -> None:
    arguments = ("vindex3", "accept", llama, "--tokens", "1,2,3,1,2,3,1,2", "--draft-tokens", "3")
    found = cli(*arguments, "--draft", f"container:{llama}", "--json").ok().json
    assert found["acceptance"] == 1.0 and found["histogram"] == {"0": 0, "1": 0, "2": 0, "3": 8}
    assert [place["rate"] for place in found["places"]] == [1.0, 1.0, 1.0]
    assert found["entries"] == {"scored": 1, "refused": 0, "defective": 0, "dead": 0}
    assert found["go"] is (found["expected_speedup"] >= 1.0)
    assert found["cost"]["bytes_ratio"] == 1.0 and found["positions"] == 8
    text = cli(*arguments, "--draft", "ngram").ok().out
    assert "expected speed-up" in text and "verdict" in text and "1 scored" in text


def test_a_threshold_decides_the_status(llama: Path, cli: Run) -> None:
    arguments = ("vindex3", "accept", llama, "--tokens", "1,2,3", "--draft", "depth:2")
    answer = cli(*arguments, "--threshold", "1000000")
    assert answer.status == 1 and "is below the threshold 1e+06" in answer.problem
    assert "no-go" in answer.out
    answer = cli(*arguments, "--threshold", "1000000", "--json")
    assert answer.status == 1 and answer.json["go"] is False
    assert "go" in cli(*arguments, "--threshold", "0.000001").ok().out
    assert "--threshold" in cli(*arguments, "--threshold", "0").problem


def test_what_drafts_nothing_is_no_go(llama: Path, cli: Run) -> None:
    arguments = ("vindex3", "accept", llama, "--tokens", "1,2", "--draft", "ngram")
    assert cli(*arguments, "--json").ok().json["go"] is False
    answer = cli(*arguments, "--threshold", "1")
    assert answer.status == 1 and "nothing was drafted" in answer.problem


def test_outcomes_of_a_bank(llama: Path, tmp_path: Path, cli: Run) -> None:
    bank = tmp_path / "bank.jsonl"
    chat = '[{"role": "user", "content": "the"}, {"role": "assistant", "content": "cat"}]'
    bank.write_text(f'{{"messages": {chat}}}\n{{"tokens": [999]}}\nnonsense\n')
    arguments = ("vindex3", "accept", llama, "--draft", "ngram", "--prompts", bank)
    answer = cli(*arguments, "--json").ok()
    assert answer.json["entries"] == {"scored": 1, "refused": 2, "defective": 0, "dead": 0}
    assert "warning: entry 2: refused: line 2: token 999" in answer.err
    bank.write_text("nonsense\n")
    assert "no entry could be scored; 1 is refused" in cli(*arguments).problem


def test_what_a_draft_step_costs(llama: Path, cli: Run) -> None:
    found = cli("vindex3", "draft-cost", llama, "--draft", "depth:1", "--json").ok().json
    assert found["draft"]["reads"] < found["target"]["reads"]
    assert 0 < found["bytes_ratio"] < 1 and found["time_ratio"] > 0
    assert 0 < found["head_share"]["target_bytes"] < found["head_share"]["draft_bytes"] < 1
    assert set(found["break_even"]) == {"1", "2", "3", "4", "5", "6"}
    text = cli("vindex3", "draft-cost", llama, "--draft", "ngram").ok().out
    assert "to lose nothing with 6" in text and "draft to target, time" in text


@pytest.mark.parametrize("command", ["accept", "draft-cost"])
@pytest.mark.parametrize(
    ("draft", "words"), [("parrot", "expected one of"), ("depth:9", "only 3 layers"),
                         ("mtp", "no component that drafts")],
)  # fmt: skip
def test_what_is_refused(llama: Path, cli: Run, command: str, draft: str, words: str) -> None:
    more = ("--tokens", "1,2") if command == "accept" else ()
    assert words in cli("vindex3", command, llama, "--draft", draft, *more).problem
