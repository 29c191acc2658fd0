"""Elementary functions against float64: the error bounds that `larql.kernels.math` states."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from larql.kernels.activation import KINDS, activate, elementary, gate
from tests.kernels.same import normal, same

LEAST_NORMAL = 2.0**-126
RATE = math.sqrt(2 / math.pi)


def exp(value: float) -> float:
    return math.inf if value > 89 else math.exp(value)


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


REFERENCES: dict[str, tuple[Callable[[float], float], float]] = {
    "exp": (exp, 1.1),
    "tanh": (math.tanh, 1.6),
    "erf": (math.erf, 1.4),
    "sigmoid": (sigmoid, 2.6),
    "softplus": (softplus, 2.4),
}
ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "silu": lambda v: v * sigmoid(v),
    "gelu_tanh": lambda v: (
        0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    ),
    "gelu_erf": lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
    "relu": lambda v: max(v, 0.0),
    "relu2": lambda v: max(v, 0.0) ** 2,
    "sigmoid": sigmoid,
}


def arguments() -> np.ndarray:  # type: ignore[type-arg]
    g = np.random.default_rng(0)
    parts = (
        g.uniform(-110, 95, 20000),
        g.standard_normal(20000),
        g.uniform(-6, 6, 20000),
        10.0 ** g.uniform(-30, 2, 4000),
        (0.0, -0.0, 0.625, 0.9375, -0.9375, 4.0, 88.7, 89.5, -104.5, 1e30, -1e30),
    )
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize("name", REFERENCES)
def test_error_in_units_of_the_last_place(name: str) -> None:
    reference, bound = REFERENCES[name]
    x = arguments()
    out = np.empty_like(x)
    elementary(x, name, out)
    exact = np.array([reference(float(v)) for v in x])
    with np.errstate(over="ignore"):
        rounded = np.abs(exact.astype(np.float32))
    finite = np.isfinite(rounded)
    assert (out[~finite] == np.inf).all()
    unit = np.spacing(np.maximum(rounded[finite], np.float32(LEAST_NORMAL))).astype(float)
    assert (np.abs(out[finite] - exact[finite]) / unit).max() <= bound


@pytest.mark.parametrize("kind", KINDS)
def test_activations(kind: str) -> None:
    x = arguments()
    x = x[np.abs(x) < 90]
    out = np.empty_like(x)
    activate(x, kind, out)
    exact = np.array([ACTIVATIONS[kind](float(v)) for v in x])
    # 1 + erf and 1 + tanh cancel for negative arguments: the error is relative to x there.
    assert (np.abs(out - exact) <= 4e-7 * np.maximum(np.abs(exact), np.abs(x)) + 1e-37).all()


@pytest.mark.parametrize("name", [*KINDS, "exp", "tanh", "erf"])
def test_nan_is_carried_and_a_lane_is_a_lane(name: str) -> None:
    x = normal(1, 37)
    x[[3, 36]] = np.nan
    out = np.empty_like(x)
    elementary(x, name, out)
    assert (np.isnan(out) == np.isnan(x)).all()
    for i in range(len(x)):
        one = np.empty(1, np.float32)
        elementary(x[i : i + 1], name, one)
        assert same(one, out[i : i + 1])


def test_exact_values() -> None:
    x = np.array([0, -np.inf, np.inf, 0], np.float32)
    out = np.empty_like(x)
    elementary(x, "exp", out)
    assert out.tolist() == [1, 0, np.inf, 1]
    elementary(x, "tanh", out)
    assert out.tolist() == [0, -1, 1, 0]
    elementary(x, "erf", out)
    assert out.tolist() == [0, -1, 1, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_gate_is_the_activation_times_up(kind: str) -> None:
    g, up = normal(2, 3, 2731), normal(3, 3, 2731)
    out, alone = np.empty_like(g), np.empty_like(g)
    gate(g, up, kind, out)
    activate(g, kind, alone)
    assert same(out, alone * up)
    gate(g, up, kind, up)
    assert same(out, up)


def test_refusals() -> None:
    x = normal(0, 2, 3)
    with pytest.raises(ValueError, match="activation must be one of"):
        activate(x, "swish", x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="activation must be one of"):
        gate(x, x, "exp", x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="up must be contiguous float32"):
        gate(x, x[:, :2], "silu", x)
    with pytest.raises(ValueError, match="gate must be contiguous float32"):
        gate(x.astype(float), x, "silu", x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out must be contiguous float32"):
        activate(x, "silu", x[:1])
