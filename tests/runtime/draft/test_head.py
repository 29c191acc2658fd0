"""A draft head against its formula, its own steps, and what it must not touch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import BindingDefect, UnsupportedRefusal, UsageError
from larql.format.container import Container
from larql.runtime.draft.choice import make_drafter
from larql.runtime.draft.drafter import Speculation
from larql.runtime.draft.head import DraftHead, HeadDrafter, draft_component
from larql.runtime.draft.head_scores import score_head
from larql.runtime.generate import generate
from larql.runtime.planes import read_planes
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.sampling import Sampler, Sampling
from tests.builders.containers import copy_container, make_container
from tests.builders.hybrids import Tensors, changed, draft_tensors, nested, recorded, with_experts
from tests.builders.safetensors import write_safetensors_dir
from tests.naive.draft_head import draft_logits

NAME = "qwen3_5"
HEADS = ("dense", "dense trunk", "routed trunk", "apart", "packed")
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 53, 58, 9, 7]
Made = Callable[..., tuple[Container, Tensors]]
Heads = Callable[[str], tuple[dict[str, Any], Container, Tensors]]


@pytest.fixture(scope="module")
def with_head(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make a model with a draft head, some tensors of which are replaced or dropped."""
    kept: dict[str, tuple[Container, Tensors]] = {}

    def make(
        name: str = "whole", *, drop: str | None = None, replaced: Tensors | None = None
    ) -> tuple[Container, Tensors]:
        if name not in kept:
            config, tensors = recorded(NAME)
            extra = draft_tensors(config)
            random = np.random.default_rng(9)
            for norm in [key for key in extra if "norm" in key]:
                extra[norm] = extra[norm] * np.float32(0.3)
            for part in "qkvo":
                rows = len(extra[f"mtp.layers.0.self_attn.{part}_proj.weight"])
                bias = random.standard_normal(rows).astype(np.float32)
                extra[f"mtp.layers.0.self_attn.{part}_proj.bias"] = bias
            extra |= replaced or {}
            if drop is not None:
                del extra[drop]
            at = tmp_path_factory.mktemp("head")
            outer, inside = nested(changed(config, {}), tensors)
            directory = write_safetensors_dir(at / "c", outer, {**inside, **extra})
            kept[name] = make_container(directory, at / "m.vindex3"), {**tensors, **extra}
        return kept[name]

    return make


@pytest.fixture(scope="module")
def heads(with_head: Made, tmp_path_factory: pytest.TempPathFactory) -> Heads:
    """Make a model whose draft head has one of the networks of ``HEADS``."""
    kept: dict[str, tuple[dict[str, Any], Container, Tensors]] = {}

    def make(kind: str) -> tuple[dict[str, Any], Container, Tensors]:
        if kind == "dense":
            return recorded(NAME)[0], *with_head()
        if kind not in kept:
            config, tensors, extra = with_experts(kind)
            for norm in [key for key in extra if "norm" in key]:
                extra[norm] = extra[norm] * np.float32(0.3)
            at = tmp_path_factory.mktemp("experts")
            directory = write_safetensors_dir(at / "c", config, {**tensors, **extra})
            made = make_container(directory, at / "m.vindex3")
            kept[kind] = config, made, {**tensors, **extra}
        return kept[kind]

    return make


def hidden_states(run: Run) -> np.ndarray:
    return read_planes(run.prepared, TOKENS, None).final_norm.astype(np.float64)


def head_logits(run: Run, chunk: int | None = None) -> np.ndarray:
    head = DraftHead(run.prepared, "mtp", 16, chunk)
    pieces = list(score_head(head, run.session(16), TOKENS))
    return np.concatenate([piece.rows for piece in pieces])


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize("kind", HEADS)
def test_its_logits_are_those_of_the_formula(heads: Heads, kind: str, backend: str) -> None:
    config, container, tensors = heads(kind)
    run = open_run(container, RunOptions(backend=backend))
    expected = draft_logits(config, tensors, hidden_states(run), TOKENS)
    found = head_logits(run)
    assert found.shape == (len(TOKENS) - 1, 96)
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
    # and the formula tells mistakes apart: each of these is far from it
    hidden = config["hidden_size"]
    fc = tensors["mtp.fc.weight"]
    a, b = "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"
    mistakes = [
        {"mtp.fc.weight": np.concatenate([fc[:, hidden:], fc[:, :hidden]], axis=1)},
        {a: tensors[b], b: tensors[a]},
    ]
    if kind != "dense":
        router, gate = (f"mtp.layers.0.mlp.{n}.weight" for n in ("gate", "shared_expert_gate"))
        mistakes += [{router: tensors[router][::-1]}, {gate: -tensors[gate]}]
    for wrong in ({**tensors, **mistake} for mistake in mistakes):
        other = draft_logits(config, wrong, hidden_states(run), TOKENS)
        assert np.abs(other - expected).max() > 0.05 * np.abs(expected).max()
    before = read_planes(run.prepared, TOKENS, None).layers[-1].astype(np.float64)
    other = draft_logits(config, tensors, before, TOKENS)
    assert np.abs(other - expected).max() > 0.01 * np.abs(expected).max()


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_the_first_half_of_the_projection_is_the_embedding_s(with_head: Made, backend: str) -> None:
    hidden = recorded(NAME)[0]["hidden_size"]
    fc = draft_tensors(recorded(NAME)[0])["mtp.fc.weight"].copy()
    fc[:, hidden:] = 0
    container, _ = with_head("first half", replaced={"mtp.fc.weight": fc})
    run = open_run(container, RunOptions(backend=backend))
    head = DraftHead(run.prepared, "mtp", 16)
    tap = head.tap(run.session(16).advance(TOKENS)[:-1])
    made = head.session.logits(head.advance(tap, TOKENS[1:]))
    again = DraftHead(run.prepared, "mtp", 16)
    other = again.session.logits(again.advance(-3 * tap[::-1].copy(), TOKENS[1:]))
    assert made.tobytes() == other.tobytes()  # hidden states are not read at all …
    third = DraftHead(run.prepared, "mtp", 16)
    assert third.session.logits(third.advance(tap, TOKENS[:-1])).tobytes() != made.tobytes()


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize("kind", HEADS)
def test_steps_and_chunks_are_the_same_bits(heads: Heads, kind: str, backend: str) -> None:
    run = open_run(heads(kind)[1], RunOptions(backend=backend))
    whole = head_logits(run)
    assert head_logits(run, 3).tobytes() == whole.tobytes()
    head, session = DraftHead(run.prepared, "mtp", 16), run.session(16)
    for i in range(len(TOKENS) - 1):
        tap = head.tap(session.advance(TOKENS[i : i + 1]))
        row = head.session.logits(head.advance(tap, TOKENS[i + 1 : i + 2]))[0]
        assert row.tobytes() == whole[i].tobytes()
    assert whole[0].tobytes() != whole[-1].tobytes()


@pytest.mark.parametrize("kind", HEADS)
def test_it_reads_only_what_is_its_own_and_leaves_the_trunk_alone(heads: Heads, kind: str) -> None:
    _, container, _ = heads(kind)
    run = open_run(container, RunOptions())
    session = run.session(16)
    before = session.logits(session.advance(TOKENS)).tobytes()
    head = DraftHead(run.prepared, "mtp", 16)
    stored = container.operands
    own = [name for name in stored if name.startswith("mtp.")]
    entries = sum(stored[n].shape[0] - 1 for n in own if "/experts." in n)
    assert head.prepared.reads == len(own) + entries
    assert head.prepared.bytes_read == sum(stored[name].nbytes for name in own)
    assert head.prepared.backend is run.prepared.backend
    assert [r.spec.layer for r in head.session.state.regions] == [0]
    head.advance(head.tap(run.session(16).advance(TOKENS)[:-1]), TOKENS[1:])
    again = run.session(16)
    assert again.logits(again.advance(TOKENS)).tobytes() == before


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, seed=2)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", ["dense", "routed trunk"])
def test_speculating_with_it_gives_the_tokens_of_single_steps(
    heads: Heads, kind: str, backend: str, sampling: Sampling
) -> None:
    run = open_run(heads(kind)[1], RunOptions(backend=backend))
    made = []
    for most in (None, 1, 3):
        session = run.session(48)
        carrier, row = run.timed_advance(session, TOKENS)
        speculation = None
        if most is not None:
            speculation = Speculation(make_drafter("mtp", run, 48), most)
            speculation.begin(session, TOKENS, carrier, 30)
        made.append(
            list(generate(run, session, row, 30, Sampler(sampling), (), TOKENS, speculation))
        )
        assert speculation is None or sum(speculation.tally.proposed) > 20
    assert made[1] == made[0] and made[2] == made[0]


def test_its_guesses_hang_on_the_stream_alone(with_head: Made) -> None:
    run = open_run(with_head()[0], RunOptions())

    def fresh(stream: list[int], count: int) -> list[int]:
        drafter = HeadDrafter(run.prepared, 48)
        drafter.saw(0, run.session(48).advance(stream[:-1]))
        return drafter.propose(stream, count)

    drafter, session = HeadDrafter(run.prepared, 48), run.session(48)
    drafter.saw(0, session.advance(TOKENS[:-1]))
    stream = list(TOKENS)
    for kept in (0, 2, 4, 1, 3):
        guesses = drafter.propose(stream, 4)
        assert guesses == fresh(stream, 4)
        start = session.position
        block = [stream[-1], *guesses[:kept]]
        drafter.saw(start, session.advance(block))
        stream += [*guesses[:kept], 11 + kept]
    # another stream that shares a beginning
    session.truncate(0)
    drafter.saw(0, session.advance(TOKENS[:4]))
    assert drafter.propose([*TOKENS[:4], 50], 3) == fresh([*TOKENS[:4], 50], 3)
    # … and one that differs in its first token, which no position of the head has behind it
    for first in (3, 44, 80):
        stream = [first, *TOKENS[1:]]
        session.truncate(0)
        drafter.saw(0, session.advance(stream[:-1]))
        assert drafter.propose(stream, 4) == fresh(stream, 4)
    # the first guess is the head's own row
    expected = head_logits(run)[-1].argmax()
    assert fresh(TOKENS, 1) == [expected]
    assert HeadDrafter(run.prepared, 48).propose(TOKENS, 3) == []


def test_what_is_not_there_refuses_drafting_by_name_and_nothing_else(
    with_head: Made, tmp_path: Path
) -> None:
    whole, _ = with_head()
    without, _ = with_head("dropped", drop="mtp.layers.0.self_attn.k_norm.weight")
    expected = open_run(whole, RunOptions())
    session = expected.session(16)
    logits = session.logits(session.advance(TOKENS)).tobytes()
    run = open_run(without, RunOptions())
    session = run.session(16)
    assert session.logits(session.advance(TOKENS)).tobytes() == logits
    words = r"left behind: tensor mtp\.layers\.0\.self_attn\.k_norm\.weight is missing"
    with pytest.raises(UnsupportedRefusal, match=words):
        make_drafter("mtp", run, 48)
    with pytest.raises(UsageError, match=words):
        without.component("mtp")
    assert draft_component(whole) == "mtp"
    # a segment that is gone from the container
    cut = Container(copy_container(whole.path, tmp_path / "cut.vindex3"))
    segment = cut.operands["mtp.draft_input/projection.weight"].segment
    (cut.path / segment).unlink()
    run = open_run(cut, RunOptions())
    session = run.session(16)
    assert session.logits(session.advance(TOKENS)).tobytes() == logits
    with pytest.raises(BindingDefect, match=r"mtp\.draft_input/projection\.weight"):
        make_drafter("mtp", run, 48)


def test_a_model_without_one(states: Callable[[str], Container]) -> None:
    run = open_run(states("rows"), RunOptions())
    with pytest.raises(UnsupportedRefusal, match="made from a model without one"):
        make_drafter("mtp", run, 48)


def test_one_token_is_too_few(with_head: Made) -> None:
    run = open_run(with_head()[0], RunOptions())
    with pytest.raises(UsageError, match="1 token given; a draft head"):
        list(score_head(DraftHead(run.prepared, "mtp", 16), run.session(16), [1]))
