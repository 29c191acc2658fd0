"""Observation changes nothing, and what it tells does not depend on how the run was cut."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.container import Container
from larql.runtime.observe.basis import seeded_basis
from larql.runtime.observe.declaration import Declaration, Extent
from larql.runtime.observe.events import (
    Event,
    Readout,
)
from larql.runtime.observe.lens import Lens
from larql.runtime.observe.observation import Observation
from larql.runtime.observe.readers import ArmedRows
from larql.runtime.observe.run import Observed, observe
from larql.runtime.observe.sites import WriteSite
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.session import Session
from tests.runtime.test_invariants import TOKENS, all_logits, assert_same_bits, run_of

Rows = npt.NDArray[np.float32]


class Events:
    """A sink that keeps all."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self.flushed = 0

    def take(self, event: Event) -> None:
        self.all.append(event)

    def flush(self) -> None:
        self.flushed = len(self.all)

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.all if isinstance(event, kind)]


class Means:
    """A second reader: it tells the mean of a carrier, and knows nothing of heads."""

    name = "means"

    def __init__(self) -> None:
        self.calls: list[int] = []

    def declaration(self) -> Mapping[str, object]:
        return {"of": "carrier"}

    def arms(self, site: WriteSite) -> bool:
        return site.site == "attention"

    def read(self, rows: ArmedRows) -> Sequence[Mapping[str, object] | None]:
        self.calls.append(len(rows.carriers))
        return [{"mean": float(row.astype(np.float64).mean())} for row in rows.carriers]

    def receipt(self) -> Mapping[str, object]:
        return {"calls": len(self.calls)}


def everything(run: Run) -> Declaration:
    layers = run.prepared.plan.executed_layers
    return Declaration(
        readers=(Lens(run.prepared, layers, attention=True, tokens=[3, 250], top=4), Means()),
        basis=seeded_basis(3, run.prepared.plan.component.hidden_size, 7),
        head_norms=True,
        patterns=True,
    )


def recorded(
    run: Run, tokens: Sequence[int], declaration: Declaration, generate: int = 0
) -> tuple[bytes, Observed]:
    stream = io.BytesIO()
    found = observe(
        run,
        Extent(tuple(tokens), generate, top=3),
        declaration,
        [],
        context=len(tokens) + generate,
        record=(Path("memory"), stream),
    )
    return stream.getvalue(), found


def test_observed_logits_are_the_unobserved_ones(container: Container, numerics: str) -> None:
    run = run_of(container, numerics)
    plain = all_logits(run, TOKENS)
    session = Session(run.prepared, 64, None, Observation(run.prepared, everything(run), Events()))
    assert_same_bits(session.logits(session.advance(TOKENS)), plain)


def test_observed_single_steps_are_the_unobserved_ones(container: Container, numerics: str) -> None:
    """Steps of one position run as recorded programs, also when observed."""
    run = run_of(container, numerics)
    plain = all_logits(run, TOKENS)
    sink = Events()
    session = Session(run.prepared, 64, None, Observation(run.prepared, everything(run), sink))
    session.advance(TOKENS[:3])
    for position in range(3, 12):
        assert_same_bits(session.step([TOKENS[position]]), plain[position])
    # Back to a block, which must not take the recorded step's taps away.
    carrier = session.advance(TOKENS[12:17])
    assert_same_bits(session.logits(carrier), plain[12:17])
    for position in range(17, 20):
        assert_same_bits(session.step([TOKENS[position]]), plain[position])
    whole = Events()
    other = Session(run.prepared, 64, None, Observation(run.prepared, everything(run), whole))
    other.advance(TOKENS[:20])
    assert sink.all == whole.all


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_change_no_byte_of_a_record(container: Container, numerics: str, chunk: int) -> None:
    backend, _, activations = numerics.partition(" ")
    tokens = [*TOKENS, *TOKENS, *TOKENS]
    records = []
    for wanted in (None, chunk):
        options = RunOptions(backend=backend, chunk=wanted, activations=activations or "f32")
        run = open_run(container, options)
        records.append(recorded(run, tokens, everything(run), generate=4)[0])
    assert records[0] == records[1]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_byte_of_a_record(container: Container, threads: int) -> None:
    records = []
    for count in (2, threads):
        run = open_run(container, RunOptions(threads=count))
        records.append(recorded(run, TOKENS, everything(run), generate=2)[0])
    assert records[0] == records[1]


def test_the_context_changes_no_byte_of_a_record(container: Container) -> None:
    run = run_of(container, "production")
    stream = io.BytesIO()
    observe(
        run,
        Extent(tuple(TOKENS), 0, top=3),
        everything(run),
        [],
        context=300,
        record=(Path("memory"), stream),
    )
    assert stream.getvalue() == recorded(run, TOKENS, everything(run))[0]


def test_the_last_lens_is_the_logits(container: Container, numerics: str) -> None:
    run = run_of(container, numerics)
    plan = run.prepared.plan
    vocabulary = list(range(plan.component.vocab_size))
    lens = Lens(run.prepared, plan.executed_layers, tokens=vocabulary, top=6)
    sink = Events()
    session = Session(run.prepared, 64, None, Observation(run.prepared, Declaration((lens,)), sink))
    plain = all_logits(run, TOKENS)
    session.advance(TOKENS)
    last = max(event.write for event in sink.of(Readout))  # type: ignore[attr-defined]
    rows = [e.values for e in sink.of(Readout) if e.write == last]  # type: ignore[attr-defined]
    assert_same_bits(np.array([row["logits"] for row in rows], np.float32), plain)
    sums = run.prepared.backend.log_sum_exp(plain)
    for row, logits, total in zip(rows, plain, sums, strict=True):
        order = np.lexsort((np.arange(len(logits)), -logits))
        assert [token for token, _, _ in row["top"]] == order[:6].tolist()
        assert [logit for _, logit, _ in row["top"]] == logits[order[:6]].tolist()
        ranks = np.array(row["ranks"])
        assert (ranks[order] == np.arange(1, len(logits) + 1)).all()
        np.testing.assert_allclose(row["log_probabilities"], logits - total, rtol=0, atol=1e-12)


def test_probabilities_sum_to_one_at_every_depth(container: Container, numerics: str) -> None:
    run = run_of(container, numerics)
    plan = run.prepared.plan
    tokens = list(range(plan.component.vocab_size))
    lens = Lens(run.prepared, plan.executed_layers, attention=True, tokens=tokens)
    sink = Events()
    session = Session(run.prepared, 64, None, Observation(run.prepared, Declaration((lens,)), sink))
    session.advance(TOKENS[:5])
    readouts = sink.of(Readout)
    assert len(readouts) == 5 * 2 * len(plan.layers)
    for event in readouts:
        total = np.exp(event.values["log_probabilities"]).sum()  # type: ignore[attr-defined]
        assert abs(total - 1.0) < 1e-12


def test_a_draft_is_observed_as_what_it_is(containers: dict[str, Container]) -> None:
    """The lens at the end of layer n - 1 of the whole model is the logits of the draft of n."""
    full, draft = (
        run_of(containers["llama"], "production"),
        run_of(containers["llama"], "production", 2),
    )
    vocabulary = list(range(256))
    sink = Events()
    lens = Lens(full.prepared, [1], tokens=vocabulary)
    session = Session(
        full.prepared, 64, None, Observation(full.prepared, Declaration((lens,)), sink)
    )
    session.advance(TOKENS)
    found = np.array([e.values["logits"] for e in sink.of(Readout)], np.float32)  # type: ignore[attr-defined]
    assert_same_bits(found, all_logits(draft, TOKENS))
