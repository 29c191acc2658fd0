"""Forms of softmax attention against a float64 twin that is written position by position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.graph import (
    Block,
    Convolution,
    ConvolutionRows,
    DistanceBias,
    KvRows,
    Linear,
    Norm,
    PositionScale,
    Rope,
    SoftmaxAttention,
)
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
    assert mixer.k is not None
    made = _convolved(mixer.k_conv, operands, [_project(mixer.k, operands, x) for x in inputs])
    kept = made
    if mixer.v is not None:
        rows = [_project(mixer.v, operands, x) for x in inputs]
        kept = _convolved(mixer.v_conv, operands, rows)
    for position, (raw, v) in enumerate(zip(made, kept, strict=True)):
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
            growth = _growth(mixer.position_scale, position)
            turned = _turned(mixer.rope, query, position) * growth
            first = 0 if mixer.window is None else max(0, position - mixer.window + 1)
            scores = [float(turned @ keys[o][kv]) * mixer.scale for o in range(first, position + 1)]
            if mixer.distance is not None:
                mix = _project(mixer.distance.mix, operands, x).reshape(HEADS, -1)[head] * growth
                profiles = operands[mixer.distance.profiles]
                for place, other in enumerate(range(first, position + 1)):
                    if position - other < mixer.distance.extent:
                        scores[place] += float(mix @ profiles[:, position - other])
            weights = np.exp(np.array(scores))
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


def _convolved(
    conv: Convolution | None, operands: Mapping[str, Array], rows: Sequence[Array]
) -> list[Array]:
    if conv is None:
        return list(rows)
    weight, before = operands[conv.weight], [np.zeros_like(rows[0])] * (conv.taps - 1)
    seen, made = [*before, *rows], []
    for t, row in enumerate(rows):
        y = sum((weight[:, j] * seen[t + j] for j in range(conv.taps)), np.zeros_like(row))
        made.append(y + row if conv.residual else y)
    return made


def _growth(scale: PositionScale | None, position: int) -> float:
    if scale is None:
        return 1.0
    return 1.0 + scale.rate * math.log(max((position + 1) / scale.floor, 1.0))


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


def _conv(name: str, channels: int) -> Convolution:
    return Convolution(f"o/{name}.weight", channels, 3, residual=True)


def _distance(count: int, extent: int) -> DistanceBias:
    return DistanceBias(_linear("mix", HEADS * count), "o/profiles", count, extent)


K_CONV, V_CONV = _conv("k_conv", KV_HEADS * DIM), _conv("v_conv", KV_HEADS * DIM)
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
    "convolved keys and values": replace(PLAIN, k_conv=K_CONV, v_conv=V_CONV),
    "convolved keys are values": replace(PLAIN, v=None, k_conv=K_CONV),
    "distances": replace(PLAIN, rope=None, distance=_distance(5, 4)),
    "distances in a window, scaled": replace(
        PLAIN, window=6, distance=_distance(3, 6), position_scale=PositionScale(3, 0.8)
    ),
    "scaled without distances": replace(PLAIN, position_scale=PositionScale(2, 1.5)),
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
def test_what_a_block_writes_is_convolved(name: str) -> None:
    conv = _conv("conv", HIDDEN)
    mixer = replace(PLAIN, k_conv=K_CONV)
    block = Block(site="attention", mixer=mixer, residual_scale=0.5, conv=conv)
    assert [type(spec) for spec in block.state(0)] == [KvRows, ConvolutionRows, ConvolutionRows]
    operands = random_operands(block, 1)
    delta = twin(mixer, operands, INPUTS) - INPUTS
    expected = INPUTS + 0.5 * np.array(_convolved(conv, operands, list(delta)))
    backend = backend_with(name, operands)
    found = run_block(backend, block, INPUTS, [9])
    assert np.abs(found - expected).max() < 2e-6 * np.abs(expected).max()
    assert run_block(backend, block, INPUTS, [1, 3, 1, 4]).tobytes() == found.tobytes()


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
        (replace(PLAIN, shared=0), "has a projection, norm or convolution of its own"),
        (
            replace(PLAIN, shared=0, k=None, v=None, k_conv=K_CONV),
            "has a projection, norm or convolution of its own",
        ),
        (replace(PLAIN, k_conv=_conv("k_conv", 8)), "k convolution channels is 8, expected 16"),
        (replace(PLAIN, v_conv=_conv("v_conv", 8)), "v convolution channels is 8, expected 16"),
        (replace(PLAIN, v=None, v_conv=V_CONV), "convolves values that it has no projection for"),
        (
            replace(PLAIN, distance=replace(_distance(5, 4), count=6)),
            "distance mix is [20, 24], expected [24, 24]",
        ),
        (replace(PLAIN, distance=_distance(5, 0)), "distance extent is 0"),
        (replace(PLAIN, position_scale=PositionScale(0, 0.1)), "position scale floor is 0"),
        (replace(PLAIN, position_scale=PositionScale(1, 0.0)), "position scale rate is 0.0"),
        (replace(PLAIN, clip=0.0), "clip is 0.0"),
        (replace(PLAIN, k_norm=_head_norm("k_norm", HEADS * DIM)), "norm width is 32, expected 8"),
        (replace(PLAIN, v=None, value_dim=4), "values are keys, but are 4 wide and not 8"),
    ],
)
def test_contradiction(mixer: SoftmaxAttention, problem: str) -> None:
    assert any(problem in defect.line() for defect in mixer.defects(HIDDEN, "here"))
