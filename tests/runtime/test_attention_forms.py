"""Forms of softmax attention against a float64 twin that is written position by position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.graph import Block, Linear, Rope, SoftmaxAttention
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


def twin(mixer: SoftmaxAttention, operands: Mapping[str, Array], inputs: Array) -> Array:
    """Return what a block without norms makes of its inputs."""
    out = []
    for position in range(len(inputs)):
        q = _project(mixer.q, operands, inputs[position]).reshape(HEADS, DIM)
        mixed = np.zeros((HEADS, DIM))
        for head in range(HEADS):
            scores, values = [], []
            for other in range(position + 1):
                k = _project(mixer.k, operands, inputs[other]).reshape(KV_HEADS, DIM)
                v = _project(mixer.v, operands, inputs[other]).reshape(KV_HEADS, DIM)
                kv = head // (HEADS // KV_HEADS)
                query, key = _turned(q[head], position), _turned(k[kv], other)
                scores.append(float(query @ key) * mixer.scale)
                values.append(v[kv])
            weights = np.exp(np.array(scores))
            mixed[head] = weights @ np.array(values) / weights.sum()
        row = mixed.reshape(-1)
        if mixer.gate is not None:
            row = row / (1.0 + np.exp(-_project(mixer.gate, operands, inputs[position])))
        out.append(inputs[position] + _project(mixer.o, operands, row))
    return np.array(out)


def _turned(x: Array, position: int) -> Array:
    out = x.copy()
    for i in range(2):
        angle = position * 100.0 ** (-2 * i / 4)
        cos, sin = math.cos(angle), math.sin(angle)
        out[i] = x[i] * cos - x[i + 2] * sin
        out[i + 2] = x[i + 2] * cos + x[i] * sin
    return out


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("gated", [False, True])
def test_output_gate(name: str, gated: bool) -> None:
    gate = _linear("gate", HEADS * DIM, bias=True) if gated else None
    block = Block(site="attention", mixer=replace(PLAIN, gate=gate))
    operands = random_operands(block, 1)
    expected = twin(block.mixer, operands, INPUTS)  # type: ignore[arg-type]
    backend = backend_with(name, operands)
    found = run_block(backend, block, INPUTS, [9])
    assert np.abs(found - expected).max() < 2e-6 * np.abs(expected).max()
    steps = run_block(backend, block, INPUTS, [1, 3, 1, 4])
    assert steps.tobytes() == found.tobytes()


def test_gate_of_another_width_is_a_defect() -> None:
    mixer = replace(PLAIN, gate=_linear("gate", HEADS))
    assert any("gate is [4, 24]" in defect.line() for defect in mixer.defects(HIDDEN, "here"))
