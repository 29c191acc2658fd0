"""Latent attention against a float64 twin that makes every head's keys and values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.codec import ENCODINGS, decode, encode
from larql.format.graph import Block, LatentAttention, Linear, Norm, Rope
from larql.runtime.backends.base import Backend
from larql.runtime.latent_region import LatentRegion
from larql.runtime.operands import StoredOperand
from larql.runtime.state import State
from larql.runtime.taps import BlockTaps, Keep
from tests.builders.blocks import backend_with, random_operands, run_block

Array = npt.NDArray[np.float64]
HIDDEN, HEADS, NOPE, ROPE, VALUE, LATENT = 24, 3, 6, 4, 5, 20
INPUTS = np.random.default_rng(3).standard_normal((70, HIDDEN))
BACKENDS = ("reference", "production")


def _linear(name: str, outputs: int, inputs: int = HIDDEN, bias: bool = False) -> Linear:
    return Linear(f"o/{name}.weight", outputs, inputs, f"o/{name}.bias" if bias else None)


def _norm(name: str, width: int) -> Norm:
    return Norm(kind="rms", width=width, eps=1e-6, weight=f"o/{name}.weight")


DIRECT = LatentAttention(
    heads=HEADS,
    nope_dim=NOPE,
    rope_dim=ROPE,
    value_dim=VALUE,
    latent_dim=LATENT,
    scale=0.4,
    q_nope=_linear("q_nope", HEADS * NOPE),
    q_rope=_linear("q_rope", HEADS * ROPE),
    latent=_linear("latent", LATENT, bias=True),
    latent_norm=_norm("latent_norm", LATENT),
    k_rope=_linear("k_rope", ROPE, bias=True),
    k_up=_linear("k_up", HEADS * NOPE, LATENT),
    v_up=_linear("v_up", HEADS * VALUE, LATENT),
    o=_linear("o", HIDDEN, HEADS * VALUE),
    rope=Rope(layout="adjacent", dims=ROPE, theta=50.0),
)
NARROW = replace(
    DIRECT,
    q_down=_linear("q_down", 10),
    q_norm=_norm("q_norm", 10),
    q_nope=_linear("q_nope", HEADS * NOPE, 10),
    q_rope=_linear("q_rope", HEADS * ROPE, 10),
    rope=None,
)
FORMS = {"direct": DIRECT, "narrow queries, no rope": NARROW}


def _project(linear: Linear, operands: Mapping[str, Array], x: Array) -> Array:
    return operands[linear.weight] @ x + (0.0 if linear.bias is None else operands[linear.bias])


def _normed(norm: Norm | None, operands: Mapping[str, Array], x: Array) -> Array:
    assert norm is not None and norm.weight is not None
    return np.asarray(x / math.sqrt((x**2).mean() + norm.eps) * operands[norm.weight])


def _turned(rope: Rope | None, x: Array, position: int) -> Array:
    out = x.copy()
    if rope is None:
        return out
    for i in range(ROPE // 2):
        angle = position * rope.theta ** (-2 * i / ROPE)
        out[2 * i] = x[2 * i] * math.cos(angle) - x[2 * i + 1] * math.sin(angle)
        out[2 * i + 1] = x[2 * i + 1] * math.cos(angle) + x[2 * i] * math.sin(angle)
    return out


def twin(mixer: LatentAttention, operands: Mapping[str, Array], inputs: Array) -> Array:
    keys, values, out = [], [], []
    for position, x in enumerate(inputs):
        latent = _normed(mixer.latent_norm, operands, _project(mixer.latent, operands, x))
        tail = _turned(mixer.rope, _project(mixer.k_rope, operands, x), position)
        nope = _project(mixer.k_up, operands, latent).reshape(HEADS, NOPE)
        keys.append([np.concatenate([head, tail]) for head in nope])
        values.append(_project(mixer.v_up, operands, latent).reshape(HEADS, VALUE))
        y = x
        if mixer.q_down is not None:
            y = _normed(mixer.q_norm, operands, _project(mixer.q_down, operands, x))
        q_nope = _project(mixer.q_nope, operands, y).reshape(HEADS, NOPE)
        q_rope = _project(mixer.q_rope, operands, y).reshape(HEADS, ROPE)
        mixed = np.zeros((HEADS, VALUE))
        for head in range(HEADS):
            query = np.concatenate([q_nope[head], _turned(mixer.rope, q_rope[head], position)])
            weights = np.exp([query @ key[head] * mixer.scale for key in keys])
            for weight, value in zip(weights / weights.sum(), values, strict=True):
                mixed[head] += weight * value[head]
        out.append(x + _project(mixer.o, operands, mixed.reshape(-1)))
    return np.array(out)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
def test_form(name: str, form: str) -> None:
    mixer = FORMS[form]
    block = Block(site="attention", mixer=mixer)
    assert list(mixer.defects(HIDDEN, "here")) == []
    operands = random_operands(block, 1)
    expected = twin(mixer, operands, INPUTS)
    backend = backend_with(name, operands)
    found = run_block(backend, block, INPUTS, [70])
    assert np.abs(found - expected).max() < 3e-6 * np.abs(expected).max()
    steps = run_block(backend, block, INPUTS, [1, 18, 1, 50])
    assert steps.tobytes() == found.tobytes()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
def test_each_head_s_keys_may_be_turned(name: str, form: str) -> None:
    """Rows of a latent's numbers then carry a query over."""
    mixer = FORMS[form]
    operands = random_operands(Block(site="attention", mixer=mixer), 1)
    expected = twin(mixer, operands, INPUTS)
    turned = replace(mixer, k_up=_linear("k_up", HEADS * LATENT, NOPE), k_up_rows="latent")
    assert list(turned.defects(HIDDEN, "here")) == []
    matrices = operands[mixer.k_up.weight].reshape(HEADS, NOPE, LATENT).swapaxes(1, 2)
    stored = {**operands, mixer.k_up.weight: matrices.reshape(HEADS * LATENT, NOPE)}
    backend, block = backend_with(name, stored), Block(site="attention", mixer=turned)
    found = run_block(backend, block, INPUTS, [70])
    assert np.abs(found - expected).max() < 3e-6 * np.abs(expected).max()
    steps = run_block(backend, block, INPUTS, [1, 18, 1, 50])
    assert steps.tobytes() == found.tobytes()


@pytest.mark.parametrize("encoding", ["bf16", "q4_k"])
def test_stored_forms_of_the_matrices_of_heads(encoding: str) -> None:
    """They are decoded as any other matrix, whatever its rows are made of."""
    mixer = replace(
        DIRECT,
        latent_dim=256,
        latent=_linear("latent", 256, bias=True),
        latent_norm=_norm("latent_norm", 256),
        k_up=_linear("k_up", HEADS * NOPE, 256),
        v_up=_linear("v_up", HEADS * VALUE, 256),
    )
    block = Block(site="attention", mixer=mixer)
    operands = random_operands(block, 1)
    backend = backend_with("production", operands)
    kind = ENCODINGS[encoding]
    for linear in (mixer.k_up, mixer.v_up):
        rows = encode(kind, operands[linear.weight].astype(np.float32))
        operands[linear.weight] = decode(kind, rows, 256).astype(np.float64)
        backend.bind(StoredOperand(linear.weight, kind, (len(rows), 256), rows.reshape(-1)))
    expected = twin(mixer, operands, INPUTS[:20])
    found = run_block(backend, block, INPUTS[:20], [20])
    assert np.abs(found - expected).max() < 3e-6 * np.abs(expected).max()
    steps = run_block(backend, block, INPUTS[:20], [1, 19])
    assert steps.tobytes() == found.tobytes()


@pytest.mark.parametrize("name", BACKENDS)
def test_state(name: str) -> None:
    """A snapshot holds one row for each position, and brings back every bit."""
    block = Block(site="attention", mixer=DIRECT)
    backend = backend_with(name, random_operands(block, 1))
    state = State(backend.region(spec, 70, 70) for spec in DIRECT.state(0))
    run_block(backend, block, INPUTS[:65], [65], state.regions)
    state.length = 65
    snapshot = state.snapshot()
    (rows,) = snapshot.regions
    assert rows.arrays()["rows"].shape == (65, LATENT + ROPE)
    expected = _after(backend, block, state)
    run_block(backend, block, -INPUTS[:65], [65], state.regions)
    assert _after(backend, block, state) != expected
    state.restore(snapshot)
    assert _after(backend, block, state) == expected
    assert state.snapshot().sha256() == snapshot.sha256()
    state.truncate(3)
    assert state.snapshot().regions[0].arrays()["rows"].shape == (3, LATENT + ROPE)


def _after(backend: Backend, block: Block, state: State) -> bytes:
    return run_block(backend, block, INPUTS[65:66], [1], state.regions, 65).tobytes()


@pytest.mark.parametrize("name", BACKENDS)
def test_pattern(name: str) -> None:
    """What an observer is told of the weights mixes the latents to what the heads mixed."""
    block = Block(site="attention", mixer=DIRECT)
    operands = random_operands(block, 1)
    backend = backend_with(name, operands)
    (region,) = (backend.region(spec, 6, 6) for spec in DIRECT.state(0))
    assert isinstance(region, LatentRegion)
    taps = BlockTaps(block, 6, Keep(heads=True, queries=True))
    backend.write(block, INPUTS[:6].astype(np.float32), [region], 0, taps)
    assert taps.queries is not None and taps.heads is not None
    found = backend.attention_pattern(DIRECT, taps.queries, region.kept, 0)
    latents = np.array(
        [
            _normed(DIRECT.latent_norm, operands, _project(DIRECT.latent, operands, x))
            for x in INPUTS[:6]
        ]
    )
    for t, weights in enumerate(found):
        assert weights.shape == (HEADS, t + 1)
        for head in range(HEADS):
            rows = operands[DIRECT.v_up.weight].reshape(HEADS, VALUE, LATENT)[head]
            mixed = rows @ (weights[head] @ latents[: t + 1])
            assert np.abs(mixed - taps.heads[t, head]).max() < 1e-5


@pytest.mark.parametrize(
    ("mixer", "problem"),
    [
        (replace(DIRECT, q_norm=_norm("q_norm", HIDDEN)), "has a q_norm, but no q_down"),
        (replace(DIRECT, latent_dim=8), "latent is [20, 24], expected [8, 24]"),
        (
            replace(DIRECT, k_up=_linear("k_up", HEADS * NOPE, LATENT, bias=True)),
            "k_up has a bias",
        ),
        (replace(DIRECT, rope_dim=0), "rope width is 0"),
        (replace(DIRECT, k_up_rows="latent"), "k_up is ["),
    ],
)
def test_contradiction(mixer: LatentAttention, problem: str) -> None:
    assert any(problem in defect.line() for defect in mixer.defects(HIDDEN, "here"))
