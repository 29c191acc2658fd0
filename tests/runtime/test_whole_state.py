"""State that every position changes entirely: copied, put back, begun again, never cut."""

from __future__ import annotations

import numpy as np
import pytest

from larql.errors import UsageError
from larql.format.container import Container
from larql.format.graph import ConvolutionRows, KvRows, Recurrent
from larql.runtime.backends.registry import BACKENDS, make_backend
from larql.runtime.regions import StateCost
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.state import State
from tests.builders.containers import make_container
from tests.oracles.recorded import OWN

TOKENS = [5, 17, 3, 88, 41, 2, 60, 9, 33, 71, 8, 26]
SPECS = (Recurrent(3, 2, 5, 20), ConvolutionRows(4, "ffn", 7, 3), ConvolutionRows(5, "ffn", 7, 0))
EACH = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    """Three layers of delta rule, then one of full attention."""
    at = tmp_path_factory.mktemp("whole") / "m.vindex3"
    return make_container(OWN / "qwen3_5" / "checkpoint", at)


def run_of(container: Container, backend: str, depth: int | None = None) -> Run:
    return open_run(container, RunOptions(backend=backend, draft_depth=depth))


def session_of(run: Run, chunk: int | None = None) -> Session:
    return Session(run.prepared, 64, chunk)


@EACH
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_region_of_zeros_takes_back_what_it_gave(
    backend: str, spec: Recurrent | ConvolutionRows
) -> None:
    region = make_backend(backend).region(spec, 64, 8)
    other = make_backend(backend).region(spec, 64, 8)
    assert region.whole
    shape = (2, 5, 20) if isinstance(spec, Recurrent) else (spec.rows, 7)
    (values,) = region.snapshot(0).arrays().values()
    assert values.shape == shape and not values.any()
    assert values.dtype == (np.float64 if backend == "reference" else np.float32)
    wanted = np.random.default_rng(0).standard_normal(shape).astype(values.dtype)
    snapshot = other.snapshot(0)
    snapshot.arrays()["values"][...] = wanted
    region.restore(snapshot)
    assert (region.snapshot(9).arrays()["values"] == wanted).all()
    assert region.cost == StateCost(region.nbytes // 2, 0, None)
    assert region.nbytes >= 2 * wanted.nbytes
    region.truncate(0)
    assert not region.snapshot(0).arrays()["values"].any()


@EACH
def test_only_all_or_nothing_is_forgotten(backend: str) -> None:
    made = make_backend(backend)
    for spec, words in zip(
        SPECS[:2],
        ("recurrent state of layer 3 (attention)", "convolution rows of layer 4 (ffn)"),
        strict=True,
    ):
        state = State([made.region(spec, 64, 8), made.region(KvRows(0, 1, 2, 2, "full"), 64, 8)])
        state.length = 5
        assert [state.can_truncate(n) for n in range(7)] == [True, *[False] * 4, True, False]
        with pytest.raises(UsageError) as caught:
            state.truncate(3)
        assert words in str(caught.value) and state.length == 5
        state.truncate(5)
        state.truncate(0)
        assert state.length == 0


@EACH
def test_a_state_goes_back_and_on_bit_for_bit(container: Container, backend: str) -> None:
    session = session_of(run_of(container, backend))
    whole = session.logits(session.advance(TOKENS))
    session.truncate(0)
    assert not any(region.snapshot(0).arrays()["values"].any() for region in whole_regions(session))
    session.advance(TOKENS[:4])
    session.step(TOKENS[4:5])
    before = session.snapshot()
    for tokens in (TOKENS[5:], TOKENS[::-1], [1]):
        session.advance(tokens)
        assert session.snapshot().sha256() != before.sha256()
        session.restore(before)
        assert session.snapshot().sha256() == before.sha256()
        assert session.position == 5
    found = [session.step([token]) for token in TOKENS[5:]]
    assert np.stack(found).tobytes() == whole[5:].tobytes()
    assert not session.can_truncate(7)
    with pytest.raises(UsageError, match=r"(recurrent state|convolution rows) of layer 0"):
        session.truncate(7)
    assert session.position == len(TOKENS)


@EACH
@pytest.mark.parametrize("tokens", [TOKENS[5:6], TOKENS[5:7], TOKENS], ids=len)
def test_a_step_that_fails_leaves_the_state_as_it_was(
    container: Container, backend: str, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(container, backend)
    session = session_of(run, chunk=3)
    straight = session.logits(session.advance(TOKENS))
    session.truncate(0)
    session.advance(TOKENS[:5])
    session.step(TOKENS[5:6])
    before, made = session.snapshot(), run.prepared.backend
    original = made.advance
    calls: list[int] = []

    def does_its_work_and_then_fails(*arguments):  # type: ignore[no-untyped-def]
        found = original(*arguments)
        calls.append(1)
        if 3 * len(calls) >= len(tokens):
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(made, "advance", does_its_work_and_then_fails)
    with pytest.raises(KeyboardInterrupt):
        session.advance(tokens)
    monkeypatch.setattr(made, "advance", original)
    assert session.snapshot().sha256() == before.sha256()
    with pytest.raises(UsageError, match="token 96"):
        session.advance([1, 96])
    with pytest.raises(UsageError, match="do not fit a context"):
        session.advance(TOKENS * 5)
    assert session.snapshot().sha256() == before.sha256()
    assert session.step(TOKENS[6:7]).tobytes() == straight[6].tobytes()


@EACH
def test_layers_that_a_draft_leaves_out_have_no_state(container: Container, backend: str) -> None:
    layers = {}
    for depth in (1, 3, 4):
        session = session_of(run_of(container, backend, depth))
        layers[depth] = {region.spec.layer for region in session.state.regions}
        kinds = [type(region.spec).__name__ for region in session.state.regions]
        assert kinds.count("Recurrent") == min(depth, 3)
        assert kinds.count("ConvolutionRows") == 3 * min(depth, 3)
        assert kinds.count("KvRows") == (depth == 4)
    assert layers == {1: {0}, 3: {0, 1, 2}, 4: {0, 1, 2, 3}}


def whole_regions(session: Session):  # type: ignore[no-untyped-def]
    return [region for region in session.state.regions if region.whole]


def test_the_size_of_a_state_does_not_grow(container: Container) -> None:
    run = run_of(container, "production")
    sizes = [
        sum(region.nbytes for region in whole_regions(Session(run.prepared, context)))
        for context in (4, 4000)
    ]
    assert sizes[0] == sizes[1] > 0
