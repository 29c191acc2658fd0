"""OLMoE: every layer routed; queries and keys normalised over all heads, and cut with values."""

from __future__ import annotations

import math

from larql.format.graph import Component, Mixer, RoutedFfn, SoftmaxAttention
from larql.format.source import routed
from larql.format.source.builder import Builder, Family
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
        layers=b.layer_count("num_hidden_layers", 16),
        context=config.count("max_position_embeddings", 4096),
        eps=config.number("rms_norm_eps", 1e-5),
        tied=config.flag("tie_word_embeddings", False),
    )
    heads = config.count("num_attention_heads", 16)
    kv_heads = config.count("num_key_value_heads", heads)
    dim = config.count("head_dim", n.hidden // heads)
    rope = hugging_face_rope(config, 10000.0).rope(dim)
    bias = config.flag("attention_bias", False)
    clip = config.optional_number("clip_qkv")
    width = config.count("intermediate_size", 2048)
    experts = routed.expert_count(config, 64)
    top = routed.top_of(config, experts, 8)
    renormalise = routed.renormalises(config, False)
    act = activation(config, "hidden_act", "silu")

    def attention(i: int) -> Mixer:
        return SoftmaxAttention(
            heads=heads,
            kv_heads=kv_heads,
            key_dim=dim,
            value_dim=dim,
            scale=1.0 / math.sqrt(dim),
            q=b.linear("attention.q", i, heads * dim, n.hidden, bias=bias),
            k=b.linear("attention.k", i, kv_heads * dim, n.hidden, bias=bias),
            v=b.linear("attention.v", i, kv_heads * dim, n.hidden, bias=bias),
            o=b.linear("attention.o", i, n.hidden, heads * dim, bias=bias),
            q_norm=b.norm("attention.q_norm", i, heads * dim, n.eps, 0.0),
            k_norm=b.norm("attention.k_norm", i, kv_heads * dim, n.eps, 0.0),
            clip=clip,
            rope=rope,
        )

    def feed_forward(i: int) -> Mixer:
        prefix = f"model.layers.{i}.mlp.experts"
        return RoutedFfn(
            routed.router(
                b, i, n.hidden, experts, score="softmax", top=top, renormalise=renormalise
            ),
            gated_experts(b, Experts(i, prefix, experts, n.hidden, width), act),
        )

    return routed.decoder(b, n, attention, feed_forward)


def _gguf(b: Builder) -> Component:
    basics = gguf_basics(b)
    head_dim = basics.geometry.head_dim
    b.config.neutral("rope.dimension_count", head_dim)
    rope = gguf_rope(b.config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * basics.layers,
        scale=1.0 / math.sqrt(head_dim),
        qk_norm="projection",
        clip=b.config.optional_number("attention.clamp_kqv"),
        ffn=gguf_experts(b, basics.ffn, renormalises=False).ffn,
    ).component(b)


FAMILY = Family(
    name="olmoe",
    model_types=("olmoe",),
    architectures=("olmoe",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
