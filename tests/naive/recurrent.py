"""Recurrent operations in float64 from their definitions, all positions of a stream at once.

Each takes the operation's weights by their use in a plan, without the operation's own name in
front, and inputs ``[T, hidden]``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = Mapping[str, Array]


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def project(x: Array, w: Weights, name: str) -> Array:
    return x @ w[name].T + w.get(f"{name}.bias", np.zeros(1))


def convolve(x: Array, w: Weights, name: str) -> Array:
    """The last tap belongs to the position itself; before the first there are zeros."""
    taps = w[name].shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    y = sum(padded[j : j + len(x)] * w[name][:, j] for j in range(taps))
    return np.asarray(y + w.get(f"{name}.bias", np.zeros(1)))


def heads(x: Array, count: int, total: int, tiled: bool = False) -> Array:
    each = x.reshape(len(x), count, -1)
    return np.tile(each, (1, total // count, 1)) if tiled else np.repeat(each, total // count, 1)


def unit(x: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt((x**2).sum(-1, keepdims=True) + eps))


def rms(x: Array, weight: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight)


def delta_rule(q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Array:
    """q, k [T, H, K], v [T, H, V], decay [T, H, K] or [T, H, 1], beta [T, H]."""
    out = np.zeros_like(v)
    for head in range(v.shape[1]):
        state = np.zeros((k.shape[2], v.shape[2]))
        for t in range(len(v)):
            state = decay[t, head][:, None] * state
            error = v[t, head] - k[t, head] @ state
            state = state + beta[t, head] * np.outer(k[t, head], error)
            out[t, head] = q[t, head] @ state
    return out


def gated_delta(
    x: Array, w: Weights, key_heads: int, value_heads: int, eps: float, tiled: bool = False
) -> Array:
    q, k, v = (silu(convolve(project(x, w, p), w, f"{p}_conv")) for p in "qkv")
    q, k = (heads(rows, key_heads, value_heads, tiled) for rows in (q, k))
    v = heads(v, value_heads, value_heads)
    step = softplus(project(x, w, "decay") + w["decay_bias"])
    decay = np.exp(-np.exp(w["decay_rate"]) * step)[:, :, None]
    scale = q.shape[-1] ** -0.5
    beta = sigmoid(project(x, w, "beta"))
    read = delta_rule(unit(q, 1e-6) * scale, unit(k, 1e-6), v, decay, beta)
    normed = rms(read, w["norm"], eps).reshape(len(x), -1)
    return project(normed * silu(project(x, w, "gate")), w, "o")


def kda(x: Array, w: Weights, count: int, eps: float) -> Array:
    q, k, v = (heads(silu(convolve(project(x, w, p), w, f"{p}_conv")), count, count) for p in "qkv")
    raw = project(project(x, w, "decay_down"), w, "decay_up") + w["decay_bias"]
    decay = np.exp(-np.exp(w["decay_rate"])[:, None] * heads(softplus(raw), count, count))
    beta = sigmoid(project(x, w, "beta"))
    read = delta_rule(unit(q, 1e-6) * q.shape[-1] ** -0.5, unit(k, 1e-6), v, decay, beta)
    normed = rms(read, w["norm"], eps).reshape(len(x), -1)
    gate = sigmoid(project(project(x, w, "gate_down"), w, "gate_up"))
    return project(normed * gate, w, "o")


def ssm(
    x: Array, w: Weights, count: int, groups: int, limits: tuple[float, float], eps: float
) -> Array:
    inner, b, c = (silu(convolve(project(x, w, p), w, f"{p}_conv")) for p in "xbc")
    inner, b, c = heads(inner, count, count), heads(b, groups, count), heads(c, groups, count)
    step = np.clip(softplus(project(x, w, "step") + w["step_bias"]), *limits)
    decay = np.exp(-np.exp(w["decay_rate"]) * step)
    y = np.zeros_like(inner)
    for head in range(count):
        state = np.zeros((inner.shape[2], b.shape[2]))
        for t in range(len(x)):
            added = step[t, head] * np.outer(inner[t, head], b[t, head])
            state = decay[t, head] * state + added
            y[t, head] = state @ c[t, head] + w["skip"][head] * inner[t, head]
    gated = y.reshape(len(x), -1) * silu(project(x, w, "gate"))
    parts = gated.reshape(len(x), groups, -1)
    normed = rms(parts, w["norm"].reshape(groups, -1), eps).reshape(len(x), -1)
    return project(normed, w, "o")


def short_convolution(x: Array, w: Weights) -> Array:
    found = convolve(project(x, w, "b") * project(x, w, "v"), w, "taps")
    return project(project(x, w, "c") * found, w, "o")
