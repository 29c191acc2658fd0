"""Forms of softmax attention against a float64 twin that is written position by position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.graph import Block, Linear, Norm, Rope, SoftmaxAttention
from tests.builders.blocks import backend_with, random_operands, run_block

Array = npt.NDArray[np.float64]
HIDDEN, HEADS, KV_HEADS, DIM = 24, 4, 2, 8
INPUTS = np.random.default_rng(3).standard_normal((9, HIDDEN))
BACKENDS = ("reference", "production")


def _linear(name: str, outputs: int, inputs: int = HIDDEN, bias: bool = False) -> Linear:
    return Linear(f"o/{name}.weight", outputs, inputs, f"o/{name}.bias" if bias else None)


PLAIN = SoftmaxAttention(
    heads=HEADS,
    kv_heads=KV_HEADS,
    key_dim=DIM,
    value_dim=DIM,
    scale=0.3,
    q=_linear("q", HEADS * DIM),
    k=_linear("k", KV_HEADS * DIM),
    v=_linear("v", KV_HEADS * DIM),
    o=_linear("o", HIDDEN, HEADS * DIM),
    rope=Rope(layout="half", dims=4, theta=100.0),
)


def _project(linear: Linear, operands: Mapping[str, Array], x: Array) -> Array:
    bias = 0.0 if linear.bias is None else operands[linear.bias]
    return operands[linear.weight] @ x + bias


def _normed(norm: Norm | None, operands: Mapping[str, Array], x: Array) -> Array:
    if norm is None:
        return x
    rows = x.reshape(-1, norm.width)
    weight = 1.0 if norm.weight is None else operands[norm.weight]
    rows = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + norm.eps) * weight
    return rows.reshape(x.shape)


def _cut(x: Array, clip: float | None) -> Array:
    return x if clip is None else np.minimum(np.maximum(x, -clip), clip)


def twin(mixer: SoftmaxAttention, operands: Mapping[str, Array], inputs: Array) -> Array:
    """Return what a block without norms makes of its inputs."""
    keys, values = [], []
    for position, x in enumerate(inputs):
        assert mixer.k is not None
        raw = _project(mixer.k, operands, x)
        v = raw if mixer.v is None else _project(mixer.v, operands, x)
        k = _cut(_normed(mixer.k_norm, operands, raw), mixer.clip).reshape(KV_HEADS, DIM)
        v = _cut(_normed(mixer.v_norm, operands, v.reshape(KV_HEADS, DIM)), mixer.clip)
        keys.append([_turned(mixer.rope, head, position) for head in k])
        values.append(v.reshape(KV_HEADS, DIM))
    return attended(mixer, operands, inputs, keys, values)


def attended(
    mixer: SoftmaxAttention,
    operands: Mapping[str, Array],
    inputs: Array,
    keys: Sequence[Sequence[Array]],
    values: Sequence[Array],
) -> Array:
    """Return the same, with keys and values ``[positions][kv_heads, dim]`` given."""
    out = []
    for position, x in enumerate(inputs):
        q = _cut(_normed(mixer.q_norm, operands, _project(mixer.q, operands, x)), mixer.clip)
        mixed = np.zeros((HEADS, DIM))
        for head, query in enumerate(q.reshape(HEADS, DIM)):
            kv = head // (HEADS // KV_HEADS)
            turned = _turned(mixer.rope, query, position)
            first = 0 if mixer.window is None else max(0, position - mixer.window + 1)
            scores = [float(turned @ keys[o][kv]) for o in range(first, position + 1)]
            weights = np.exp(np.array(scores) * mixer.scale)
            total = weights.sum()
            if mixer.sinks is not None:
                total += math.exp(operands[mixer.sinks][head])
            for weight, other in zip(weights, range(first, position + 1), strict=True):
                mixed[head] += weight / total * values[other][kv]
        row = mixed.reshape(-1)
        if mixer.gate is not None:
            row = row / (1.0 + np.exp(-_project(mixer.gate, operands, x)))
        out.append(x + _project(mixer.o, operands, row))
    return np.array(out)


def _turned(rope: Rope | None, x: Array, position: int) -> Array:
    out = x.copy()
    if rope is None:
        return out
    half = rope.dims // 2
    for i in range(half if rope.turning is None else rope.turning):
        angle = position * rope.theta ** (-2 * i / rope.dims)
        cos, sin = math.cos(angle), math.sin(angle)
        out[i] = x[i] * cos - x[i + half] * sin
        out[i + half] = x[i + half] * cos + x[i] * sin
    return out


def _head_norm(name: str | None, width: int) -> Norm:
    weight = None if name is None else f"o/{name}.weight"
    return Norm(kind="rms", width=width, eps=1e-3, weight=weight)


FORMS = {
    "plain": PLAIN,
    "gate": replace(PLAIN, gate=_linear("gate", HEADS * DIM, bias=True)),
    "sinks": replace(PLAIN, sinks="o/sinks", window=4),
    "values are keys": replace(PLAIN, v=None),
    "values are keys, normed": replace(
        PLAIN,
        v=None,
        v_norm=_head_norm(None, DIM),
        k_norm=_head_norm("k_norm", DIM),
        q_norm=_head_norm("q_norm", DIM),
    ),
    "norms of whole projections, clipped": replace(
        PLAIN,
        q_norm=_head_norm("q_norm", HEADS * DIM),
        k_norm=_head_norm("k_norm", KV_HEADS * DIM),
        clip=0.6,
    ),
    "proportional rope": replace(PLAIN, rope=Rope(layout="half", dims=DIM, theta=100.0, turning=2)),
}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
def test_form(name: str, form: str) -> None:
    mixer = FORMS[form]
    block = Block(site="attention", mixer=mixer)
    assert list(mixer.defects(HIDDEN, "here")) == []
    operands = random_operands(block, 1)
    expected = twin(mixer, operands, INPUTS)
    backend = backend_with(name, operands)
    found = run_block(backend, block, INPUTS, [9])
    assert np.abs(found - expected).max() < 2e-6 * np.abs(expected).max()
    steps = run_block(backend, block, INPUTS, [1, 3, 1, 4])
    assert steps.tobytes() == found.tobytes()
    if form != "plain":
        plain = twin(PLAIN, random_operands(Block(site="attention", mixer=PLAIN), 1), INPUTS)
        assert np.abs(expected - plain).max() > 1e-2


@pytest.mark.parametrize("name", BACKENDS)
def test_shared_keys_and_values(name: str) -> None:
    source = replace(PLAIN, window=4)
    mixer = replace(source, q=_linear("q2", HEADS * DIM), k=None, v=None, shared=0)
    blocks = Block(site="attention", mixer=source), Block(site="attention", mixer=mixer)
    operands = random_operands(blocks[0], 1) | random_operands(blocks[1], 2)
    backend = backend_with(name, operands)
    assert mixer.state(1) == ()
    regions = [backend.region(spec, 9, 3) for spec in source.state(0)]
    found = np.concatenate(
        [
            [run_block(backend, block, INPUTS[at : at + 3], [3], regions, at) for block in blocks]
            for at in (0, 3, 6)
        ],
        axis=1,
    )
    keys, values = [], []
    for position, x in enumerate(INPUTS):
        assert source.k is not None and source.v is not None
        k = _project(source.k, operands, x).reshape(KV_HEADS, DIM)
        keys.append([_turned(source.rope, head, position) for head in k])
        values.append(_project(source.v, operands, x).reshape(KV_HEADS, DIM))
    for row, each in zip(found, (source, mixer), strict=True):
        expected = attended(each, operands, INPUTS, keys, values)
        assert np.abs(row - expected).max() < 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("mixer", "problem"),
    [
        (replace(PLAIN, gate=_linear("gate", HEADS)), "gate is [4, 24]"),
        (replace(PLAIN, k=None, v=None), "has no k"),
        (replace(PLAIN, shared=0), "has a projection or norm of its own"),
        (replace(PLAIN, clip=0.0), "clip is 0.0"),
        (replace(PLAIN, k_norm=_head_norm("k_norm", HEADS * DIM)), "norm width is 32, expected 8"),
        (replace(PLAIN, v=None, value_dim=4), "values are keys, but are 4 wide and not 8"),
    ],
)
def test_contradiction(mixer: SoftmaxAttention, problem: str) -> None:
    assert any(problem in defect.line() for defect in mixer.defects(HIDDEN, "here"))
