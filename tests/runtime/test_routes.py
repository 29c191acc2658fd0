"""Routes to experts: one interface, equal bits by every way, and shards that make the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from larql.errors import BindingDefect, Coordinates, ResidencyRefusal, UsageError
from larql.format.container import Container, verify_container
from larql.format.progress import SilentProgress
from larql.runtime.expert_access import ExpertAccess
from larql.runtime.routes import (
    Done,
    InProcess,
    NotApplicable,
    Part,
    Refused,
    ShardedExperts,
    Wanted,
)
from larql.runtime.run import RunOptions, open_run
from tests.builders.expert_banks import Spec, Weights, weights, write

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
SPEC = Spec(8, 2, 32, 64, form="halves", layers=2, encoding="q8_0")
ARMS = [("production", "f32"), ("production", "q8"), ("reference", "f32")]


@pytest.fixture(scope="module")
def model() -> Weights:
    return weights(SPEC)


@pytest.fixture(scope="module")
def whole(model: Weights, tmp_path_factory: pytest.TempPathFactory) -> Container:
    return write(model, tmp_path_factory.mktemp("whole") / "c")


@pytest.fixture(scope="module")
def shards(model: Weights, tmp_path_factory: pytest.TempPathFactory) -> list[Container]:
    at = tmp_path_factory.mktemp("shards")
    return [
        write(model, at / f"{first}", experts=(first, end))
        for first, end in ((0, 3), (3, 4), (4, 8))
    ]


def logits(
    container: Container, access: ExpertAccess, chunk: int | None = None, **arm: str
) -> bytes:
    run = open_run(container, RunOptions(experts=access, chunk=chunk, **arm))  # type: ignore[arg-type]
    session = run.session(len(TOKENS))
    return session.logits(session.advance(TOKENS)).tobytes()


@pytest.mark.parametrize(("backend", "activations"), ARMS)
def test_every_route_gives_the_bits_of_no_route(
    whole: Container, shards: list[Container], backend: str, activations: str
) -> None:
    arm = {"backend": backend, "activations": activations}
    plain = logits(whole, ExpertAccess(), **arm)
    for chunk in (None, 1, 3):
        assert logits(whole, ExpertAccess(in_process=True), chunk, **arm) == plain
        for own, others in ((shards[0], shards[1:]), (shards[2], shards[:2])):
            access = ExpertAccess(shards=tuple(others), in_process=chunk == 3)
            assert logits(own, access, chunk, **arm) == plain
    part = ExpertAccess(shard=(0, 3), shards=(shards[1], shards[2]))
    assert logits(whole, part, **arm) == plain


def test_shards_are_whole_containers_that_say_what_they_lack(shards: list[Container]) -> None:
    for shard in shards:
        assert verify_container(shard, SilentProgress()) == []


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_an_expert_that_is_not_bound_is_refused_with_its_coordinates(
    whole: Container, shards: list[Container], backend: str
) -> None:
    full = open_run(whole, RunOptions(backend=backend))
    assert full.prepared.reads == 3 + 2 + 2 * 2 * 8
    part = open_run(whole, RunOptions(backend=backend, experts=ExpertAccess(shard=(2, 6))))
    session = part.session(len(TOKENS))
    with pytest.raises(ResidencyRefusal, match=r"layer 0: entry \d of bank 0") as caught:
        session.advance(TOKENS)
    at = caught.value.at
    assert at is not None and at.entry not in range(2, 6)
    assert at == Coordinates(0, 0, at.entry, "gate_up_fused", None)
    assert "experts 2:6 of 8 are bound" in str(caught.value)
    segmented = open_run(shards[2], RunOptions(backend=backend)).session(len(TOKENS))
    with pytest.raises(ResidencyRefusal) as caught:
        segmented.advance(TOKENS)
    found = caught.value.at
    assert found is not None and found.segment is not None and found.entry < 4


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_a_container_of_which_no_expert_is_bound_refuses_by_name(
    shards: list[Container], backend: str
) -> None:
    none = ExpertAccess(shard=(0, 3))
    run = open_run(shards[2], RunOptions(backend=backend, experts=none))
    with pytest.raises(ResidencyRefusal, match="experts none of 8 are bound"):
        run.session(len(TOKENS)).advance(TOKENS)


def test_ranges_and_shards_that_do_not_fit_are_refused(
    whole: Container, shards: list[Container], tmp_path: Path
) -> None:
    def bind(access: ExpertAccess, own: Container = whole) -> None:
        open_run(own, RunOptions(backend="reference", experts=access))

    with pytest.raises(UsageError, match="layer 0 has experts 0 to 7"):
        bind(ExpertAccess(shard=(0, 9)))
    with pytest.raises(BindingDefect, match=r"expert 3 is in .* and in .*; give each"):
        bind(ExpertAccess(shards=(shards[1],)))
    other = write(weights(SPEC, seed=6), tmp_path / "other", experts=(3, 4))
    with pytest.raises(BindingDefect, match="it is not a shard of this model"):
        bind(ExpertAccess(shards=(other,)), shards[0])


class Numbers:
    """A route whose experts give their own number, and which has some of them."""

    def __init__(self, resident: list[int]) -> None:
        self.resident = np.isin(np.arange(6), resident)
        self.asked: list[list[int]] = []

    def dispatch(self, wanted: Wanted) -> Done | NotApplicable | Refused:
        self.asked.append(wanted.experts.tolist())
        if not len(wanted.experts):
            return NotApplicable()
        missing = [
            (n, ResidencyRefusal(f"expert {e}"))
            for n, e in enumerate(wanted.experts.tolist())
            if not (0 <= e < 6 and self.resident[e])
        ]
        if missing:
            return Refused(tuple(missing))
        rows = wanted.experts[:, None] + wanted.inputs[wanted.positions]
        return Done(rows[::-1], np.arange(len(rows))[::-1])


def wanted(*experts: int) -> Wanted:
    chosen = np.array(experts, np.int64)
    return Wanted(np.zeros((1, 3)), chosen, np.zeros(len(chosen), np.int64))


def test_outcomes_of_parts_become_one() -> None:
    parts = [Numbers([0, 1]), Numbers([4]), Numbers([2, 3])]
    routes = [Part(str(n), part, part.resident) for n, part in enumerate(parts)]
    route = ShardedExperts(routes, "here")
    outcome = route.dispatch(wanted(3, 0, 4, 2))
    assert isinstance(outcome, Done)
    assert outcome.rows[outcome.places][:, 0].tolist() == [3, 0, 4, 2]
    assert [part.asked for part in parts] == [[[0]], [[4]], [[3, 2]]]
    assert route.dispatch(wanted()) == NotApplicable()
    refused = route.dispatch(wanted(3, 5, -1, 0))
    assert isinstance(refused, Refused)
    assert [(place, str(error)) for place, error in refused.refusals] == [
        (1, "expert 5"), (2, "expert -1")
    ]  # fmt: skip
    assert isinstance(InProcess(route).dispatch(wanted(5)), Refused)
    sent = InProcess(route).dispatch(wanted(4, 1))
    assert isinstance(sent, Done) and sent.rows[sent.places][:, 0].tolist() == [4, 1]
    with pytest.raises(BindingDefect, match="here: expert 4 is in 1 and in 3"):
        ShardedExperts([*routes, Part("3", parts[1], parts[1].resident)], "here")
