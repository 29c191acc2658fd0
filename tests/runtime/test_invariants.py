"""Promise 1: the answer does not depend on how it was run, bit for bit, on either backend."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from larql.errors import BindingDefect, ContainerError, UnsupportedRefusal, UsageError
from larql.format.container import Container
from larql.format.segment import Segment
from larql.runtime.backends.base import Backend
from larql.runtime.backends.registry import make_backend
from larql.runtime.prepared import prepare
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.slices import Draft, ExecutionSlice, Full, LayerRange
from tests.builders.containers import make_container
from tests.builders.models import LlamaSpec, write_llama_safetensors

TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 256, 37)]


def run_of(container: Container, numerics: str, depth: int | None = None) -> Run:
    backend, activations, kv = (*numerics.split(), "f32", "f32")[:3]
    options = RunOptions(backend=backend, draft_depth=depth, activations=activations, kv=kv)
    return open_run(container, options)


def fresh(numerics: str) -> Backend:
    backend, activations, kv = (*numerics.split(), "f32", "f32")[:3]
    return make_backend(backend, activations=activations, kv=kv)


def all_logits(
    run: Run, tokens: list[int], chunk: int | None = None, context: int | None = None
) -> npt.NDArray[np.float32]:
    session = Session(run.prepared, context or len(tokens), chunk)
    return session.logits(session.advance(tokens))


@cache
def whole_logits(container: Container, numerics: str) -> npt.NDArray[np.float32]:
    """Logits at all of ``TOKENS``, advanced at once; not to be changed."""
    return all_logits(run_of(container, numerics), TOKENS)


def assert_same_bits(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> None:
    assert a.dtype == b.dtype == np.float32
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_chunks_change_no_bit(container: Container, numerics: str, chunk: int) -> None:
    whole = whole_logits(container, numerics)
    assert np.isfinite(whole).all()
    assert_same_bits(all_logits(run_of(container, numerics), TOKENS, chunk), whole)


def test_single_steps_equal_the_whole_prompt(container: Container, numerics: str) -> None:
    whole = whole_logits(container, numerics)
    session = run_of(container, numerics).session(len(TOKENS))
    rows = [session.step([token]) for token in TOKENS]  # none is written again by a later step
    for position, row in enumerate(rows):
        assert_same_bits(row, whole[position])


def test_sessions_of_several_threads_share_what_is_prepared(
    container: Container, numerics: str
) -> None:
    run = run_of(container, numerics)

    def rows(shift: int) -> list[npt.NDArray[np.float32]]:
        session = run.session(len(TOKENS))
        return [session.step([(token + shift) % 256]) for token in TOKENS[:16]]

    alone = [rows(shift) for shift in range(3)]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(rows, range(3)))
    for one, other in zip(alone, together, strict=True):
        assert_same_bits(np.stack(one), np.stack(other))


@pytest.mark.parametrize("name", ["llama", "gemma", "quantised"])
@pytest.mark.parametrize("policy", ["production", "production q8", "production f32 f16"])
def test_single_steps_across_blocks_of_keys(
    containers: dict[str, Container], name: str, policy: str
) -> None:
    """Recorded steps are recorded anew where attention reaches another block of keys."""
    tokens = [(7 * i) % 256 for i in range(200)]
    run = run_of(containers[name], policy)
    whole = all_logits(run, tokens)
    assert_same_bits(all_logits(run, tokens, 1), whole)
    session = Session(run.prepared, 200, 64)
    session.advance(tokens[:100])
    for position in range(100, 135):
        assert_same_bits(session.step(tokens[position : position + 1]), whole[position])
    session.truncate(105) if session.can_truncate(105) else None
    for position in range(session.position, 140):
        assert_same_bits(session.step(tokens[position : position + 1]), whole[position])


def test_context_changes_no_bit(container: Container, numerics: str) -> None:
    run = run_of(container, numerics)
    assert_same_bits(all_logits(run, TOKENS, 5, 300), all_logits(run, TOKENS, 5))


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize(("activations", "kv"), [("f32", "f32"), ("q8", "f32"), ("f32", "f16")])
def test_threads_change_no_bit(
    container: Container, threads: int, activations: str, kv: str
) -> None:
    one = open_run(container, RunOptions(threads=1, activations=activations, kv=kv))
    first = all_logits(one, TOKENS)
    many = open_run(container, RunOptions(threads=threads, activations=activations, kv=kv))
    assert many.prepared.backend.threads == threads
    assert_same_bits(all_logits(many, TOKENS), first)


def test_one_batch_of_rows_equals_single_rows_through_the_head(
    container: Container, numerics: str
) -> None:
    session = run_of(container, numerics).session(len(TOKENS))
    carrier = session.advance(TOKENS)
    together = session.logits(carrier)
    for row in range(len(TOKENS)):
        assert_same_bits(session.logits(carrier[row : row + 1])[0], together[row])
    streamed = np.concatenate(list(session.logit_rows(carrier)))
    assert_same_bits(streamed, together)


def test_a_draft_of_full_depth_is_the_full_run(container: Container, numerics: str) -> None:
    depth = container.index.num_layers
    full, draft = run_of(container, numerics), run_of(container, numerics, depth)
    assert full.prepared.plan.executed_layers == draft.prepared.plan.executed_layers
    assert (full.prepared.reads, full.prepared.bytes_read) == (
        draft.prepared.reads,
        draft.prepared.bytes_read,
    )
    a, b = full.session(64), draft.session(64)
    hidden_a, hidden_b = a.advance(TOKENS), b.advance(TOKENS)
    assert_same_bits(hidden_a, hidden_b)
    assert_same_bits(a.logits(hidden_a), b.logits(hidden_b))


def test_a_shallower_draft_is_finite_and_differs(container: Container, numerics: str) -> None:
    depth = container.index.num_layers
    full, draft = run_of(container, numerics), run_of(container, numerics, depth - 1)
    assert draft.prepared.plan.executed_layers == tuple(range(depth - 1))
    assert draft.prepared.reads < full.prepared.reads
    shallow = all_logits(draft, TOKENS)
    assert np.isfinite(shallow).all()
    assert (shallow != all_logits(full, TOKENS)).any()


def test_depths_that_are_no_draft_are_refused_each_for_its_reason(
    container: Container, numerics: str
) -> None:
    depth = container.index.num_layers
    with pytest.raises(UsageError, match="at least layer 0"):
        run_of(container, numerics, 0)
    with pytest.raises(UsageError, match=f"has only {depth} layers"):
        run_of(container, numerics, depth + 1)


def test_a_draft_keeps_state_only_for_the_layers_it_runs(container: Container) -> None:
    draft = run_of(container, "production", 1)
    assert [spec.layer for spec in draft.prepared.plan.state()] == [0]


@pytest.mark.parametrize("cut", [1, 2])
def test_layer_ranges_compose(container: Container, numerics: str, cut: int) -> None:
    depth = container.index.num_layers
    cut = min(cut, depth - 1)
    full = run_of(container, numerics).session(len(TOKENS))
    whole = full.advance(TOKENS)
    made = fresh(numerics)
    embed = prepare(container, "target", Full(), made).plan.component.embed
    carrier = made.embed(embed, np.asarray(TOKENS))
    for wanted in (LayerRange(0, cut), LayerRange(cut, depth)):
        part = prepare(container, "target", wanted, fresh(numerics))
        assert all(c.layer is not None for c in part.plan.contracts())
        carrier = Session(part, len(TOKENS), 7).advance_hidden(carrier)
    assert_same_bits(carrier, whole)


def test_a_layer_range_takes_no_tokens_and_gives_no_logits(container: Container) -> None:
    part = prepare(container, "target", LayerRange(0, 1), make_backend("reference"))
    session = Session(part, 4)
    with pytest.raises(UsageError, match="begins with hidden states"):
        session.advance([1])
    with pytest.raises(UsageError, match="no logits"):
        session.logits(np.zeros((1, 64), np.float32))
    with pytest.raises(UsageError, match="expected 0 <= a < b"):
        prepare(container, "target", LayerRange(1, 1), make_backend("reference"))
    with pytest.raises(UsageError, match="shape"):
        session.advance_hidden(np.zeros((1, 3), np.float32))


def test_restoring_is_as_if_it_had_never_happened(container: Container, numerics: str) -> None:
    run = run_of(container, numerics)
    straight, wandering = run.session(64), run.session(64)
    straight.advance(TOKENS[:11])
    wandering.advance(TOKENS[:11])
    snapshot = wandering.snapshot()
    wandering.advance(TOKENS[20:33])
    wandering.restore(snapshot)
    assert wandering.position == 11
    assert_same_bits(wandering.advance(TOKENS[11:]), straight.advance(TOKENS[11:]))


def test_truncating_equals_never_having_advanced(
    containers: dict[str, Container], numerics: str
) -> None:
    run = run_of(containers["llama"], numerics)
    straight, wandering = run.session(64), run.session(64)
    straight.advance(TOKENS[:11])
    wandering.advance(TOKENS[:30])
    wandering.truncate(11)
    assert_same_bits(wandering.advance(TOKENS[11:]), straight.advance(TOKENS[11:]))


def test_a_window_that_dropped_rows_refuses_to_truncate(containers: dict[str, Container]) -> None:
    run = run_of(containers["gemma"], "production")
    session = Session(run.prepared, 200, 2)
    session.advance(TOKENS * 3)
    assert session.can_truncate(109)
    assert not session.can_truncate(11)
    with pytest.raises(UsageError, match="window of layer 0 has dropped rows"):
        session.truncate(11)
    assert session.position == 111


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_a_failed_step_leaves_the_state_as_it_was(
    containers: dict[str, Container],
    numerics: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of(containers[name], numerics)
    straight, failing = Session(run.prepared, 200, 4), Session(run.prepared, 200, 4)
    straight.advance(TOKENS[:9])
    failing.advance(TOKENS[:9])
    made = run.prepared.backend
    original, calls = made.advance, []

    def breaks_after_twenty_blocks(*arguments):  # type: ignore[no-untyped-def]
        calls.append(1)
        found = original(*arguments)
        if len(calls) > 20:
            raise KeyboardInterrupt
        return found

    # By then every ring has overwritten rows that the state before the step still needs.
    monkeypatch.setattr(made, "advance", breaks_after_twenty_blocks)
    with pytest.raises(KeyboardInterrupt):
        failing.advance(TOKENS * 3)
    monkeypatch.setattr(made, "advance", original)
    assert failing.position == 9
    assert_same_bits(failing.advance(TOKENS[9:]), straight.advance(TOKENS[9:]))


def test_window_edge(containers: dict[str, Container], numerics: str) -> None:
    """Window 4 in one layer: token 0 reaches position 3 and not position 4."""
    run = run_of(containers["gemma"], numerics, 1)
    changed = [(TOKENS[0] + 1) % 256, *TOKENS[1:8]]
    a, b = all_logits(run, TOKENS[:8]), all_logits(run, changed)
    assert (a[3] != b[3]).any()
    for position in range(4, 8):
        assert_same_bits(a[position], b[position])


def test_production_agrees_with_the_reference(container: Container) -> None:
    exact = all_logits(run_of(container, "reference"), TOKENS)
    fast = all_logits(run_of(container, "production"), TOKENS)
    assert np.abs(fast - exact).max() <= 2e-5 * np.abs(exact).max()
    assert (fast.argmax(axis=1) == exact.argmax(axis=1)).all()


def test_rounded_activations_stay_near_and_differ(containers: dict[str, Container]) -> None:
    for name in ("llama_gguf", "gemma_gguf", "quantised"):
        exact = all_logits(run_of(containers[name], "production"), TOKENS)
        rounded = all_logits(run_of(containers[name], "production q8"), TOKENS)
        errors = np.abs(rounded - exact).max(axis=1) / np.abs(exact).max()
        # Random weights amplify: one position in these is off by a quarter, the median by 3 %.
        assert 0 < np.median(errors) < 0.06
    # Float weights have no integer products: the policy leaves them as they are.
    exact = all_logits(run_of(containers["llama"], "production"), TOKENS)
    assert_same_bits(all_logits(run_of(containers["llama"], "production q8"), TOKENS), exact)


def test_rounded_keys_and_values_stay_near_and_differ(container: Container) -> None:
    for name in ("production", "reference"):
        exact = all_logits(run_of(container, name), TOKENS)
        rounded = all_logits(run_of(container, f"{name} f32 f16"), TOKENS)
        # Random weights amplify here as well.
        assert 0 < np.abs(rounded - exact).max() < 2e-2 * np.abs(exact).max()


def test_forms_of_keys_and_values_are_named(
    containers: dict[str, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cap concerns operands, and keys and values are none.
    monkeypatch.setenv("LARQL_CPU_MAX_FORMAT", "f32")
    for name, kv in (
        ("production", "f32"),
        ("production f32 f16", "f16"),
        ("reference f32 f16", "f16"),
    ):
        found = run_of(containers["llama"], name).provenance(TOKENS, 64)
        assert found["kv"] == kv
        assert ("keys and values rounded to binary16" in str(found["numerics"])) == (kv == "f16")
    for name in ("production", "reference"):
        with pytest.raises(UsageError, match="--kv 'q8': expected one of f32, f16"):
            run_of(containers["llama"], f"{name} f32 q8")


@pytest.mark.parametrize("cap", ["as-stored", "q8", "f16", "f32"])
def test_a_format_cap_changes_no_bit_and_may_forbid_q8(
    containers: dict[str, Container], monkeypatch: pytest.MonkeyPatch, cap: str
) -> None:
    plain = all_logits(run_of(containers["quantised"], "production"), TOKENS)
    monkeypatch.setenv("LARQL_CPU_MAX_FORMAT", cap)
    run = run_of(containers["quantised"], "production")
    assert run.provenance(TOKENS, 64)["max_format"] == cap
    assert_same_bits(all_logits(run, TOKENS), plain)
    if cap in ("f16", "f32"):
        with pytest.raises(UsageError, match=f"LARQL_CPU_MAX_FORMAT={cap} forbids"):
            run_of(containers["quantised"], "production q8")
    else:
        assert run_of(containers["quantised"], "production q8").prepared.backend.activations == "q8"


def test_the_reference_has_no_rounded_activations(containers: dict[str, Container]) -> None:
    with pytest.raises(UnsupportedRefusal, match="executes f32 activations only"):
        run_of(containers["llama"], "reference q8")
    with pytest.raises(UsageError, match="expected one of f32, q8"):
        run_of(containers["llama"], "production int4")


def test_log_sum_exp_agrees(container: Container) -> None:
    run = run_of(container, "production")
    rows = all_logits(run, TOKENS[:5])
    expected = make_backend("reference").log_sum_exp(rows)
    assert np.allclose(run.prepared.backend.log_sum_exp(rows), expected, rtol=0, atol=1e-13)


def test_tokens_outside_the_vocabulary_and_full_contexts_are_refused(container: Container) -> None:
    session = run_of(container, "production").session(4)
    with pytest.raises(UsageError, match="token 256 at position 1"):
        session.advance([1, 256])
    with pytest.raises(UsageError, match="token -1"):
        session.advance([-1])
    with pytest.raises(UsageError, match="no tokens"):
        session.advance([])
    session.advance([1, 2, 3])
    with pytest.raises(UsageError, match="5 positions do not fit a context of 4"):
        session.advance([1, 2])
    assert session.position == 3
    for arguments in ((0,), (4, 0)):
        with pytest.raises(UsageError):
            Session(session.prepared, *arguments)


def test_layers_behind_a_draft_cost_it_nothing(tmp_path: Path, numerics: str) -> None:
    """A draft reads nothing of the layers it leaves out: its reads do not see their number."""
    deep = make_container(
        write_llama_safetensors(tmp_path / "deep", LlamaSpec(layers=6)), tmp_path / "deep.vindex3"
    )
    shallow = make_container(
        write_llama_safetensors(tmp_path / "shallow", LlamaSpec(layers=2)),
        tmp_path / "shallow.vindex3",
    )
    a = prepare(deep, "target", Draft(2), fresh(numerics))
    b = prepare(shallow, "target", Full(), fresh(numerics))
    assert (a.reads, a.bytes_read) == (b.reads, b.bytes_read)


@pytest.mark.parametrize("name", ["llama", "llama3", "gemma"])
@pytest.mark.parametrize("wanted", [Full(), Draft(1), LayerRange(1, 2)], ids=str)
def test_what_a_step_sweeps_is_brought_into_memory_and_nothing_else(
    containers: dict[str, Container],
    name: str,
    wanted: ExecutionSlice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container, made = containers[name], []
    monkeypatch.setattr(Segment, "prefault", lambda segment, tensor: made.append(tensor))
    prepare(container, "target", wanted, make_backend("reference"))
    assert made == []
    plan = prepare(container, "target", wanted, make_backend("reference"), prefault=True).plan
    embed, head = plan.component.embed.weight, plan.component.head.weight
    swept = [c.name for c in plan.contracts()]
    if not (plan.has_head and head == embed) and embed in swept:
        swept.remove(embed)
    assert made == [container.operands[operand].tensor for operand in swept]
    assert len(made) > 5


def test_an_operand_that_cannot_be_brought_into_memory_is_named(
    containers: dict[str, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(segment: Segment, tensor: str) -> None:
        raise ContainerError(f"{segment.path}: no")

    monkeypatch.setattr(Segment, "prefault", fail)
    with pytest.raises(BindingDefect, match=r"operand target\.\S+: .*: no"):
        prepare(containers["llama"], "target", Full(), make_backend("reference"), prefault=True)
