"""A decoder forward pass in float64, all positions at once, from weights by Hugging Face name.

Written from the architectures' definitions: it knows nothing of containers or graphs. Rotary
embedding pairs element ``i`` with ``i + dims/2``; a query at position q sees keys
``q - window < k <= q``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.builders.models import GemmaSpec, LlamaSpec, Scaling

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LayerNumbers:
    """What one layer needs beside its weights."""

    frequencies: Array
    window: int | None


@dataclass(frozen=True)
class Numbers:
    """What a model needs beside its weights."""

    heads: int
    kv_heads: int
    dim: int
    eps: float
    scale: float
    norm_offset: float
    embed_scale: float
    gelu: bool
    layers: tuple[LayerNumbers, ...]
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    residual_scale: float = 1.0


def frequencies(theta: float, dim: int, scaling: Scaling | None = None) -> Array:
    """Radians per position of each rotary pair, in closed form."""
    plain = np.array([theta ** (-2.0 * pair / dim) for pair in range(dim // 2)])
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    scaled = []
    for frequency in plain:
        wavelength = 2 * math.pi / frequency
        if wavelength > scaling.original_context / scaling.low_freq_factor:
            scaled.append(frequency / scaling.factor)
        elif wavelength < scaling.original_context / scaling.high_freq_factor:
            scaled.append(frequency)
        else:
            s = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            scaled.append((1 - s) * frequency / scaling.factor + s * frequency)
    return np.array(scaled)


def llama_numbers(spec: LlamaSpec, *, window: int | None = None) -> Numbers:
    layer = LayerNumbers(frequencies(spec.theta, spec.dim, spec.scaling), window)
    return Numbers(
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        dim=spec.dim,
        eps=spec.eps,
        scale=1 / math.sqrt(spec.dim),
        norm_offset=0.0,
        embed_scale=1.0,
        gelu=False,
        layers=(layer,) * spec.layers,
    )


def gemma_numbers(spec: GemmaSpec) -> Numbers:
    linear = None if spec.factor is None else Scaling("linear", spec.factor)
    full = LayerNumbers(frequencies(spec.theta, spec.head_dim, linear), None)
    local = LayerNumbers(frequencies(spec.local_theta, spec.head_dim), spec.window)
    return Numbers(
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        dim=spec.head_dim,
        eps=spec.eps,
        scale=1 / math.sqrt(spec.query_pre_attn_scalar or spec.head_dim),
        norm_offset=1.0,
        embed_scale=math.sqrt(spec.hidden),
        gelu=True,
        layers=tuple(full if i in spec.full_layers else local for i in range(spec.layers)),
    )


def forward(
    stored: Mapping[str, npt.NDArray[np.float32]], n: Numbers, tokens: Sequence[int]
) -> Array:
    """Logits ``[positions, vocab]``. Gemma's block outputs are normalised where it has norms."""
    weights = {name: values.astype(np.float64) for name, values in stored.items()}
    table = weights["model.embed_tokens.weight"]
    x = table[list(tokens)] * n.embed_scale
    for i, layer in enumerate(n.layers):
        at = f"model.layers.{i}."
        part = {
            name.removeprefix(at): values for name, values in weights.items() if name.startswith(at)
        }
        post_norms = "pre_feedforward_layernorm.weight" in part
        before_ffn = "pre_feedforward_layernorm" if post_norms else "post_attention_layernorm"
        out = _attention(_rms(x, part["input_layernorm.weight"], n), part, n, layer)
        if post_norms:
            out = _rms(out, part["post_attention_layernorm.weight"], n)
        x = x + n.residual_scale * out
        out = _mlp(_rms(x, part[f"{before_ffn}.weight"], n), part, n)
        if post_norms:
            out = _rms(out, part["post_feedforward_layernorm.weight"], n)
        x = x + n.residual_scale * out
    x = _rms(x, weights["model.norm.weight"], n)
    return _softcap(x @ weights.get("lm_head.weight", table).T, n.logit_softcap)


def _softcap(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * np.tanh(x / cap)


def _rms(x: Array, weight: Array, n: Numbers) -> Array:
    scale: Array = 1.0 / np.sqrt((x**2).mean(-1, keepdims=True) + n.eps)
    scaled: Array = x * scale * (n.norm_offset + weight)
    return scaled


def _project(x: Array, part: Mapping[str, Array], name: str) -> Array:
    y = x @ part[f"{name}.weight"].T
    return y + part[f"{name}.bias"] if f"{name}.bias" in part else y


def _rotate(x: Array, frequency: Array) -> Array:
    """``x`` is ``[heads, positions, dim]``."""
    angle = np.outer(np.arange(x.shape[1]), frequency)
    half = x.shape[-1] // 2
    turned = np.exp(1j * angle) * (x[..., :half] + 1j * x[..., half:])
    return np.asarray(np.concatenate([turned.real, turned.imag], axis=-1), dtype=np.float64)


def _attention(x: Array, part: Mapping[str, Array], n: Numbers, layer: LayerNumbers) -> Array:
    count = len(x)

    def split(name: str, heads: int) -> Array:
        return (
            _project(x, part, f"self_attn.{name}_proj").reshape(count, heads, n.dim).swapaxes(0, 1)
        )

    q, k, v = split("q", n.heads), split("k", n.kv_heads), split("v", n.kv_heads)
    if "self_attn.q_norm.weight" in part:
        q = _rms(q, part["self_attn.q_norm.weight"], n)
        k = _rms(k, part["self_attn.k_norm.weight"], n)
    q, k = _rotate(q, layer.frequencies), _rotate(k, layer.frequencies)
    k, v = (np.repeat(a, n.heads // n.kv_heads, axis=0) for a in (k, v))
    scores = _softcap(np.einsum("hqd,hkd->hqk", q, k) * n.scale, n.attention_softcap)
    distance = np.arange(count)[:, None] - np.arange(count)
    hidden = (distance < 0) | (distance >= (layer.window or count))
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("hqk,hkd->qhd", weights, v).reshape(count, -1)
    return _project(mixed, part, "self_attn.o_proj")


def _mlp(x: Array, part: Mapping[str, Array], n: Numbers) -> Array:
    gate, up = _project(x, part, "mlp.gate_proj"), _project(x, part, "mlp.up_proj")
    if n.gelu:
        act = gate / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    else:
        act = gate / (1 + np.exp(-gate))
    return _project(act * up, part, "mlp.down_proj")
