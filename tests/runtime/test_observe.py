"""Observation changes nothing, and what it tells does not depend on how the run was cut."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import UsageError
from larql.format.container import Container
from larql.format.source.families import FAMILIES
from larql.runtime.backends.registry import make_backend
from larql.runtime.observe.basis import seeded_basis
from larql.runtime.observe.declaration import Declaration, Extent
from larql.runtime.observe.events import (
    CarrierWrite,
    Event,
    HeadNorms,
    Pattern,
    PositionDone,
    Readout,
    Restored,
    RoutingTrace,
    Truncated,
)
from larql.runtime.observe.lens import Lens, lens_layers
from larql.runtime.observe.observation import Observation
from larql.runtime.observe.run import observe
from larql.runtime.prepared import prepare
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.slices import LayerRange
from larql.runtime.taps import Routing
from tests.builders.containers import copy_container, edit_graph, make_container
from tests.oracles.recorded import NAMES, OWN
from tests.runtime.observing import Events, Means, Rows, everything, readouts, recorded
from tests.runtime.test_invariants import TOKENS, all_logits, assert_same_bits, run_of

pytestmark = pytest.mark.slow(45)


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


def record_in_chunks(container: Container, numerics: str, chunk: int | None) -> bytes:
    backend, activations, kv = (*numerics.split(), "f32", "f32")[:3]
    options = RunOptions(backend=backend, chunk=chunk, activations=activations, kv=kv)
    run = open_run(container, options)
    return recorded(run, TOKENS * 3, everything(run), generate=4)[0]


@pytest.fixture(scope="module")
def whole_record() -> Callable[[Container, str], bytes]:
    """The record of a run whose chunks nobody chose, made once."""

    @cache
    def made(container: Container, numerics: str) -> bytes:
        return record_in_chunks(container, numerics, None)

    return made


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_change_no_byte_of_a_record(
    container: Container,
    numerics: str,
    chunk: int,
    whole_record: Callable[[Container, str], bytes],
) -> None:
    assert record_in_chunks(container, numerics, chunk) == whole_record(container, numerics)


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
        record=lambda: (Path("memory"), stream),
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
    last = max(event.write for event in readouts(sink))
    rows: list[Any] = [event.values for event in readouts(sink) if event.write == last]
    assert_same_bits(np.array([row["logits"] for row in rows], np.float32), plain)
    sums = run.prepared.backend.log_sum_exp(plain)
    for row, logits, total in zip(rows, plain, sums, strict=True):
        order = np.lexsort((np.arange(len(logits)), -logits))
        assert [token for token, _, _ in row["top"]] == order[:6].tolist()
        assert [logit for _, logit, _ in row["top"]] == logits[order[:6]].tolist()
        ranks = np.array(row["ranks"])
        assert (ranks[order] == np.arange(1, len(logits) + 1)).all()
        np.testing.assert_allclose(row["log_probabilities"], logits - total, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def scaled(containers: dict[str, Container], tmp_path_factory: pytest.TempPathFactory) -> Container:
    """A container whose blocks are scaled and whose logits are multiplied and capped."""
    at = copy_container(containers["llama"].path, tmp_path_factory.mktemp("scaled") / "x.vindex3")

    def change(graph: Any) -> None:
        component = graph["components"][0]
        component["head"] |= {"softcap": 30.0, "multiplier": 0.125}
        for layer in component["layers"]:
            for block in layer["blocks"]:
                block["residual_scale"] = 0.22

    return Container(edit_graph(at, change))


def test_the_last_lens_is_the_logits_through_scales_and_a_softcap(
    scaled: Container, numerics: str
) -> None:
    test_the_last_lens_is_the_logits(scaled, numerics)
    test_probabilities_sum_to_one_at_every_depth(scaled, numerics)
    run = run_of(scaled, numerics)
    plain = all_logits(run, TOKENS)
    assert np.abs(plain).max() < 30.0
    other = run_of(scaled, numerics)
    session = Session(
        other.prepared, 64, None, Observation(other.prepared, Declaration(), Events())
    )
    assert_same_bits(session.logits(session.advance(TOKENS)), plain)


def test_every_family_of_the_build_is_observed(containers: dict[str, Container]) -> None:
    """Tests here run on each of these containers, those of oracles on every other family."""
    names = (*containers, *NAMES)
    for family in FAMILIES:
        assert any(name.startswith(family.name.rstrip("0123456789")) for name in names), family.name


def test_probabilities_sum_to_one_at_every_depth(container: Container, numerics: str) -> None:
    run = run_of(container, numerics)
    plan = run.prepared.plan
    tokens = list(range(plan.component.vocab_size))
    lens = Lens(run.prepared, plan.executed_layers, attention=True, tokens=tokens)
    sink = Events()
    session = Session(run.prepared, 64, None, Observation(run.prepared, Declaration((lens,)), sink))
    session.advance(TOKENS[:5])
    assert len(readouts(sink)) == 5 * 2 * len(plan.layers)
    for event in readouts(sink):
        total = np.exp(event.values["log_probabilities"]).sum()  # type: ignore[call-overload]
        assert abs(total - 1.0) < 1e-12


def test_a_draft_is_observed_as_what_it_is(containers: dict[str, Container]) -> None:
    """The lens at the end of layer n - 1 of the whole model is the logits of the draft of n."""
    full = run_of(containers["llama"], "production")
    draft = run_of(containers["llama"], "production", 2)
    sink = Events()
    declared = Declaration((Lens(full.prepared, [1], tokens=list(range(256))),))
    session = Session(full.prepared, 64, None, Observation(full.prepared, declared, sink))
    session.advance(TOKENS)
    rows = [event.values["logits"] for event in readouts(sink)]
    assert_same_bits(np.array(rows, np.float32), all_logits(draft, TOKENS))


def test_events_are_lossless_and_in_order(container: Container) -> None:
    """Of each position: writes in execution order, each with what belongs to it, then its end."""
    run = run_of(container, "production")
    sink = Events()
    session = Session(run.prepared, 64, None, Observation(run.prepared, everything(run), sink))
    session.advance(TOKENS[:3])
    expected: list[tuple[object, ...]] = []
    for position in range(3):
        expected.append((CarrierWrite, position, 0))
        for w in range(1, 1 + 2 * len(run.prepared.plan.layers)):
            at = (position, w)
            expected.append((CarrierWrite, *at))
            if w % 2:
                expected += [(HeadNorms, *at), (Pattern, *at)]
            expected.append((Readout, *at, "lens"))
            if w % 2:
                expected.append((Readout, *at, "means"))
        expected.append((PositionDone, position, TOKENS[position]))
    assert [_shape(event) for event in sink.all] == expected


def _shape(event: Event) -> tuple[object, ...]:
    match event:
        case PositionDone():
            return (PositionDone, event.position, event.token)
        case Readout():
            return (Readout, event.position, event.write, event.reader)
        case CarrierWrite() | HeadNorms() | Pattern():
            return (type(event), event.position, event.write)
    raise AssertionError(event)


def test_writes_sum_to_the_carrier(containers: dict[str, Container]) -> None:
    """What is told of a write is the carrier after it less the carrier before it."""
    run = run_of(containers["llama"], "production")
    seen: list[Rows] = []

    class Spy(Observation):
        def saw(self, start, tokens, taps, state):  # type: ignore[no-untyped-def]
            seen.append(taps.carriers.copy())
            super().saw(start, tokens, taps, state)

    sink = Events()
    hidden = run.prepared.plan.component.hidden_size
    declared = Declaration(basis=seeded_basis(2, hidden, 1))
    session = Session(run.prepared, 64, None, Spy(run.prepared, declared, sink))
    carrier = session.advance(TOKENS[:6])
    planes = seen[0].astype(np.float64)
    assert_same_bits(seen[0][-1], carrier)
    writes = {(e.position, e.write): e for e in sink.all if isinstance(e, CarrierWrite)}
    deltas = np.diff(planes, axis=0, prepend=0.0)
    np.testing.assert_array_equal(deltas.sum(axis=0).astype(np.float32), carrier)
    for w in range(len(planes)):
        for t in range(6):
            event = writes[t, w]
            assert event.carrier == pytest.approx(np.linalg.norm(planes[w, t]), rel=1e-6)
            assert event.delta == pytest.approx(np.linalg.norm(deltas[w, t]), rel=1e-6)
            expected = declared.basis.rows.astype(np.float64) @ planes[w, t]  # type: ignore[union-attr]
            assert event.projection == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["llama", "gemma", "llama3", "inkling-dense"])
def test_patterns_and_heads_agree_with_the_reference(
    containers: dict[str, Container], tmp_path: Path, name: str
) -> None:
    found = {}
    container = containers.get(name) or make_container(OWN / name / "checkpoint", tmp_path / "c")
    for backend in ("production", "reference"):
        run = run_of(container, backend)
        sink = Events()
        observation = Observation(run.prepared, Declaration(head_norms=True, patterns=True), sink)
        Session(run.prepared, 64, 9, observation).advance([token % 90 for token in TOKENS[:20]])
        found[backend] = sink
    pairs = zip(found["production"].all, found["reference"].all, strict=True)
    patterns = 0
    for fast, exact in pairs:
        if isinstance(fast, Pattern) and isinstance(exact, Pattern):
            patterns += 1
            assert (fast.first, fast.position) == (exact.first, exact.position)
            np.testing.assert_allclose(fast.weights, exact.weights, atol=2e-4)
            np.testing.assert_allclose(np.sum(fast.weights, axis=1), 1.0, atol=1e-5)  # type: ignore[arg-type]
        elif isinstance(fast, HeadNorms) and isinstance(exact, HeadNorms):
            np.testing.assert_allclose(fast.norms, exact.norms, rtol=1e-3)  # type: ignore[arg-type]
    assert patterns == 20 * len(run.prepared.plan.layers)


@pytest.mark.parametrize("name", ["gemma", "inkling-dense"])
def test_patterns_are_what_attention_used(
    containers: dict[str, Container], tmp_path: Path, name: str
) -> None:
    """Weights times values are the heads' outputs, whose norms are told."""
    container = containers.get(name) or make_container(OWN / name / "checkpoint", tmp_path / "c")
    run = run_of(container, "production")
    seen: list[tuple[Rows, Rows, Rows]] = []
    keep: list[tuple[tuple[float, ...], ...]] = []

    class Spy(Observation):
        def saw(self, start, tokens, taps, state):  # type: ignore[no-untyped-def]
            snapshot = state.regions[0].snapshot(start + taps.carriers.shape[1])
            seen.append((taps.blocks[0].heads.copy(), snapshot.positions, snapshot.values.copy()))
            super().saw(start, tokens, taps, state)

    sink = Events()
    declared = Declaration(head_norms=True, patterns=True)
    session = Session(run.prepared, 64, None, Spy(run.prepared, declared, sink))
    session.advance([token % 90 for token in TOKENS[:3]])
    for event in sink.all:
        if isinstance(event, Pattern) and event.write == 1:
            keep.append(event.weights)  # type: ignore[arg-type]
    heads, _, values = seen[0]
    each = np.repeat(values, heads.shape[1] // values.shape[1], axis=1)
    for t, weights in enumerate(keep):
        mixed = np.einsum("hn,nhd->hd", np.array(weights), each[: t + 1])
        np.testing.assert_allclose(mixed, heads[t], atol=1e-5)


def test_readers_need_only_the_protocol(containers: dict[str, Container]) -> None:
    run = run_of(containers["llama"], "production")
    means = Means()
    data, found = recorded(run, TOKENS, Declaration(readers=(means,)))
    assert found.receipt.readers == {"means": {"calls": 1}}
    assert means.calls == [3 * len(TOKENS)]
    assert data.count(b'"reader":"means"') == 3 * len(TOKENS)


def test_the_head_is_streamed_once_for_all_armed_rows(containers: dict[str, Container]) -> None:
    """Passes do not hang on chunks: as many positions as fill 256 rows, or one."""
    for chunk in (1, 5, 64):
        run = open_run(containers["llama"], RunOptions(chunk=chunk))
        lens = Lens(run.prepared, [0, 1, 2], attention=True)
        _, found = recorded(run, (TOKENS * 3)[:70], Declaration((lens,)), generate=3)
        # 6 rows a position: 42 and 22 positions of the first step, 6 of the second, 2 of one.
        assert found.receipt.readers["lens"] == {
            "head_passes": 5,
            "rows": 6 * 72,
            "failure": None,
        }


def test_a_failing_lens_ends_on_the_receipt_and_not_the_run(
    containers: dict[str, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(containers["llama"], "production")
    plain = recorded(run, TOKENS, Declaration())[1]
    broken = run.prepared.backend.read_out
    calls: list[int] = []

    def breaks(op, carrier, tokens, top):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError("no room")
        carrier = carrier.copy()
        carrier[1] = np.nan
        return broken(op, carrier, tokens, top)

    monkeypatch.setattr(run.prepared.backend, "read_out", breaks)
    lens = Lens(run.prepared, [1, 2])
    data, found = recorded(run, (TOKENS * 4)[:129], Declaration((lens,)))
    assert found.receipt.complete
    assert found.receipt.readers["lens"]["failure"] == {  # type: ignore[index]
        "position": 0,
        "layer": 1,
        "site": "ffn",
        "reason": "MemoryError: no room",
    }
    # All rows of the first pass, one of each later pass.
    assert data.count(b'"readout"') == 2 * 129 - 128 - 2
    calls.append(1)
    lens = Lens(run.prepared, [1, 2])
    _, found = recorded(run, TOKENS, Declaration((lens,)))
    assert found.receipt.readers["lens"]["failure"] == {  # type: ignore[index]
        "position": 0,
        "layer": 2,
        "site": "ffn",
        "reason": "256 of the logits are not finite",
    }
    assert_same_bits(found.logits, plain.logits)


def test_a_failed_step_tells_nothing(
    containers: dict[str, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(containers["llama"], "production")
    sink = Events()
    observation = Observation(run.prepared, everything(run), sink)
    session = Session(run.prepared, 64, 4, observation)
    session.advance(TOKENS[:9])
    told = list(sink.all)
    backend = run.prepared.backend
    original, calls = backend.advance, []

    def breaks_in_the_third_block(*arguments):  # type: ignore[no-untyped-def]
        calls.append(1)
        found = original(*arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(backend, "advance", breaks_in_the_third_block)
    with pytest.raises(KeyboardInterrupt):
        session.advance(TOKENS[9:29])
    monkeypatch.setattr(backend, "advance", original)
    assert sink.all == told
    session.advance(TOKENS[9:29])
    straight = Events()
    observation = Observation(run.prepared, everything(run), straight)
    Session(run.prepared, 64, 4, observation).advance(TOKENS[:29])
    assert sink.all == straight.all
    assert sink.flushed == len(sink.all)


def test_restoring_and_truncating_are_told(containers: dict[str, Container]) -> None:
    run = run_of(containers["llama"], "production")
    sink = Events()
    session = Session(run.prepared, 64, None, Observation(run.prepared, Declaration(), sink))
    session.advance(TOKENS[:5])
    snapshot = session.snapshot()
    session.advance(TOKENS[5:7])
    session.restore(snapshot)
    session.truncate(3)
    assert sink.of(Restored) == [Restored(5, snapshot.sha256())]
    assert sink.all[-1] == Truncated(3)


def test_the_state_can_be_intervened_on(container: Container, numerics: str) -> None:
    """A restored snapshot is what it was; one with other values gives another answer."""
    run = run_of(container, numerics)
    session = run.session(64)
    session.advance(TOKENS[:6])
    snapshot = session.snapshot()
    plain = session.step([TOKENS[6]])
    last = len(snapshot.regions) - 1
    rows = snapshot.regions[last]
    session.restore(snapshot.changed(last, keys=rows.keys, values=rows.values))
    assert_same_bits(session.step([TOKENS[6]]), plain)
    other = snapshot.changed(last, keys=rows.keys, values=np.zeros_like(rows.values))
    assert other.sha256() != snapshot.sha256()
    session.restore(other)
    assert (session.step([TOKENS[6]]) != plain).any()
    with pytest.raises(UsageError, match=f"region {last} holds keys"):
        snapshot.changed(last, keys=rows.keys[:1], values=rows.values)


def test_a_layer_range_is_observed_without_tokens(containers: dict[str, Container]) -> None:
    prepared = prepare(containers["llama"], "target", LayerRange(1, 3), make_backend("production"))
    sink = Events()
    session = Session(prepared, 8, None, Observation(prepared, Declaration(), sink))
    session.advance_hidden(np.ones((2, 64), np.float32))
    assert sink.of(PositionDone) == [PositionDone(0, None), PositionDone(1, None)]
    with pytest.raises(UsageError, match="a lens needs a head"):
        Lens(prepared, [1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", (0, 1, 2)),
        ("none", ()),
        ("every:1", (0, 1, 2)),
        ("every:2", (0, 2)),
        ("every:9", (2,)),
        ("2,0", (0, 2)),
    ],
)
def test_layers_of_a_lens(
    containers: dict[str, Container], text: str, expected: tuple[int, ...]
) -> None:
    assert lens_layers(text, run_of(containers["llama"], "reference").prepared.plan) == expected


@pytest.mark.parametrize("text", ["", "every:0", "every:", "1,", "-1", "first", "0:2", "every:x"])
def test_what_names_no_layers(containers: dict[str, Container], text: str) -> None:
    with pytest.raises(UsageError, match="names no layers"):
        lens_layers(text, run_of(containers["llama"], "reference").prepared.plan)


def test_layers_that_are_not_executed(containers: dict[str, Container]) -> None:
    plan = run_of(containers["llama"], "reference", 2).prepared.plan
    with pytest.raises(UsageError, match="layer 2 is not executed"):
        lens_layers("2", plan)


def test_routing_is_recorded_as_an_event(containers: dict[str, Container]) -> None:
    """A block that routes sets its taps' routing; nothing else is asked of it."""
    run = run_of(containers["llama"], "production")
    backend = run.prepared.backend
    original = backend.write
    scores = np.array([[2, 1, 0, -1], [0, 0, 0, 0]], np.float32)

    def routes(block, carrier, regions, start, taps, tokens, notes):  # type: ignore[no-untyped-def]
        if block.site == "ffn":
            chosen = np.array([[0, 1], [0, 1]])
            weights = np.array([[0.7311, 0.2689], [0.5, 0.5]], np.float32)
            taps.routing = Routing(scores, chosen, weights)
        return original(block, carrier, regions, start, taps, tokens, notes)

    sink = Events()
    session = Session(run.prepared, 8, None, Observation(run.prepared, Declaration(), sink))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "write", routes)
        session.advance(TOKENS[:2])
    traces = sink.of(RoutingTrace)
    assert len(traces) == 2 * 3
    first = traces[0]
    assert first == RoutingTrace(0, 2, (2.0, 1.0, 0.0, -1.0), (0, 1), (0.7311, 0.2689), 1.0)
    assert traces[-1].margin == 0.0  # type: ignore[union-attr]
