"""Qwen3 MoE: some layers route to experts; each head's queries and keys are normalised."""

from __future__ import annotations

import math

from larql.format.graph import Component, Mixer, RoutedFfn
from larql.format.source import routed
from larql.format.source.builder import Builder, Family, HeadGeometry
from larql.format.source.decoder import Attention, Decoder, gguf_basics
from larql.format.source.experts import Experts, gated_experts
from larql.format.source.gguf_experts import gguf_experts
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.names import hugging_face_naming
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    routed.router_keys(config)
    b.naming = hugging_face_naming("model.", "lm_head", {"ffn.router": "mlp.gate"})
    n = routed.Basics(
        hidden=config.count("hidden_size", 2048),
        layers=b.layer_count("num_hidden_layers", 24),
        context=config.count("max_position_embeddings", 32768),
        eps=config.number("rms_norm_eps", 1e-6),
        tied=config.flag("tie_word_embeddings", False),
    )
    heads = config.count("num_attention_heads", 32)
    kv_heads = config.count("num_key_value_heads", 4)
    geometry = HeadGeometry(heads, kv_heads, config.count("head_dim", n.hidden // heads))
    rope = hugging_face_rope(config, 10000.0).rope(geometry.head_dim)
    bias = config.flag("attention_bias", False)
    stated = config.optional_count("sliding_window") or 4096
    window = stated if config.flag("use_sliding_window", False) else None
    # Windows, where they are used, hold for all layers of this family.
    config.irrelevant("max_window_layers")
    width = config.count("intermediate_size", 6144)
    experts = routed.expert_count(config, 128)
    expert_width = config.count("moe_intermediate_size", 768)
    top = routed.top_of(config, experts, 8)
    renormalise = routed.renormalises(config, False)
    every = config.count("decoder_sparse_step", 1)
    dense = routed.layer_list(config, "mlp_only_layers", n.layers)
    act = activation(config, "hidden_act", "silu")

    def attention(i: int) -> Mixer:
        return b.attention(
            i,
            n.hidden,
            geometry,
            scale=1.0 / math.sqrt(geometry.head_dim),
            bias=bias,
            rope=rope,
            qk_norm=(n.eps, 0.0),
            window=window,
        )

    def ffn(i: int) -> Mixer:
        if i in dense or (i + 1) % every:
            return b.gated_ffn(i, n.hidden, width, act, bias=False)
        prefix = f"model.layers.{i}.mlp.experts"
        return RoutedFfn(
            routed.router(
                b, i, n.hidden, experts, score="softmax", top=top, renormalise=renormalise
            ),
            gated_experts(b, Experts(i, prefix, experts, n.hidden, expert_width), act),
        )

    return routed.decoder(b, n, attention, ffn)


def _gguf(b: Builder) -> Component:
    basics = gguf_basics(b)
    head_dim = basics.geometry.head_dim
    b.config.neutral("rope.dimension_count", head_dim)
    rope = gguf_rope(b.config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * basics.layers,
        scale=1.0 / math.sqrt(head_dim),
        qk_norm="head",
        ffn=gguf_experts(b, basics.ffn, renormalises=True).ffn,
    ).component(b)


FAMILY = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    architectures=("qwen3moe",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
