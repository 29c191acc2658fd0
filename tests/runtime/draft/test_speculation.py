"""Speculation gives what single steps give: tokens, logits, states, whatever is drafted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from larql.errors import UsageError
from larql.format.container import Container
from larql.runtime.draft.choice import make_drafter
from larql.runtime.draft.drafter import Speculation, Tally
from larql.runtime.draft.model_drafter import ModelDrafter
from larql.runtime.draft.ngram import NgramDrafter
from larql.runtime.generate import generate
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.sampling import Sampler, Sampling
from larql.runtime.session import Session
from tests.builders.containers import make_container, read_json, write_json
from tests.builders.models import LlamaSpec, write_llama_safetensors
from tests.runtime.draft.conftest import STATES, Scripted

PROMPT = [5, 17, 3, 60, 41, 2, 60, 9]
TOKENS = 64
States = Callable[[str], Container]
EACH_STATE = pytest.mark.parametrize("name", STATES)
BACKENDS = pytest.mark.parametrize("backend", ["production", "reference"])


class Spy(Sampler):
    """Remembers the rows that it chose from."""

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(sampling)
        self.rows: list[bytes] = []

    def choose(self, row: npt.NDArray[np.float32]) -> int:
        self.rows.append(row.tobytes())
        return super().choose(row)


@dataclasses.dataclass
class Made:
    """What came of a run."""

    tokens: list[int]
    rows: list[bytes]
    session: Session
    tally: Tally


def started(run: Run, context: int = 96, chunk: int | None = None) -> tuple[Session, object]:
    session = Session(run.prepared, context, chunk)
    return session, session.logits(session.advance(PROMPT)[-1:])[0]


def plain(run: Run, count: int = TOKENS, sampling: Sampling | None = None) -> Made:
    session, row = started(run)
    spy = Spy(sampling or Sampling())
    return Made(list(generate(run, session, row, count, spy, ())), spy.rows, session, Tally())  # type: ignore[arg-type]


def state_hashes(run: Run, tokens: list[int]) -> dict[int, str]:
    """The state's hash at every length, by single steps."""
    session, _ = started(run)
    found = {session.position: session.snapshot().sha256()}
    for token in tokens[:-1]:
        session.step([token])
        found[session.position] = session.snapshot().sha256()
    return found


@BACKENDS
@EACH_STATE
def test_drafts_that_are_always_wrong_or_right_leave_no_trace(
    states: States, name: str, backend: str
) -> None:
    run = open_run(states(name), RunOptions(backend=backend))
    vocab = run.prepared.plan.component.vocab_size
    expected = plain(run)
    hashes = state_hashes(run, expected.tokens)
    whole = [*PROMPT, *expected.tokens]
    for most, wrong in ((4, True), (4, False), (1, False), (7, True)):
        session, row = started(run)
        drafter = Scripted(whole, session, lambda at, wrong=wrong: wrong, vocab)  # type: ignore[misc]
        speculation, spy = Speculation(drafter, most), Spy(Sampling())
        found = list(
            generate(run, session, row, TOKENS, spy, (), PROMPT, speculation)  # type: ignore[arg-type]
        )
        assert found == expected.tokens
        assert spy.rows == expected.rows
        tally = speculation.tally
        assert tally.acceptance == (0.0 if wrong else 1.0)
        assert session.position == len(PROMPT) + TOKENS - 1
        # after every block the state is that of single steps, and so it is in the end
        assert drafter.hashes.items() <= hashes.items()
        assert max(drafter.hashes) == session.position
        steps = TOKENS - 1 if wrong else -(-(TOKENS - 1) // (most + 1))
        assert len(tally.accepted) == len(drafter.hashes) == steps
        assert sum(tally.accepted) + len(tally.accepted) == TOKENS - 1
        assert sum(tally.histogram.values()) == steps


@pytest.mark.parametrize(
    ("name", "backend", "chunk"),
    [
        ("windows", "production", 3), ("delta", "production", 1), ("delta", "production", None),
        ("convolution", "production", 3),
        # a ring of window and one position, which longer blocks overrun
        ("windows", "reference", 1),
    ],
)  # fmt: skip
def test_drafts_that_are_right_by_chance_in_any_chunks(
    states: States, name: str, backend: str, chunk: int | None
) -> None:
    run = open_run(states(name), RunOptions(backend=backend))
    expected = plain(run)
    hashes = state_hashes(run, expected.tokens)
    whole = [*PROMPT, *expected.tokens]
    for seed, most in enumerate((1, 2, 4, 9)):
        lies = np.random.default_rng(seed).random(len(whole)) < 0.4
        session, row = started(run, chunk=chunk)
        drafter = Scripted(whole, session, lambda at, lies=lies: bool(lies[at]), 96)  # type: ignore[misc]
        speculation, spy = Speculation(drafter, most), Spy(Sampling())
        found = list(
            generate(run, session, row, TOKENS, spy, (), PROMPT, speculation)  # type: ignore[arg-type]
        )
        assert (found, spy.rows) == (expected.tokens, expected.rows)
        assert drafter.hashes.items() <= hashes.items()
        assert 0 < (speculation.tally.acceptance or 0) < 1


@pytest.mark.parametrize("text", ["ngram", "depth:2", "container"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 0.95, 3)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", ["windows", "delta"])
def test_any_drafter_gives_the_tokens_of_single_steps(
    states: States, name: str, text: str, sampling: Sampling
) -> None:
    run = open_run(states(name), RunOptions())
    expected = plain(run, 40, sampling)
    wanted = f"container:{states(name).path}" if text == "container" else text
    for most in (1, 2, 4):
        session, row = started(run)
        speculation = Speculation(make_drafter(wanted, run, 96), most)
        spy = Spy(sampling)
        found = list(generate(run, session, row, 40, spy, (), PROMPT, speculation))  # type: ignore[arg-type]
        assert (found, spy.rows) == (expected.tokens, expected.rows)
        if text == "container" and sampling.temperature == 0:
            assert speculation.tally.acceptance == 1.0


def test_drawn_tokens_have_the_model_s_distribution(states: States) -> None:
    """The second token of many runs, against the sum over all first ones."""
    run = open_run(states("delta"), RunOptions())
    session, row = started(run)
    mark = session.snapshot()
    rows = []
    for token in range(96):
        rows.append(session.step([token]))
        session.restore(mark)
    temperature, runs = 1.5, 2000

    def softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        found = np.exp((logits.astype(np.float64) - logits.max(-1, keepdims=True)) / temperature)
        return found / found.sum(-1, keepdims=True)  # type: ignore[no-any-return]

    expected = softmax(np.asarray(row)) @ softmax(np.stack(rows)) * runs
    drafter = make_drafter("depth:3", run, 96)
    speculation = Speculation(drafter, 1)
    counts = np.zeros(96)
    for seed in range(runs):
        sampler = Sampler(Sampling(temperature, seed=seed))
        stream = generate(run, session, row, 3, sampler, (), PROMPT, speculation)  # type: ignore[arg-type]
        counts[list(stream)[1]] += 1
        session.restore(mark)
    assert 0.02 < (speculation.tally.acceptance or 0) < 0.98
    few = expected < 5
    merged = (
        np.append(expected[~few], expected[few].sum()),
        np.append(counts[~few], counts[few].sum()),
    )
    kept = merged[0] > 0
    statistic = ((merged[1] - merged[0]) ** 2 / np.where(kept, merged[0], 1))[kept].sum()
    freedom = kept.sum() - 1
    assert statistic < freedom + 3.5 * np.sqrt(2 * freedom)


def test_a_text_ends_inside_a_block_where_single_steps_end_it(states: States) -> None:
    run = open_run(states("delta"), RunOptions())
    whole = plain(run).tokens
    end = whole[9]
    stop = whole.index(end)
    session, row = started(run)
    drafter = Scripted([*PROMPT, *whole], session, lambda at: False, 96)
    speculation = Speculation(drafter, 30)  # type: ignore[arg-type]
    found = list(
        generate(run, session, row, TOKENS, Sampler(Sampling()), (end,), PROMPT, speculation)
    )
    assert found == whole[: stop + 1]
    # What was drafted behind the end was never judged, and the block gave nothing behind it.
    assert (speculation.tally.acceptance, speculation.tally.made) == (1.0, stop)
    assert session.position == len(PROMPT) + stop
    assert session.snapshot().sha256() == state_hashes(run, found)[session.position]


def test_no_more_is_drafted_than_has_room(states: States) -> None:
    run = open_run(states("rows"), RunOptions())
    whole = plain(run).tokens
    for count, context in ((5, 12), (5, 40), (1, 8), (2, 9)):
        session, row = started(run, context)
        drafter = Scripted([*PROMPT, *whole], session, lambda at: False, 256)
        speculation = Speculation(drafter, 30)
        arguments = (run, session, row, count, Sampler(Sampling()), (), PROMPT, speculation)
        assert list(generate(*arguments)) == whole[:count]  # type: ignore[arg-type]
        assert session.position == len(PROMPT) + count - 1
        assert sum(speculation.tally.proposed) == max(0, count - 2)
    assert list(generate(run, session, row, 0, Sampler(Sampling()), ())) == []  # type: ignore[arg-type]


def test_a_full_context_ends_both_alike(states: States) -> None:
    run = open_run(states("rows"), RunOptions())
    whole = plain(run).tokens
    made: list[list[int]] = []
    for drafts in (False, True):
        session, row = started(run, 12)
        drafter = Scripted([*PROMPT, *whole], session, lambda at: False, 256)
        speculation = Speculation(drafter, 30) if drafts else None
        arguments = (run, session, row, 20, Sampler(Sampling()), (), PROMPT, speculation)
        made.append([])
        with pytest.raises(UsageError, match="do not fit a context of 12"):
            for token in generate(*arguments):  # type: ignore[arg-type]
                made[-1].append(token)
    assert made[0] == made[1] == whole[:5]


@pytest.mark.parametrize("name", ["rows", "delta", "windows"])
def test_a_drafter_s_guesses_hang_on_the_stream_alone(states: States, name: str) -> None:
    run = open_run(states(name), RunOptions())
    drafter = make_drafter("depth:2", run, 40)
    random = np.random.default_rng(0)
    stream = list(PROMPT)
    streams = [PROMPT, PROMPT[:5], [*PROMPT[:5], 7, 7, 7]]
    for _ in range(6):  # some of what is drafted comes true
        stream = [*stream, *drafter.propose(stream, 4)[: random.integers(0, 4)], 11]
        streams.append(stream)
    for tokens in (*streams, *streams[::-1]):
        fresh = make_drafter("depth:2", run, 40)
        assert drafter.propose(tokens, 5) == fresh.propose(tokens, 5)
    assert drafter.propose(list(range(40)), 3) != []
    assert drafter.propose(list(range(41)), 3) == []


def test_a_shallow_drafter_reads_nothing_of_its_own(states: States) -> None:
    run = open_run(states("rows"), RunOptions())
    drafter = make_drafter("depth:2", run, 40)
    assert isinstance(drafter, ModelDrafter)
    assert drafter.prepared.backend is run.prepared.backend
    assert (drafter.prepared.reads, drafter.prepared.plan.executed_layers) == (0, (0, 1))
    draft = open_run(states("rows"), RunOptions(draft_depth=2))
    session = Session(draft.prepared, 40)
    row, expected = session.step(PROMPT), []
    for _ in range(5):
        expected.append(int(row.argmax()))
        row = session.step(expected[-1:])
    assert drafter.propose(PROMPT, 5) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("depth:0", "at least layer 0"),
        ("depth:4", "only 3 layers"),
        ("depth:3", "runs 3 layers itself; give fewer"),
        ("depth:", "expected one of"),
        ("depth:two", "expected one of"),
        ("container:", "expected one of"),
        ("parrot", "expected one of"),
        ("ngram:3", "expected one of"),
    ],
)
def test_drafters_that_there_are_not(states: States, text: str, words: str) -> None:
    run = open_run(states("rows"), RunOptions())
    with pytest.raises(UsageError, match=words):
        make_drafter(text, run, 40)


def test_a_drafter_needs_the_same_tokens(states: States) -> None:
    run = open_run(states("rows"), RunOptions())
    with pytest.raises(UsageError, match="a vocabulary of 96 tokens, and the model one of 256"):
        make_drafter(f"container:{states('delta').path}", run, 40)
    with pytest.raises(UsageError, match="--draft-tokens 0"):
        Speculation(NgramDrafter(), 0)


def test_a_drafter_s_ids_mean_the_same_texts(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1, tokenizer=True))
    model = make_container(source, tmp_path / "model")
    document = read_json(source / "tokenizer.json")
    vocabulary = document["model"]["vocab"]
    one, two = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    write_json(source / "tokenizer.json", document)
    other = make_container(source, tmp_path / "other")
    run = open_run(model, RunOptions())
    make_drafter(f"container:{model.path}", run, 40)
    with pytest.raises(UsageError, match=r"there and .* in the model; a drafter needs the same"):
        make_drafter(f"container:{other.path}", run, 40)


def test_a_draft_that_is_no_number_guesses_nothing(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(states("rows"), RunOptions())
    expected = plain(run, 12)
    session, row = started(run)
    drafter = make_drafter("depth:2", run, 96)
    assert isinstance(drafter, ModelDrafter)

    def broken(tokens: object) -> npt.NDArray[np.float32]:
        drafter._session.advance(tokens)  # type: ignore[arg-type]
        return np.full(256, np.nan, np.float32)

    monkeypatch.setattr(drafter._session, "step", broken)
    speculation = Speculation(drafter, 4)
    arguments = (run, session, row, 12, Sampler(Sampling()), (), PROMPT, speculation)
    assert list(generate(*arguments)) == expected.tokens  # type: ignore[arg-type]
    assert sum(speculation.tally.proposed) == 0


def test_what_followed_before_is_drafted() -> None:
    drafter = NgramDrafter(longest=3, shortest=2)
    assert drafter.propose([1, 2, 3], 4) == []
    assert drafter.propose([1, 2, 3, 9, 1, 2], 2) == [3, 9]
    # beyond the end it goes on with its own
    assert drafter.propose([1, 2, 3, 9, 1, 2], 6) == [3, 9, 1, 2, 3, 9]
    # the latest place counts, and the longest match before it
    stream = [1, 2, 3, 4, 5, 2, 3, 6, 7, 2, 3]
    assert drafter.propose(stream, 1) == [6]
    assert drafter.propose([*stream[:9], 1, 2, 3], 1) == [4]
    assert drafter.propose([5, 5, 5], 3) == [5, 5, 5]
    # another stream has another past
    assert drafter.propose([7, 8, 9, 1, 2], 2) == []


def test_the_tally_counts_what_was_judged() -> None:
    tally = Tally()
    assert tally.acceptance is None and tally.histogram == {0: 0}
    for proposed, accepted in ((4, 4), (4, 1), (4, 0), (0, 0)):
        tally.add(proposed, accepted, 0.5)
    assert (tally.judged, tally.acceptance) == (7, 5 / 7)
    assert tally.histogram == {0: 2, 1: 1, 2: 0, 3: 0, 4: 1}
    assert tally.seconds == 2.0
    speculation = Speculation(NgramDrafter(), 4, tally, single_seconds=1.0)
    assert speculation.speedup == 9 / 2.0
    report = speculation.report()
    assert (report["mean_accepted"], report["drafted"], report["blocks"]) == (5 / 4, 12, 4)


def test_timing_leaves_a_session_as_it_is(states: States) -> None:
    run = open_run(states("delta"), RunOptions())
    session, _ = started(run, context=20)
    before = session.snapshot().sha256()
    speculation = Speculation(NgramDrafter(), 4)
    carrier = np.zeros((1, run.prepared.plan.component.hidden_size), np.float32)
    speculation.begin(session, PROMPT, carrier, 2)
    assert speculation.single_seconds is None
    speculation.begin(session, PROMPT, carrier, 12)
    assert (speculation.single_seconds or 0) > 0
    assert session.snapshot().sha256() == before
