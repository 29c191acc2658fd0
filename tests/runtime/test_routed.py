"""Routed layers at run time: what is told of the choice, what is refused, and equal bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import BindingDefect, ResidencyRefusal
from larql.format.container import Container
from larql.kernels.program import Program
from larql.runtime.bench.cost import weight_bytes
from larql.runtime.expert_access import ExpertAccess
from larql.runtime.observe.declaration import Declaration
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.builders.containers import copy_container, make_container, vouch_for
from tests.builders.experts import clamped
from tests.runtime.observing import ExpertTraces, recorded

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
BACKENDS = pytest.mark.parametrize("backend", ["production", "reference"])


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    at = tmp_path_factory.mktemp("routed")
    return make_container(clamped(at / "m", "mxfp4"), at / "c")


def routing(container: Container, backend: str, **options: Any) -> list[dict[str, Any]]:
    run = open_run(container, RunOptions(backend=backend, **options))
    record, _ = recorded(run, TOKENS, Declaration(readers=()), generate=2)
    lines = [json.loads(line) for line in record.decode().splitlines()]
    return [line for line in lines if line.get("kind") == "routing"]


def test_the_choice_of_every_position_is_recorded(container: Container) -> None:
    found = routing(container, "production")
    assert len(found) == 2 * (len(TOKENS) + 1)
    for line in found:
        assert len(line["chosen"]) == len(line["weights"]) == 2
        assert len(set(line["chosen"])) == 2
        assert line["weights"][0] >= line["weights"][1] > 0
        assert line["margin"] > 0
        assert sum(line["weights"]) == pytest.approx(1.0, abs=1e-6)
    assert len({tuple(line["chosen"]) for line in found}) > 1
    same = routing(container, "reference")
    assert [line["chosen"] for line in same] == [line["chosen"] for line in found]
    for a, b in zip(found, same, strict=True):
        assert a["weights"] == pytest.approx(b["weights"], rel=1e-4)


@pytest.mark.parametrize("activations", ["f32", "q8"])
def test_positions_together_are_positions_alone(container: Container, activations: str) -> None:
    """A product's rows do not hang on how many positions chose the expert."""
    whole, tokens = None, [*TOKENS, *range(20, 32)]
    for chunk in (None, 1, 3, 8, 9):
        run = open_run(container, RunOptions(activations=activations))
        session = Session(run.prepared, len(tokens), chunk)
        carrier = session.advance(tokens)
        if whole is None:
            whole = carrier
        assert carrier.tobytes() == whole.tobytes()


@BACKENDS
def test_scores_that_are_no_numbers_are_refused_and_the_step_undone(
    container: Container, tmp_path: Path, backend: str
) -> None:
    damaged = copy_container(container.path, tmp_path / "c")
    name = "segments/target.layer.001.safetensors"
    segment = container.segment(name)
    entry = segment.header.entries["ffn.router.bias"]
    data = bytearray((damaged / name).read_bytes())
    at = segment.header.data_start + entry.begin
    data[at : at + 4] = np.float32(np.nan).tobytes()
    (damaged / name).write_bytes(data)
    vouch_for(damaged, name)
    session = Session(
        open_run(Container(damaged), RunOptions(backend=backend)).prepared, len(TOKENS)
    )
    before = session.snapshot().sha256()
    with pytest.raises(BindingDefect, match=r"layer\.001/ffn\.router\.weight: .* not finite"):
        session.advance(TOKENS[:3])
    assert session.position == 0
    assert session.snapshot().sha256() == before


def test_few_positions_are_recorded_where_experts_are_bound_here(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And other ways to experts are walked; what observers see is the same."""
    runs: list[int] = []
    run_program = Program.run
    monkeypatch.setattr(Program, "run", lambda p, at: (runs.append(at), run_program(p, at))[1])
    seen = {}
    for access in (ExpertAccess(), ExpertAccess(in_process=True)):
        run = open_run(container, RunOptions(experts=access))
        traces = ExpertTraces()
        session = run.session(24, traces)
        session.advance(TOKENS)
        rows = [session.step([t]).tobytes() for t in (9, 8, 7)]
        rows += [session.advance(few).tobytes() for few in ([1, 2, 3], [3, 2, 1])]
        seen[access.in_process] = rows, traces.all
        steps = [at for at in runs if at]  # embeddings and heads are recorded at 0
        assert steps == ([] if access.in_process else [8, 9, 10, 14])
        runs.clear()
    assert seen[False] == seen[True]


def test_an_expert_that_a_recorded_step_misses_is_refused_as_by_a_walk(
    container: Container,
) -> None:
    whole = open_run(container, RunOptions()).session(16)
    part = open_run(container, RunOptions(experts=ExpertAccess(shard=(0, 2))))
    assert part.prepared.backend.repeats(1)
    session = part.session(16)
    refused = 0
    for token in (*TOKENS, *range(20, 28)):
        before = session.snapshot().sha256()
        try:
            row = session.step([token])
        except ResidencyRefusal as error:
            assert error.at is not None and error.at.entry == 2
            assert session.snapshot().sha256() == before
            refused += 1
        else:
            assert row.tobytes() == whole.step([token]).tobytes()
    assert 0 < refused < 16


def test_a_step_reads_the_chosen_experts_only(container: Container) -> None:
    run = open_run(container, RunOptions(backend="reference"))
    total = sum(
        value.nbytes
        for value in container.index.representations.values()
        if value.operand != "target.embedding/weight"
    )
    experts = sum(v.nbytes for v in container.index.representations.values() if "experts." in v.id)
    row = 32 * 4
    found = weight_bytes(container.operands, run.prepared.plan)
    assert found == total - experts + experts * 2 // 3 + row
    swept = {contract.name for contract in run.prepared.plan.swept()}
    assert not any("experts." in name for name in swept)
