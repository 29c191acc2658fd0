"""Parity of two runs: what is located where, and what is never taken for agreement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import RefusalKind, UsageError
from larql.format.container import Container
from larql.format.graph import (
    DenseFfn,
    GatedDelta,
    Kda,
    LatentAttention,
    ShortConvolution,
    Ssm,
)
from larql.runtime.backends.production import dense_ffn as production_ffn
from larql.runtime.backends.reference import backend as reference
from larql.runtime.expert_access import ExpertAccess
from larql.runtime.parity.arms import Pair, RefusedArmError, expected_tolerance, open_pair
from larql.runtime.parity.compare import Comparison, Wanted, compare
from larql.runtime.parity.document import comparison_document, verdict_text
from larql.runtime.parity.recorder import Recorder
from larql.runtime.parity.verdict import EXACT, FLOAT32, KV_F16, Q8, Verdict
from larql.runtime.run import RunOptions, open_run
from tests.builders.containers import copy_container, make_container, vouch_for
from tests.builders.experts import clamped
from tests.builders.models import LlamaSpec, write_llama_safetensors

TOKENS = (3, 1, 4, 1, 5)
ORACLES = Path(__file__).parents[1] / "oracles"
PRODUCTION, REFERENCE = RunOptions(), RunOptions(backend="reference")


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    at = tmp_path_factory.mktemp("parity")
    return make_container(write_llama_safetensors(at / "m", LlamaSpec(layers=4)), at / "c")


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Container:
    at = tmp_path_factory.mktemp("parity-routed")
    return make_container(clamped(at / "m", "mxfp4"), at / "c")


def changed(
    container: Container, to: Path, operand: str, change: Callable[[Any], None]
) -> Container:
    """A copy in which the stored float32 values of one operand have been changed."""
    value = container.operands[operand]
    segment = container.segment(value.segment)
    entry = segment.header.entries[value.tensor]
    directory = copy_container(container.path, to)
    data = bytearray((directory / value.segment).read_bytes())
    first = segment.header.data_start + entry.begin
    change(np.frombuffer(data, np.uint32, value.nbytes // 4, first))
    (directory / value.segment).write_bytes(data)
    return Container(vouch_for(directory, value.segment))


def one_bit(words: Any) -> None:
    words[len(words) // 2] ^= 1 << 12


def much(words: Any) -> None:
    words[:] ^= 1 << 22  # of every number


def pair_of(baseline: Container, examined: Container, *options: RunOptions) -> Pair:
    return open_pair((baseline, examined), (options[0], options[1]))


def compared(
    baseline: Container,
    examined: Container,
    *options: RunOptions,
    **wanted: Any,
) -> Comparison:
    pair = pair_of(baseline, examined, *options)
    tolerance = expected_tolerance(pair.baseline.numerics, pair.examined.numerics)
    return compare(pair, Wanted(TOKENS, tolerance, **{"generate": 2, **wanted}))


def test_backends_agree_within_float32_and_say_with_what_they_end(container: Container) -> None:
    found = compared(container, container, REFERENCE, PRODUCTION, oracle_layer=1)
    assert found.verdict is Verdict.EQUIVALENT
    assert found.agrees and not found.trivial and not found.blank
    assert found.sweep is not None and found.propagation is not None and found.ends is not None
    assert [layer.layer for layer in found.sweep.layers] == ["embed", "0", "1", "2", "3", "head"]
    assert [c.name for c in found.sweep.layers[1].checkpoints] == [
        *(f"0.attention {stage}" for stage in ("norm", "q", "k", "v", "heads", "o", "output")),
        "0.attention carrier",
        *(f"0.ffn {stage}" for stage in ("norm", "gate", "up", "activation", "down", "output")),
        "0.ffn carrier",
    ]
    assert [c.name for c in found.propagation.boundaries][:3] == [
        "embed carrier", "0.attention carrier", "0.ffn carrier",
    ]  # fmt: skip
    assert len(found.ends.baseline.top) == 5
    assert found.ends.baseline.argmax == found.ends.examined.argmax
    assert found.ends.baseline.margin == pytest.approx(found.ends.examined.margin, rel=1e-4)
    assert found.teacher_forced is not None and len(found.teacher_forced.steps) == 2
    assert found.free_run is not None
    assert found.free_run.baseline == found.free_run.examined
    assert [(leg.arm, leg.verdict) for leg in found.oracle] == [
        ("baseline", Verdict.OBSERVED_EXACT), ("examined", Verdict.EQUIVALENT),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operand", "causal", "boundary"),
    [
        ("target.layer.003/ffn.down.weight", "3.ffn down", "3.ffn carrier"),
        ("target.layer.001/attention.q.weight", "1.attention q", "1.attention carrier"),
        ("target.layer.002/ffn.norm.weight", "2.ffn norm", "2.ffn carrier"),
    ],
)
def test_one_bit_of_a_weight_is_located(
    container: Container, tmp_path: Path, operand: str, causal: str, boundary: str
) -> None:
    other = changed(container, tmp_path / "c", operand, one_bit)
    found = compared(container, other, PRODUCTION, PRODUCTION)
    assert found.verdict is Verdict.NUMERIC_MISMATCH
    assert found.sweep is not None and found.propagation is not None
    assert found.sweep.causal is not None and found.sweep.causal.name == causal
    assert found.propagation.first is not None and found.propagation.first.name == boundary
    wrong = [one.layer for one in found.sweep.layers if one.verdict is Verdict.NUMERIC_MISMATCH]
    assert wrong == [causal.partition(".")[0]], "what only reads what differs is not to blame"
    assert found.free_run is None


INSIDE = [
    ("deepseek_v3", LatentAttention, {"q_nope": "q_nope", "k_rope": "latent", "v_up": "heads"}),
    ("qwen3_next", GatedDelta, {"v": "v", "decay_bias": "decay", "norm": "gated", "o": "o"}),
    ("kimi_linear-delta", Kda, {"q": "q", "gate_up": "gate", "decay_rate": "decay", "o": "o"}),
    ("granitemoehybrid", Ssm, {"b": "b", "step_bias": "step", "skip": "recurrence", "o": "o"}),
    ("lfm2", ShortConvolution, {"c": "c", "conv": "convolution", "o": "o"}),
]


@pytest.mark.parametrize(("name", "kind", "stages"), INSIDE, ids=[case[0] for case in INSIDE])
def test_the_operation_inside_a_mixer_is_named(
    tmp_path: Path, name: str, kind: type, stages: dict[str, str]
) -> None:
    """Both backends tell of the same, and one operand that differs is found at its operation."""
    container = make_container(ORACLES / name / "checkpoint", tmp_path / "c")
    both = compared(container, container, REFERENCE, PRODUCTION, generate=1)
    assert both.verdict is Verdict.EQUIVALENT and both.sweep is not None
    layer, mixer = next(
        (layer.index, block.mixer)
        for layer in container.graph.components[0].layers
        for block in layer.blocks
        if isinstance(block.mixer, kind)
    )
    told = {c.name for one in both.sweep.layers for c in one.checkpoints}
    for number, (part, stage) in enumerate(stages.items()):
        operand = getattr(mixer, part)
        operand = operand if isinstance(operand, str) else operand.weight
        other = changed(container, tmp_path / str(number), operand, much)
        found = compared(container, other, PRODUCTION, PRODUCTION, generate=1)
        assert found.sweep is not None and found.sweep.causal is not None
        assert found.sweep.causal.name == f"{layer}.attention {stage}"
        assert f"{layer}.attention {stage}" in told


def test_a_change_that_only_decoding_shows_is_found_there_and_nothing_runs_freely(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = reference.mix

    def off(mixer: Any, inputs: Any, *rest: Any) -> Any:
        made = honest(mixer, inputs, *rest)
        wrong = isinstance(mixer, DenseFfn) and "layer.002" in mixer.down.weight
        return [row * 1.01 for row in made] if wrong and len(inputs) == 1 else made

    monkeypatch.setattr(reference, "mix", off)
    found = compared(container, container, PRODUCTION, REFERENCE)
    assert found.sweep is not None and found.sweep.verdict is Verdict.EQUIVALENT
    assert found.propagation is not None and found.propagation.verdict is Verdict.EQUIVALENT
    assert found.teacher_forced is not None
    step = found.teacher_forced.first
    assert step is not None and step.position == len(TOKENS)
    assert step.first is not None and step.first.name == "2.ffn output"
    assert (found.verdict, found.free_run) == (Verdict.NUMERIC_MISMATCH, None)


def test_an_oracle_tells_what_both_arms_have_wrong(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(production_ffn, "kernel_kind", lambda activation: "relu")
    found = compared(container, container, PRODUCTION, PRODUCTION, oracle_layer=2, generate=0)
    assert found.sweep is not None and found.sweep.verdict is Verdict.EXACT
    assert found.trivial
    for leg in found.oracle:
        assert [c.verdict for c in leg.checkpoints] == [
            Verdict.EQUIVALENT, Verdict.NUMERIC_MISMATCH,
        ]  # fmt: skip
    assert not found.agrees


def test_the_same_run_says_that_it_proves_nothing_but_chunks_do(container: Container) -> None:
    same = compared(container, container, PRODUCTION, PRODUCTION, generate=0)
    assert (same.verdict, len(same.trivial)) == (Verdict.EXACT, 1)
    chunks = compared(container, container, RunOptions(chunk=2), RunOptions(chunk=3))
    assert (chunks.verdict, chunks.trivial) == (Verdict.EXACT, ())


def test_rounding_has_tolerances_of_its_own(container: Container) -> None:
    f16 = RunOptions(kv="f16")
    for options, tolerance in (
        ((PRODUCTION, PRODUCTION), EXACT),
        ((REFERENCE, PRODUCTION), FLOAT32),
        ((PRODUCTION, f16), KV_F16),
        ((REFERENCE, RunOptions(activations="q8", kv="f16")), Q8),
    ):
        numerics = [(o.backend, o.activations, o.kv) for o in options]
        assert expected_tolerance(*numerics) is tolerance
    assert compared(container, container, PRODUCTION, f16).verdict is Verdict.EQUIVALENT
    pair = pair_of(container, container, PRODUCTION, f16)
    strict = compare(pair, Wanted(TOKENS, FLOAT32, 0))
    assert strict.sweep is not None and strict.sweep.causal is not None
    assert strict.sweep.causal.name == "0.attention heads"


def test_numbers_that_are_all_zero_or_none_are_no_agreement(
    container: Container, tmp_path: Path
) -> None:
    def zero(words: Any) -> None:
        words[:] = 0

    def nan(words: Any) -> None:
        words[:] = 0x7FC00000

    silent = changed(container, tmp_path / "z", "target.embedding/weight", zero)
    found = compared(silent, silent, PRODUCTION, RunOptions(chunk=2))
    assert found.verdict is Verdict.EXACT
    assert not found.agrees
    assert found.blank[0] == "embed carrier is all zero in both arms"
    assert found.blank[-1] == "every logit of the baseline is the same number"
    broken = changed(container, tmp_path / "n", "target.norms/output.weight", nan)
    found = compared(broken, broken, PRODUCTION, RunOptions(chunk=2))
    assert "head logits is not finite in both arms" in found.blank
    assert not found.agrees
    assert found.teacher_forced is None


def test_a_refused_step_ends_the_comparison_before_a_number(
    routed: Container, tmp_path: Path
) -> None:
    def spoil(words: Any) -> None:
        words[0] = 0x7FC00000

    damaged = changed(routed, tmp_path / "c", "target.layer.001/ffn.router.bias", spoil)
    for arms, name in (((routed, damaged), "examined"), ((damaged, routed), "baseline")):
        found = compared(*arms, PRODUCTION, PRODUCTION)
        assert found.halt is not None
        assert (found.halt.phase, found.halt.arm) == ("sweep", name)
        assert found.halt.refusal.kind is RefusalKind.BINDING_DEFECT
        assert found.verdict is None and not found.agrees
        assert found.sweep is found.propagation is found.ends is found.teacher_forced is None
        assert verdict_text(found) == "refused(binding_defect)"
        assert comparison_document(found, Wanted(TOKENS, EXACT))["sweep"] is None


def test_an_arm_that_does_not_bind_is_refused_by_name(container: Container, tmp_path: Path) -> None:
    damaged = copy_container(container.path, tmp_path / "c")
    (damaged / "segments" / "target.layer.002.safetensors").unlink()
    with pytest.raises(RefusedArmError, match=r"layer\.002") as caught:
        pair_of(container, Container(damaged), PRODUCTION, PRODUCTION)
    assert caught.value.arm == "examined"


def test_arms_of_another_architecture_are_refused(container: Container, routed: Container) -> None:
    with pytest.raises(UsageError, match="one architecture"):
        pair_of(container, routed, PRODUCTION, PRODUCTION)


def test_routed_layers_compare_scores_choice_and_weights(routed: Container, tmp_path: Path) -> None:
    found = compared(routed, routed, REFERENCE, PRODUCTION)
    assert found.verdict is Verdict.EQUIVALENT
    assert found.sweep is not None
    stages = [c.stage for c in found.sweep.layers[1].checkpoints if c.site == "0.ffn"]
    assert stages == [
        "norm", "router_input", "scores", "ranks", "chosen", "raw_weights", "weights",
        "expert_input", "expert_outputs", "routed", "output", "carrier",
    ]  # fmt: skip

    def another(words: Any) -> None:
        words[:32] ^= 1 << 31  # the first expert's row of the router, negated

    other = changed(routed, tmp_path / "c", "target.layer.000/ffn.router.weight", another)
    found = compared(routed, other, REFERENCE, PRODUCTION)
    assert found.sweep is not None and found.sweep.causal is not None
    assert found.sweep.causal.name == "0.ffn scores"


def test_an_expert_that_is_not_here_is_residency_and_no_mismatch(routed: Container) -> None:
    shard = RunOptions(experts=ExpertAccess(shard=(0, 1)))
    found = compared(routed, routed, PRODUCTION, shard)
    assert found.halt is not None and found.sweep is None
    assert verdict_text(found) == "refused(residency)"
    at = found.halt.refusal.at
    assert at is not None and at.layer == 0 and at.entry in (1, 2)
    whole = RunOptions(experts=ExpertAccess(shard=(0, 3)))
    assert compared(routed, routed, PRODUCTION, whole).verdict is Verdict.EXACT


def test_an_expert_that_only_decoding_chooses_ends_the_comparison_there(
    routed: Container,
) -> None:
    """What was compared before is kept, and what was refused has no number."""
    prompt, decoded = chosen_by(routed, TOKENS[:1])
    only = decoded - prompt
    assert only, "choose other tokens: decoding chooses nothing of its own"
    layer, expert = min(only)
    kept = {layer: frozenset(range(3)) - {expert}}
    options = RunOptions(experts=ExpertAccess(kept=kept))
    pair = pair_of(routed, routed, PRODUCTION, options)
    found = compare(pair, Wanted(TOKENS[:1], EXACT, 4))
    assert found.halt is not None and found.halt.phase == "teacher_forced"
    assert found.sweep is not None and found.sweep.verdict is Verdict.EXACT
    assert found.propagation is not None and found.ends is not None
    assert found.teacher_forced is found.free_run is None
    assert found.verdict is None and not found.agrees


def chosen_by(container: Container, tokens: tuple[int, ...]) -> tuple[set[Any], set[Any]]:
    """Layers and experts that a prompt is routed to, and those that four steps after it are."""
    run = open_run(container, PRODUCTION)
    recorder = Recorder(512)
    session = run.session(len(tokens) + 4, recorder)
    row = session.step(tokens)
    for _ in range(4):
        row = session.step([int(row.argmax())])
    found: list[set[Any]] = [set(), set()]
    for layer, routing in enumerate(r for r in recorder.seen().routing if r is not None):
        for t, experts in enumerate(routing.chosen.tolist()):
            found[t >= len(tokens)] |= {(layer, expert) for expert in experts}
    return found[0], found[1]
