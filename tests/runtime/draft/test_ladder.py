"""A ladder's rungs are drafts of their depth, bit for bit, and prompts do not touch each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from larql.errors import UsageError
from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.runtime.draft.bank import Entry, Reading, RefusedEntry, read_bank
from larql.runtime.draft.compare import following_tokens
from larql.runtime.draft.journal import Journal
from larql.runtime.draft.ladder import StepTimes, expected_accepted, rung_of
from larql.runtime.draft.measure import climb
from larql.runtime.draft.rungs import score_rungs
from larql.runtime.draft.scores import Scores, joined, read_target, score_rows
from larql.runtime.run import RunOptions, open_run

TOKENS = [(7 * i * i + 3 * i) % 79 for i in range(150)]
States = Callable[[str], Container]


def bits(scores: Scores) -> bytes:
    return b"".join(getattr(scores, f.name).tobytes() for f in dataclasses.fields(scores))


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize("name", ["rows", "delta", "embeddings"])
def test_a_rung_is_a_run_of_its_depth(states: States, name: str, backend: str) -> None:
    tokens = TOKENS if backend == "production" else TOKENS[:20]
    run = open_run(states(name), RunOptions(backend=backend))
    layers = len(run.prepared.plan.layers)
    depths = [layers, 1, layers - 1]
    found = score_rungs(run.prepared, tokens, depths, None, SilentProgress())
    following = following_tokens(tuple(tokens))
    whole = run.session(len(tokens))
    target = read_target(whole.logits(whole.advance(tokens)), following, "t", 0)
    for depth, scores in zip(depths, found.scores, strict=True):
        draft = open_run(states(name), RunOptions(backend=backend, draft_depth=depth))
        session = draft.session(len(tokens))
        rows = session.logits(session.advance(tokens))
        assert bits(scores) == bits(score_rows(target, rows, "d", 0))
    assert not found.scores[0].divergence.any()
    in_pieces = score_rungs(run.prepared, tokens, depths, 7, SilentProgress())
    assert [bits(s) for s in in_pieces.scores] == [bits(s) for s in found.scores]


def test_prompts_leave_nothing_for_each_other(states: States) -> None:
    run = open_run(states("delta"), RunOptions())
    one, two = Entry("a", tuple(TOKENS[:9])), Entry("b", tuple(TOKENS[20:27]))
    options = {"resume": False, "progress": SilentProgress()}
    both = climb(run, [one, two], [1, 3], None, **options).scores  # type: ignore[arg-type]
    for entry in (two, one):
        alone = climb(run, [entry], [1, 3], None, **options).scores  # type: ignore[arg-type]
        assert [bits(s) for s in alone[entry.id]] == [bits(s) for s in both[entry.id]]


def test_an_interrupted_ladder_goes_on(
    states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(states("rows"), RunOptions())
    entries = [Entry(str(i), tuple(TOKENS[i : i + 5])) for i in range(4)]
    out = tmp_path / "l.json"
    expected = climb(run, entries, [1, 2], None, resume=False, progress=SilentProgress())
    from larql.runtime.draft import measure

    calls: list[int] = []

    def interrupted(*arguments):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score_rungs(*arguments)

    monkeypatch.setattr(measure, "score_rungs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        climb(run, entries, [1, 2], out, resume=False, progress=SilentProgress())
    assert not out.exists()
    with pytest.raises(UsageError, match="give --resume to go on"):
        climb(run, entries, [1, 2], out, resume=False, progress=SilentProgress())
    for other in ([1, 3], [2, 1]):
        with pytest.raises(UsageError, match="begun for something else"):
            climb(run, entries, other, out, resume=True, progress=SilentProgress())
    with (tmp_path / "l.json.partial").open("ab") as file:
        file.write(b'["2", [[1')  # what a killed run leaves
    found = climb(run, entries, [1, 2], out, resume=True, progress=SilentProgress())
    assert len(calls) == 3 + 2  # the first two were done
    for entry in entries:
        assert [bits(s) for s in found.scores[entry.id]] == [
            bits(s) for s in expected.scores[entry.id]
        ]
    assert found.journal is not None
    found.journal.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_was_changed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "o", {"a": 1}, resume=False)
    journal.add("x", [1.5, None])
    journal.close()
    again = Journal(tmp_path / "o", {"a": 1}, resume=True)
    assert again.done == {"x": [1.5, None]}
    again.close()
    with again.path.open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(UsageError, match="line 3 is no result"):
        Journal(tmp_path / "o", {"a": 1}, resume=True)


def scores_of(same: list[int]) -> Scores:
    zeros = np.zeros(len(same), np.int64)
    numbers = np.zeros(len(same))
    return Scores(numbers, zeros, 1 - np.array(same), zeros + 1, numbers, numbers)


def test_how_many_in_a_row_agree() -> None:
    one = scores_of([1, 1, 0, 1, 1, 1])
    assert expected_accepted([one], 1) == 5 / 6
    assert expected_accepted([one], 2) == (2 + 1 + 0 + 2 + 2) / 5
    assert expected_accepted([one], 4) == (2 + 1 + 0) / 3
    assert expected_accepted([one], 9) == 2
    # a run does not go on in the next prompt
    assert expected_accepted([scores_of([0, 1]), scores_of([1, 1])], 2) == (0 + 2) / 2
    assert expected_accepted([scores_of([1] * 9)], 4) == 4.0


def test_what_speculating_would_give(states: States) -> None:
    run = open_run(states("rows"), RunOptions())
    times = StepTimes(0.002, 0.004, {1: 0.004, 2: 0.005, 3: 0.006, 5: 0.007, 9: 0.01}, 3)
    assert [times.single(d) for d in (1, 2, 3)] == pytest.approx([0.002, 0.003, 0.004])
    rung = rung_of(run.prepared, 2, [scores_of([1] * 20)], times)
    gain = rung.gains["4"]
    assert gain.accepted == 4 and gain.accepted_per_ms == pytest.approx(4 / 19)
    assert gain.tokens_per_ms == pytest.approx(5 / 19)
    assert gain.speedup == pytest.approx(5 * 4 / 19)
    whole = rung_of(run.prepared, 3, [scores_of([1] * 20)], times)
    assert whole.gains == {} and whole.step_ms == pytest.approx(4.0)
    # what it reads is what a run of the depth reads
    for made in (rung, whole):
        prepared = open_run(run.container, RunOptions(draft_depth=made.depth)).prepared
        assert (made.cost.reads, made.cost.stored_bytes) == (prepared.reads, prepared.bytes_read)


def reading() -> Reading:
    class Words:
        def encode(self, text: str, add_bos: bool = True) -> list[int]:
            return [1] * add_bos + [len(word) for word in text.split()]

    class Template:
        def render(self, messages: list[dict[str, str]], **_: object) -> str:
            return " ".join(m["content"] for m in messages)

    return Reading(9, 5, Words, Template, True)  # type: ignore[arg-type]


def test_a_bank_is_read_line_by_line(tmp_path: Path) -> None:
    bank = tmp_path / "b.jsonl"
    lines = [
        '{"prompt": "a bb ccc"}',
        "",
        '{"tokens": [3, 4], "id": "mine"}',
        '{"messages": [{"role": "user", "content": "aa"}, {"role": "assistant", "content": "b"}]}',
        '{"prompt": "aaaaaaaaaaaa"}',
        '{"tokens": [9]}',
        '{"tokens": [true]}',
        '{"tokens": []}',
        '{"tokens": [1, 1, 1, 1, 1, 1]}',
        '{"tokens": [1], "prompt": "a"}',
        '{"prompt": 3}',
        '{"text": "a"}',
        "[1]",
        "nonsense",
        '{"messages": "a"}',
    ]
    bank.write_text("\n".join(lines))
    found = read_bank(bank, reading())
    assert found[0] == Entry("1", (1, 1, 2, 3))
    assert found[1] == Entry("mine", (3, 4))
    assert found[2] == Entry("4", (1, 2, 1))
    refused = {entry.id: entry.why for entry in found[3:] if isinstance(entry, RefusedEntry)}
    assert len(refused) == len(found) - 3
    words = {
        "5": "outside the vocabulary", "6": "outside", "7": "no integer", "8": "no token",
        "9": "do not fit", "10": "expected one of", "11": "no text", "12": "not known",
        "13": "no JSON object", "14": "not JSON", "15": "no list",
    }  # fmt: skip
    for name, expected in words.items():
        assert refused[name].startswith(f"line {name}: ") and expected in refused[name]
    for content, expected in (
        ("", "holds no prompt"),
        (json.dumps({"tokens": [1], "id": "2"}) + "\n" + '{"tokens": [1]}', "twice"),
    ):
        bank.write_text(content)
        with pytest.raises(UsageError, match=expected):
            read_bank(bank, reading())
    with pytest.raises(UsageError, match="no such file"):
        read_bank(tmp_path / "absent", reading())


def test_scores_go_through_json_bit_for_bit() -> None:
    one = scores_of([1, 0])
    one.target_nll[1] = np.nan
    one.divergence[0] = 1 / 3
    again = Scores.of(json.loads(json.dumps(one.document())))
    assert bits(again) == bits(one) and bits(joined([again])) == bits(one)
    with pytest.raises(ValueError):
        Scores.of({"divergence": [1.0]})
