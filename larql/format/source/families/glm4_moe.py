"""GLM 4.5: half of each head turns; the first layers are dense, the others routed in groups."""

from __future__ import annotations

import math

from larql.format.graph import Component, Mixer, SoftmaxAttention
from larql.format.source import routed
from larql.format.source.builder import Builder, Family
from larql.format.source.decoder import Attention, Decoder, gguf_basics
from larql.format.source.drafts import gguf_layers, leave_drafts, stated_drafts
from larql.format.source.gguf_experts import gguf_experts
from larql.format.source.grouped import (
    GROUPED_PARTS,
    LEAST_SUM,
    Grouped,
    expert_groups,
    grouped_ffn,
)
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.names import Naming, hugging_face_naming
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_SHARE = 0.5


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    routed.router_keys(config)
    config.neutral("scoring_func", "sigmoid")
    config.neutral("topk_method", "noaux_tc")
    b.naming = hugging_face_naming("model.", "lm_head", GROUPED_PARTS)
    n = routed.Basics(
        hidden=config.count("hidden_size", 4096),
        layers=b.layer_count("num_hidden_layers", 46),
        context=config.count("max_position_embeddings", 131072),
        eps=config.number("rms_norm_eps", 1e-5),
        tied=config.flag("tie_word_embeddings", False),
    )
    leave_drafts(b, n.layers, stated_drafts(b))
    heads = config.count("num_attention_heads", 96)
    kv_heads = config.count("num_key_value_heads", 8)
    dim = config.count("head_dim", n.hidden // heads)
    settings = hugging_face_rope(config, 10000.0, _SHARE)
    bias = config.flag("attention_bias", False)
    normed = config.flag("use_qk_norm", False)
    ffn = config.count("intermediate_size", 10944)
    act = activation(config, "hidden_act", "silu")
    dense = config.count("first_k_dense_replace", 1, least=0)
    count, top = routed.expert_count(config, 128), config.count("num_experts_per_tok", 8)
    groups, kept = config.count("n_group", 1), config.count("topk_group", 1)
    experts = Grouped(
        count=count,
        width=config.count("moe_intermediate_size", 1408),
        top=top,
        shared=config.count("n_shared_experts", 1, least=0),
        groups=expert_groups(config, count, top, groups, kept),
        scale=config.number("routed_scaling_factor", 1.0),
        renormalise=routed.renormalises(config, True),
    )

    def attention(i: int) -> Mixer:
        norms = [
            b.norm(f"attention.{part}_norm", i, dim, n.eps, 0.0) if normed else None
            for part in "qk"
        ]
        return SoftmaxAttention(
            heads=heads,
            kv_heads=kv_heads,
            key_dim=dim,
            value_dim=dim,
            scale=1.0 / math.sqrt(dim),
            q=b.linear("attention.q", i, heads * dim, n.hidden, bias=bias),
            k=b.linear("attention.k", i, kv_heads * dim, n.hidden, bias=bias),
            v=b.linear("attention.v", i, kv_heads * dim, n.hidden, bias=bias),
            o=b.linear("attention.o", i, n.hidden, heads * dim, bias=False),
            q_norm=norms[0],
            k_norm=norms[1],
            rope=settings.rope(dim),
        )

    def feed_forward(i: int) -> Mixer:
        if i < dense:
            return b.gated_ffn(i, n.hidden, ffn, act, bias=False)
        return grouped_ffn(b, i, n.hidden, experts, act)

    return routed.decoder(b, n, attention, feed_forward)


def _gguf(b: Builder) -> Component:
    basics = gguf_basics(b)
    head_dim = basics.geometry.head_dim
    layers = gguf_layers(b, basics.layers)
    experts = gguf_experts(b, basics.ffn, renormalises=True, score=2, eps=LEAST_SUM, grouped=True)
    b.naming = Naming({**b.naming.parts, "ffn.norm": "blk.{i}.post_attention_norm"})
    dims = b.config.count("rope.dimension_count", int(head_dim * _SHARE))
    rope = gguf_rope(b.config, 10000.0).rope(dims)
    normed = any(name.endswith(".attn_q_norm.weight") for name in b.tensors)
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * layers,
        scale=1.0 / math.sqrt(head_dim),
        qk_norm="head" if normed else None,
        ffn=experts.ffn,
    ).component(b)


FAMILY = Family(
    name="glm4_moe",
    model_types=("glm4_moe",),
    architectures=("glm4moe",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
