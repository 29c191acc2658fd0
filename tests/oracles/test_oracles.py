"""Every family against what transformers computed: see docs/testing.md."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from larql.errors import UsageError
from larql.format.source.families import FAMILIES
from larql.format.source.held import reports
from larql.runtime.observe.declaration import Declaration
from larql.runtime.observe.events import Event, Readout
from larql.runtime.observe.lens import Lens
from larql.runtime.observe.observation import Observation
from larql.runtime.planes import SiteWatch
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.oracles.conftest import Case, Float32
from tests.oracles.recorded import NAMES, OWN, ROOT

pytestmark = pytest.mark.slow(20)
CLOSE = 2e-4
"""Of the largest value. float32 arithmetic costs up to 1e-4, the smallest mistake known 0.03."""

EACH = pytest.mark.parametrize("name", NAMES)
BACKENDS = pytest.mark.parametrize("backend", ["production", "reference"])
Cases = Callable[[str], Case]
Prefill = Callable[[str, str], tuple[Float32, Float32]]


def assert_close(found: Float32, expected: Float32) -> None:
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error < CLOSE, f"off by {error:.2g} of the largest value"


def assert_same_bits(a: Float32, b: Float32) -> None:
    assert a.dtype == b.dtype == np.float32
    assert a.tobytes() == b.tobytes()


@EACH
@BACKENDS
def test_logits_and_greedy_tokens_are_the_oracle_s(
    case_of: Cases, prefill: Prefill, name: str, backend: str
) -> None:
    oracle = case_of(name).oracle
    _, logits = prefill(name, backend)
    assert_close(logits[: len(oracle.tokens)], oracle.logits)
    chosen = logits[len(oracle.tokens) - 1 : -1].argmax(axis=1).tolist()
    assert chosen == oracle.greedy


@EACH
@BACKENDS
def test_each_layer_leaves_what_the_oracle_s_leaves_and_observing_changes_nothing(
    case_of: Cases, prefill: Prefill, name: str, backend: str
) -> None:
    case = case_of(name)
    tokens = case.oracle.tokens
    run = case.run(backend)
    watch = SiteWatch(case.context)
    session = Session(run.prepared, case.context, None, watch)
    session.advance(tokens)
    for token in case.oracle.greedy:
        session.advance([token])
    planes = watch.carriers()
    ends = np.cumsum([0, *(len(layer.blocks) for layer in run.prepared.plan.layers)])
    hidden = planes[ends]
    assert len(hidden) == len(case.oracle.hidden)
    for found, expected in zip(hidden, case.oracle.hidden, strict=True):
        assert_close(found[: len(tokens)], expected)
    assert_same_bits(hidden[-1], prefill(name, backend)[0])


@EACH
@BACKENDS
def test_the_lens_at_the_last_site_is_the_logits(
    case_of: Cases, prefill: Prefill, name: str, backend: str
) -> None:
    case = case_of(name)
    run = case.run(backend)
    plan = run.prepared.plan
    vocabulary = list(range(plan.component.vocab_size))
    lens = Lens(run.prepared, plan.executed_layers[-1:], tokens=vocabulary, top=1)
    kept = Readings()
    observation = Observation(run.prepared, Declaration((lens,)), kept)
    session = Session(run.prepared, case.context, None, observation)
    session.advance([*case.oracle.tokens, *case.oracle.greedy])
    assert_same_bits(np.array(kept.rows, np.float32), prefill(name, backend)[1])


class Readings:
    """A sink that keeps the logits of every readout."""

    def __init__(self) -> None:
        self.rows: list[object] = []

    def take(self, event: Event) -> None:
        if isinstance(event, Readout):
            self.rows.append(event.values["logits"])

    def flush(self) -> None:
        pass


@EACH
@pytest.mark.parametrize(
    ("backend", "chunk"), [("production", 1), ("production", 3), ("reference", 1)]
)
def test_steps_equal_the_whole_bit_for_bit(
    case_of: Cases, prefill: Prefill, name: str, backend: str, chunk: int
) -> None:
    case = case_of(name)
    session = case.session(case.run(backend), chunk)
    carrier = session.advance([*case.oracle.tokens, *case.oracle.greedy])
    assert_same_bits(carrier, prefill(name, backend)[0])


@EACH
@BACKENDS
def test_a_container_needs_neither_its_checkpoint_nor_its_family_s_name(
    case_of: Cases, prefill: Prefill, name: str, backend: str
) -> None:
    case = case_of(name)
    run = open_run(case.orphan, RunOptions(backend=backend))
    session = case.session(run)
    carrier = session.advance([*case.oracle.tokens, *case.oracle.greedy])
    assert_same_bits(session.logits(carrier), prefill(name, backend)[1])


@EACH
@BACKENDS
def test_drafts(case_of: Cases, prefill: Prefill, name: str, backend: str) -> None:
    """All layers are the whole model, one less is not; none and one more are refused."""
    case = case_of(name)
    tokens = [*case.oracle.tokens, *case.oracle.greedy]
    depth = case.container.index.num_layers
    whole = prefill(name, backend)[1]
    full = case.session(case.run(backend, depth))
    assert_same_bits(full.logits(full.advance(tokens)), whole)
    shallower = case.session(case.run(backend, depth - 1))
    logits = shallower.logits(shallower.advance(tokens))
    assert np.isfinite(logits).all()
    assert (logits != whole).any(axis=1).all()
    for refused in (0, depth + 1):
        with pytest.raises(UsageError, match=f"draft depth {refused}"):
            case.run(backend, refused)


@EACH
@BACKENDS
def test_restoring_a_snapshot_is_as_if_nothing_had_happened(
    case_of: Cases, prefill: Prefill, name: str, backend: str
) -> None:
    case = case_of(name)
    tokens = [*case.oracle.tokens, *case.oracle.greedy]
    whole, logits = prefill(name, backend)
    half = len(tokens) // 2
    session = case.session(case.run(backend))
    session.advance(tokens[:half])
    snapshot = session.snapshot()
    session.advance(tokens[half:][::-1])
    session.restore(snapshot)
    assert_same_bits(session.step(tokens[half : half + 1]), logits[half])
    session.restore(snapshot)
    assert_same_bits(session.advance(tokens[half:]), whole[half:])


@pytest.mark.skipif(ROOT != OWN, reason="LARQL_TEST_ORACLES names other oracles")
def test_every_oracle_is_as_close_as_is_written(case_of: Cases, prefill: Prefill) -> None:
    """What ``larql models`` tells: see scripts/oracles/results.py."""
    written = {result.oracle: result for report in reports() for result in report.oracles}
    assert sorted(written) == sorted(NAMES), "run python scripts/oracles/results.py"
    for name, result in written.items():
        case = case_of(name)
        data = (OWN / name / "recorded.safetensors").read_bytes()
        assert hashlib.sha256(data).hexdigest() == result.recorded_sha256, name
        assert result.family == case.container.index.family
        for backend, error in result.errors.items():
            logits, expected = prefill(name, backend)[1], case.oracle.logits
            off = np.abs(logits[: len(expected)] - expected).max() / np.abs(expected).max()
            # BLAS may sum otherwise elsewhere.
            assert off <= 2 * error, name


def test_every_family_has_an_oracle() -> None:
    recorded = {path.parent.name.split("-")[0] for path in OWN.glob("*/recorded.safetensors")}
    assert recorded >= {family.name for family in FAMILIES}
