"""A draft head written out from its checkpoint's tensors: float64, loops over positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def rms(x: Floats, weight: Any, eps: float) -> Floats:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (1.0 + np.asarray(weight, float))


def turned(x: Floats, position: int, theta: float, dims: int) -> Floats:
    """Rotate the first ``dims`` numbers of each head, halves as pairs."""
    half = dims // 2
    angles = position * theta ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:dims]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[:, dims:]], axis=1)


def gated(t: Mapping[str, Floats], at: str, x: Floats) -> Floats:
    g, u = t[f"{at}gate_proj.weight"] @ x, t[f"{at}up_proj.weight"] @ x
    y: Floats = t[f"{at}down_proj.weight"] @ (g / (1.0 + np.exp(-g)) * u)
    return y


def routed(config: Mapping[str, Any], t: Mapping[str, Floats], x: Floats) -> Floats:
    """Mix the likeliest experts by their renormalised share, and add the shared one by its gate."""
    at = "mtp.layers.0.mlp."
    scores = t[f"{at}gate.weight"] @ x
    share = np.exp(scores - scores.max())
    share /= share.sum()
    best = sorted(range(len(share)), key=lambda e: (-share[e], e))[: config["num_experts_per_tok"]]
    total = sum(share[e] for e in best) if config.get("norm_topk_prob", True) else 1.0
    out = np.zeros_like(x)
    for e in best:
        own = f"{at}experts.{e}."
        if f"{at}experts.gate_up_proj" in t:
            gate, up = np.split(t[f"{at}experts.gate_up_proj"][e], 2)
            down = t[f"{at}experts.down_proj"][e]
            one = {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}
            y = gated(one, "", x)
        else:
            y = gated(t, own, x)
        out = out + share[e] / total * y
    gate = float((t[f"{at}shared_expert_gate.weight"] @ x)[0])
    return out + gated(t, f"{at}shared_expert.", x) / (1.0 + np.exp(-gate))


def draft_logits(
    config: Mapping[str, Any], tensors: Mapping[str, Any], hidden: Floats, tokens: list[int]
) -> Floats:
    """Return logits ``[T - 1, vocab]`` from hidden states ``[T, hidden]`` after the final norm."""
    t = {name: np.asarray(value, float) for name, value in tensors.items()}
    eps, heads = config["rms_norm_eps"], config["num_attention_heads"]
    kv, dim = config["num_key_value_heads"], config["head_dim"]
    rope = config["rope_parameters"]
    theta, dims = rope["rope_theta"], int(dim * rope["partial_rotary_factor"])
    at = "mtp.layers.0."
    keys: list[Floats] = []
    values: list[Floats] = []
    rows = []

    def linear(name: str, x: Floats) -> Floats:
        y: Floats = t[f"{name}.weight"] @ x
        return y + t[f"{name}.bias"] if f"{name}.bias" in t else y

    for i in range(len(tokens) - 1):
        embedding = t["model.embed_tokens.weight"][tokens[i + 1]]
        x = t["mtp.fc.weight"] @ np.concatenate(
            [
                rms(embedding, t["mtp.pre_fc_norm_embedding.weight"], eps),
                rms(hidden[i], t["mtp.pre_fc_norm_hidden.weight"], eps),
            ]
        )
        n = rms(x, t[f"{at}input_layernorm.weight"], eps)
        q_and_gate = linear(f"{at}self_attn.q_proj", n).reshape(heads, 2 * dim)
        q = rms(q_and_gate[:, :dim], t[f"{at}self_attn.q_norm.weight"], eps)
        gate = q_and_gate[:, dim:].reshape(-1)
        k = linear(f"{at}self_attn.k_proj", n).reshape(kv, dim)
        k = rms(k, t[f"{at}self_attn.k_norm.weight"], eps)
        keys.append(turned(k, i, theta, dims))
        values.append(linear(f"{at}self_attn.v_proj", n).reshape(kv, dim))
        q = turned(q, i, theta, dims)
        mixed = np.empty((heads, dim))
        for head in range(heads):
            shared = head // (heads // kv)
            scores = np.array([q[head] @ key[shared] for key in keys]) / np.sqrt(dim)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            mixed[head] = sum(w * value[shared] for w, value in zip(weights, values, strict=True))
        x = x + linear(f"{at}self_attn.o_proj", mixed.reshape(-1) / (1.0 + np.exp(-gate)))
        n = rms(x, t[f"{at}post_attention_layernorm.weight"], eps)
        x = x + (routed(config, t, n) if f"{at}mlp.gate.weight" in t else gated(t, f"{at}mlp.", n))
        rows.append(t["lm_head.weight"] @ rms(x, t["mtp.norm.weight"], eps))
    return np.stack(rows)
