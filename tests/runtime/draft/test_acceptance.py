"""What a drafter would be right about: counted as single steps count it, and nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from larql.errors import BindingDefect, UsageError
from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.runtime.draft import acceptance
from larql.runtime.draft.acceptance import expected_speedup, observe_acceptance, places
from larql.runtime.draft.bank import Entry, RefusedEntry
from larql.runtime.draft.choice import make_drafter
from larql.runtime.draft.costs import StepCost, operand_cost
from larql.runtime.draft.drafter import Drafter, Tally
from larql.runtime.draft.probe import DraftCost, probe
from larql.runtime.run import Run, RunOptions, open_run

STREAM = (5, 17, 3, 60, 41, 2, 60, 9, 60, 9, 60, 9, 3)
MOST = 3
States = Callable[[str], Container]


class Oracle(Drafter):
    """Knows what the model goes on with, and says it, or something else."""

    name = "oracle"

    def __init__(self, run: Run, *, lies: bool, dies: int | None = None) -> None:
        self._run, self._lies, self._dies = run, lies, dies

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        if self._dies == len(tokens):
            raise UsageError("it has died")
        made = continued(self._run, tokens, count)
        return [(token + 1) % 96 for token in made] if self._lies else made


def continued(run: Run, tokens: Sequence[int], count: int) -> list[int]:
    session, made = run.session(64), []
    row = session.step(list(tokens))
    for _ in range(count):
        made.append(int(row.argmax()))
        row = session.step(made[-1:])
    return made


def observed(run: Run, monkeypatch: pytest.MonkeyPatch, **oracle: object) -> Tally:
    monkeypatch.setattr(
        acceptance,
        "make_drafter",
        lambda *_: Oracle(run, **oracle),  # type: ignore[arg-type]
    )
    entry = Entry("a", STREAM[:6])
    (found,) = observe_acceptance(run, [entry], "oracle", MOST, SilentProgress())
    assert found.kind == "scored"
    return found.tally


@pytest.mark.parametrize("name", ["rows", "delta"])
def test_always_right_and_always_wrong(
    states: States, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(states(name), RunOptions())
    right = observed(run, monkeypatch, lies=False)
    assert right.acceptance == 1.0 and right.accepted == [MOST] * 6
    assert [p.rate for p in places(right, MOST)] == [1.0] * MOST
    wrong = observed(run, monkeypatch, lies=True)
    assert wrong.acceptance == 0.0 and wrong.histogram == {0: 6}
    assert [(p.drafted, p.judged, p.accepted) for p in places(wrong, MOST)] == [
        (6, 6, 0), (6, 0, 0), (6, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("drafter", ["ngram", "depth:2"])
@pytest.mark.parametrize("name", ["rows", "delta"])
def test_it_counts_what_single_runs_count(states: States, name: str, drafter: str) -> None:
    run = open_run(states(name), RunOptions())
    (found,) = observe_acceptance(run, [Entry("a", STREAM)], drafter, MOST, SilentProgress())
    proposed, accepted = [], []
    for position in range(len(STREAM)):
        stream = STREAM[: position + 1]
        guesses = make_drafter(drafter, run, 40).propose(stream, MOST)
        expected = continued(run, stream, MOST)
        proposed.append(len(guesses))
        agreed = [a == b for a, b in zip(guesses, expected, strict=False)]
        accepted.append([*agreed, False].index(False))
    assert (found.tally.proposed, found.tally.accepted) == (proposed, accepted)
    assert drafter == "ngram" or sum(accepted) < sum(proposed)


def test_what_is_refused_defective_or_dead_is_no_disagreement(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(states("delta"), RunOptions())
    made = iter([{"lies": False}, {"lies": False, "dies": 4}, None, {"lies": False}])

    def next_one(*_: object) -> Drafter:
        options = next(made)
        if options is None:
            raise BindingDefect("operand x is gone")
        return Oracle(run, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(acceptance, "make_drafter", next_one)
    entries = [
        Entry("a", STREAM[:5]), RefusedEntry("b", "line 2: is not JSON"), Entry("c", STREAM),
        Entry("d", STREAM), Entry("e", STREAM[:5]),
    ]  # fmt: skip
    found = observe_acceptance(run, entries, "oracle", MOST, SilentProgress())
    assert [(o.id, o.kind, o.why) for o in found] == [
        ("a", "scored", None),
        ("b", "refused", "line 2: is not JSON"),
        ("c", "dead", "position 3: it has died"),
        ("d", "defective", "operand x is gone"),
        ("e", "scored", None),
    ]
    assert [len(o.tally.accepted) for o in found] == [5, 0, 0, 0, 5]
    # what came between has left nothing
    assert found[0].tally.accepted == found[4].tally.accepted


def test_a_drafter_that_does_not_fit_refuses_all(states: States) -> None:
    run = open_run(states("rows"), RunOptions())
    with pytest.raises(UsageError, match="only 3 layers"):
        observe_acceptance(run, [Entry("a", (1, 2))], "depth:7", 2, SilentProgress())


def cost_of(draft: float = 1.0) -> DraftCost:
    step = StepCost(1, 100, 80, 40)
    return DraftCost("x", step, step, draft, 4.0, 1.0, {1: 4.0, 2: 6.0, 5: 9.0})


def test_costs_are_put_together() -> None:
    cost = cost_of()
    assert (cost.bytes_ratio, cost.time_ratio, cost.target.head_share) == (1.0, 0.25, 0.5)
    assert [cost.verify(n) for n in (1, 2, 3, 4, 5)] == [4.0, 6.0, 7.0, 8.0, 9.0]
    assert cost.block(4) == 4 + 9 and cost.break_even(4) == 13 / 4 - 1
    tally = Tally()
    for proposed, accepted in ((4, 4), (4, 0), (0, 0)):
        tally.add(proposed, accepted, 9.9)
    assert expected_speedup(tally, cost) == pytest.approx((4 + 3) * 4.0 / (13 + 13 + 4))


@pytest.mark.parametrize("name", ["depth:1", "depth:2", "ngram", "container"])
def test_a_probe_tells_bytes_by_the_plan(states: States, name: str) -> None:
    container = states("rows")
    run = open_run(container, RunOptions())
    wanted = f"container:{container.path}" if name == "container" else name
    found = probe(run, wanted, 4)
    assert sorted(found.block_seconds) == [1, 2, 3, 5]
    assert found.draft_seconds > 0 and found.head_seconds > 0 and found.target_seconds > 0
    assert found.target == operand_cost(run.prepared)
    assert found.target.reads == run.prepared.reads
    if name == "ngram":
        assert found.draft is None and found.bytes_ratio == 0.0
        return
    assert found.draft is not None
    layers = int(name[-1]) if name.startswith("depth") else 3
    draft = open_run(container, RunOptions(draft_depth=layers)).prepared
    assert (found.draft.reads, found.draft.stored_bytes) == (draft.reads, draft.bytes_read)
    assert found.draft.step_bytes < found.draft.stored_bytes  # one row of the embedding
    assert (found.bytes_ratio == 1.0) == (layers == 3)
