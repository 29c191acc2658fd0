"""Mixtral: every layer routes to two of its experts, whose weights are renormalised.

GGUF files of such models call themselves by Llama's architecture.
"""

from __future__ import annotations

import math

from larql.format.graph import Component, Mixer, RoutedFfn
from larql.format.source import routed
from larql.format.source.builder import Builder, Family, HeadGeometry
from larql.format.source.experts import Experts, gated_experts
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.names import hugging_face_naming
from larql.format.source.rope import hugging_face_rope

__all__ = ["FAMILY"]

# Packed experts stand under another name than experts of their own tensors.
_PLACES = {r"\.block_sparse_moe\.": "block_sparse_moe", r"\.mlp\.": "mlp"}
_NAMES = {
    r"\.w[123]\.": ("w1", "w3", "w2"),
    r"\.(gate|up|down)_proj\.": ("gate_proj", "up_proj", "down_proj"),
}


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    routed.router_keys(config)
    place = _PLACES[b.spelling(*_PLACES)]
    names = _NAMES[b.spelling(*_NAMES)]
    b.naming = hugging_face_naming("model.", "lm_head", {"ffn.router": f"{place}.gate"})
    n = routed.Basics(
        hidden=config.count("hidden_size", 4096),
        layers=b.layer_count("num_hidden_layers", 32),
        context=config.count("max_position_embeddings", 131072),
        eps=config.number("rms_norm_eps", 1e-5),
        tied=config.flag("tie_word_embeddings", False),
    )
    heads = config.count("num_attention_heads", 32)
    kv_heads = config.count("num_key_value_heads", 8)
    geometry = HeadGeometry(heads, kv_heads, config.count("head_dim", n.hidden // heads))
    rope = hugging_face_rope(config, 1e6).rope(geometry.head_dim)
    window = config.optional_count("sliding_window")
    width = config.count("intermediate_size", 14336)
    experts = routed.expert_count(config, 8)
    act = activation(config, "hidden_act", "silu")
    top = routed.top_of(config, experts, 2)

    def attention(i: int) -> Mixer:
        return b.attention(
            i,
            n.hidden,
            geometry,
            scale=1.0 / math.sqrt(geometry.head_dim),
            bias=False,
            rope=rope,
            window=window,
        )

    def ffn(i: int) -> Mixer:
        prefix = f"model.layers.{i}.{place}.experts"
        return RoutedFfn(
            routed.router(
                b, i, n.hidden, experts, score="softmax", top=top, renormalise=True
            ),
            gated_experts(b, Experts(i, prefix, experts, n.hidden, width, names), act),
        )  # fmt: skip

    return routed.decoder(b, n, attention, ffn)


FAMILY = Family(
    name="mixtral", model_types=("mixtral",), architectures=(), hugging_face=_hugging_face
)
