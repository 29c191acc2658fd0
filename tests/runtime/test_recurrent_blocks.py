"""Recurrent operations against their definitions, in any chunks, on both backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from larql.format.graph import (
    Block,
    Convolution,
    GatedDelta,
    Kda,
    Linear,
    Mixer,
    Norm,
    ShortConvolution,
    Ssm,
)
from larql.format.operations.contract import Site
from tests.builders.blocks import Array, backend_with, random_operands, run_block
from tests.naive import recurrent as naive

HIDDEN, EPS = 24, 1e-4


def linear(name: str, outputs: int, inputs: int = HIDDEN, *, bias: bool = False) -> Linear:
    return Linear(f"l/{name}", outputs, inputs, f"l/{name}.bias" if bias else None)


def conv(
    name: str, channels: int, taps: int, *, silu: bool = True, bias: bool = False
) -> Convolution:
    shift = f"l/{name}.bias" if bias else None
    return Convolution(f"l/{name}", channels, taps, "silu" if silu else None, shift)


def norm(width: int) -> Norm:
    return Norm("rms", width, EPS, weight="l/norm")


def gated_delta(
    key_heads: int, value_heads: int, key_dim: int, value_dim: int, taps: int
) -> GatedDelta:
    keys, values = key_heads * key_dim, value_heads * value_dim
    return GatedDelta(
        key_heads=key_heads, value_heads=value_heads, key_dim=key_dim, value_dim=value_dim,
        scale=key_dim**-0.5, unit_eps=1e-6, q=linear("q", keys), k=linear("k", keys),
        v=linear("v", values), gate=linear("gate", values), beta=linear("beta", value_heads),
        decay=linear("decay", value_heads), q_conv=conv("q_conv", keys, taps),
        k_conv=conv("k_conv", keys, taps), v_conv=conv("v_conv", values, taps),
        decay_rate="l/decay_rate", decay_bias="l/decay_bias", norm=norm(value_dim),
        gate_activation="silu", o=linear("o", HIDDEN, values),
    )  # fmt: skip


def kda(heads: int, key_dim: int, value_dim: int, rank: int) -> Kda:
    keys, values = heads * key_dim, heads * value_dim
    return Kda(
        heads=heads, key_dim=key_dim, value_dim=value_dim, scale=key_dim**-0.5, unit_eps=1e-6,
        q=linear("q", keys), k=linear("k", keys), v=linear("v", values),
        beta=linear("beta", heads), decay_down=linear("decay_down", rank),
        decay_up=linear("decay_up", keys, rank), gate_down=linear("gate_down", rank),
        gate_up=linear("gate_up", values, rank), q_conv=conv("q_conv", keys, 3),
        k_conv=conv("k_conv", keys, 3), v_conv=conv("v_conv", values, 3),
        decay_rate="l/decay_rate", decay_bias="l/decay_bias", norm=norm(value_dim),
        gate_activation="sigmoid", o=linear("o", HIDDEN, values),
    )  # fmt: skip


def ssm(heads: int, head_dim: int, groups: int, state_dim: int, most: float | None) -> Ssm:
    inner, states = heads * head_dim, groups * state_dim
    return Ssm(
        heads=heads, head_dim=head_dim, groups=groups, state_dim=state_dim,
        gate=linear("gate", inner, bias=True), x=linear("x", inner, bias=True),
        b=linear("b", states, bias=True), c=linear("c", states, bias=True),
        step=linear("step", heads, bias=True), x_conv=conv("x_conv", inner, 4, bias=True),
        b_conv=conv("b_conv", states, 4, bias=True), c_conv=conv("c_conv", states, 4, bias=True),
        decay_rate="l/decay_rate", step_bias="l/step_bias", skip="l/skip", norm=norm(inner),
        gate_activation="silu", o=linear("o", HIDDEN, inner, bias=True), step_least=0.4,
        step_most=most,
    )  # fmt: skip


SHORT = ShortConvolution(
    b=linear("b", 20, bias=True), c=linear("c", 20), v=linear("v", 20),
    conv=conv("taps", 20, 4, silu=False, bias=True), o=linear("o", HIDDEN, 20),
)  # fmt: skip

CASES: dict[str, tuple[Mixer, Callable[[Array, naive.Weights], Array]]] = {
    "gated delta": (
        gated_delta(2, 6, 7, 18, 4),
        lambda x, w: naive.gated_delta(x, w, 2, 6, EPS),
    ),
    "gated delta, tiled": (
        replace(gated_delta(2, 6, 7, 18, 4), value_order="tiled"),
        lambda x, w: naive.gated_delta(x, w, 2, 6, EPS, tiled=True),
    ),
    "gated delta, one tap": (
        gated_delta(3, 3, 16, 16, 1),
        lambda x, w: naive.gated_delta(x, w, 3, 3, EPS),
    ),
    "kda": (kda(3, 9, 20, 5), lambda x, w: naive.kda(x, w, 3, EPS)),
    "ssm": (ssm(4, 6, 2, 11, 0.8), lambda x, w: naive.ssm(x, w, 4, 2, (0.4, 0.8), EPS)),
    "ssm, steps of any length": (
        ssm(3, 17, 1, 8, None),
        lambda x, w: naive.ssm(x, w, 3, 1, (0.4, np.inf), EPS),
    ),
    "short convolution": (SHORT, naive.short_convolution),
}
EACH = pytest.mark.parametrize("name", CASES)
BACKENDS = pytest.mark.parametrize("backend", ["production", "reference"])


def block_of(name: str) -> Block:
    return Block(site="attention", mixer=CASES[name][0])


@EACH
@BACKENDS
def test_an_operation_is_what_its_definition_says(name: str, backend: str) -> None:
    block, definition = block_of(name), CASES[name][1]
    operands = random_operands(block, 1)
    inputs = np.random.default_rng(2).standard_normal((19, HIDDEN)).astype(np.float32).astype(float)
    weights = {operand.removeprefix("l/"): value for operand, value in operands.items()}
    expected = inputs + definition(inputs, weights)
    made = backend_with(backend, operands)
    found = run_block(made, block, inputs, [19])
    assert np.abs(found - expected).max() < 3e-6 * np.abs(expected).max()
    for chunks in ([1] * 19, [2, 1, 16], [7, 12]):
        assert run_block(made, block, inputs, chunks).tobytes() == found.tobytes()


@pytest.mark.parametrize("name", ["gated delta, tiled", "kda", "ssm"])
@BACKENDS
def test_rates_may_be_stored_as_they_are_used(name: str, backend: str) -> None:
    block, definition = block_of(name), CASES[name][1]
    operands = random_operands(block, 1)
    inputs = np.random.default_rng(2).standard_normal((19, HIDDEN)).astype(np.float32).astype(float)
    weights = {operand.removeprefix("l/"): value for operand, value in operands.items()}
    expected = inputs + definition(inputs, weights)
    mixer = block.mixer
    assert isinstance(mixer, GatedDelta | Kda | Ssm)
    stored = -np.exp(operands["l/decay_rate"])
    made = backend_with(backend, {**operands, "l/decay_rate": stored})
    negated = replace(block, mixer=replace(mixer, rates="negated"))
    found = run_block(made, negated, inputs, [19])
    assert np.abs(found - expected).max() < 3e-6 * np.abs(expected).max()
    for chunks in ([1] * 19, [7, 12]):
        assert run_block(made, negated, inputs, chunks).tobytes() == found.tobytes()


@EACH
def test_contradictions_are_named(name: str) -> None:
    mixer = CASES[name][0]
    assert list(mixer.defects(HIDDEN, "here")) == []
    assert any("expected" in defect.problem for defect in mixer.defects(HIDDEN + 1, "here"))
    assert all(spec.layer == 5 for spec in mixer.state(5))
    assert mixer.words() and mixer.brief()


@pytest.mark.parametrize(
    ("mixer", "problem"),
    [
        (replace(gated_delta(2, 6, 7, 18, 4), key_heads=4), "cannot share 4 key heads"),
        (replace(gated_delta(2, 6, 7, 18, 4), unit_eps=-1.0), "unit eps is -1.0"),
        (replace(kda(3, 9, 20, 5), gate_up=linear("u", 60, 4)), "gate up is [60, 4]"),
        (replace(kda(3, 9, 20, 5), unit_eps=-1.0), "unit eps is -1.0"),
        (replace(ssm(4, 6, 2, 11, 0.8), groups=3), "cannot share 3 groups"),
        (replace(ssm(4, 6, 2, 11, 0.8), step_most=0.1), "limited to 0.4 .. 0.1"),
        (replace(SHORT, conv=conv("taps", 20, 0)), "taps is 0"),
        (replace(SHORT, conv=conv("taps", 19, 3)), "is [20, 24], expected [19, 24]"),
    ],
)
def test_each_contradiction_has_its_words(mixer: Mixer, problem: str) -> None:
    assert any(problem in defect.problem for defect in mixer.defects(HIDDEN, "here"))


def test_a_convolution_keeps_its_site() -> None:
    sites: tuple[Site, ...] = ("attention", "ffn")
    assert [conv("c", 5, 3).state(2, site).site for site in sites] == ["attention", "ffn"]
    assert conv("c", 5, 3).state(2, "ffn").rows == 2
