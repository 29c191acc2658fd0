"""DeepSeek V3: latent attention, the first layers dense, the others routed in groups of experts.

Rotated parts turn as neighbours unless a key says otherwise. A longer context also raises the
scale of the query-key products.

GGUF files call themselves ``deepseek2``, as those of DeepSeek V2 do, whose routers are a softmax
without corrections. They state one number for the growth of scores and of turned parts, which the
published models have alike. Norms of latents keep an eps of their own, which no key names.
"""

from __future__ import annotations

import math
from dataclasses import replace

from larql.format.graph import Component, Mixer, Rope
from larql.format.source import routed
from larql.format.source.builder import Builder, Family
from larql.format.source.config import ConfigReader
from larql.format.source.drafts import gguf_layers, leave_drafts, stated_drafts
from larql.format.source.gguf_experts import GgufExperts, gguf_experts
from larql.format.source.grouped import (
    GROUPED_PARTS,
    LEAST_SUM,
    Grouped,
    expert_groups,
    grouped_ffn,
)
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.latent import (
    LatentGeometry,
    gguf_latent_geometry,
    latent_attention,
)
from larql.format.source.names import Naming, hugging_face_naming
from larql.format.source.rope import gguf_rope, hugging_face_rope
from larql.format.source.stretching import yarn_magnitude

__all__ = ["FAMILY"]

_LATENT_EPS = 1e-6  # no key names it


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    routed.router_keys(config)
    config.neutral("pretraining_tp", 1)
    config.neutral("scoring_func", "sigmoid")
    config.neutral("topk_method", "noaux_tc")
    config.neutral("moe_layer_freq", 1)
    config.irrelevant("ep_size")
    n = routed.Basics(
        hidden=config.count("hidden_size", 7168),
        layers=b.layer_count("num_hidden_layers", 61),
        context=config.count("max_position_embeddings", 4096),
        eps=config.number("rms_norm_eps", 1e-6),
        tied=config.flag("tie_word_embeddings", False),
    )
    heads = config.count("num_attention_heads", 128)
    config.agree("num_key_value_heads", "num_attention_heads", heads)
    geometry = LatentGeometry(
        heads=heads,
        nope_dim=config.count("qk_nope_head_dim", 128),
        rope_dim=config.count("qk_rope_head_dim", 64),
        value_dim=config.count("v_head_dim", 128),
        latent_dim=config.count("kv_lora_rank", 512),
        q_rank=config.nullable_count("q_lora_rank", 1536),
    )
    width = geometry.nope_dim + geometry.rope_dim
    config.agree("head_dim", "qk_rope_head_dim", geometry.rope_dim)
    config.agree("qk_head_dim", "qk_nope_head_dim", width)
    b.naming = hugging_face_naming("model.", "lm_head", {**geometry.parts(), **GROUPED_PARTS})
    leave_drafts(b, n.layers, stated_drafts(b))
    settings = hugging_face_rope(config, 10000.0)
    adjacent = config.flag("rope_interleave", True)
    rope = settings.rope(geometry.rope_dim, "adjacent" if adjacent else "half", "qk_rope_head_dim")
    scale = _stretched(config) / math.sqrt(width)
    bias = config.flag("attention_bias", False)
    ffn = config.count("intermediate_size", 18432)
    act = activation(config, "hidden_act", "silu")
    dense = config.count("first_k_dense_replace", 3, least=0)
    count, top = routed.expert_count(config, 256), config.count("num_experts_per_tok", 8)
    groups, kept = config.count("n_group", 8), config.count("topk_group", 4)
    experts = Grouped(
        count=count,
        width=config.count("moe_intermediate_size", 2048),
        top=top,
        shared=config.count("n_shared_experts", 1, least=0),
        groups=expert_groups(config, count, top, groups, kept),
        scale=config.number("routed_scaling_factor", 2.5),
        renormalise=routed.renormalises(config, True),
    )

    def attention(i: int) -> Mixer:
        return latent_attention(
            b, i, n.hidden, geometry, scale=scale, eps=_LATENT_EPS, bias=bias, rope=rope
        )

    def feed_forward(i: int) -> Mixer:
        if i < dense:
            return b.gated_ffn(i, n.hidden, ffn, act, bias=False)
        return grouped_ffn(b, i, n.hidden, experts, act)

    return routed.decoder(b, n, attention, feed_forward)


def _stretched(config: ConfigReader) -> float:
    """Return ``(0.1 mscale_all_dim ln(factor) + 1) ** 2`` where the context is stretched."""
    for key in ("rope_parameters", "rope_scaling"):
        reader = config.child(key)
        if reader is None or not reader.has("mscale_all_dim"):
            continue
        kind = reader.text("rope_type", "default") if reader.has("rope_type") else None
        kind = kind or (reader.text("type") if reader.has("type") else "default")
        share, factor = reader.number("mscale_all_dim"), reader.number("factor", 1.0)
        if kind == "default":
            return 1.0
        return yarn_magnitude(factor, share) ** 2
    return 1.0


def _gguf(b: Builder) -> Component:
    config = b.config
    n = routed.Basics(
        hidden=config.count("embedding_length"),
        layers=gguf_layers(b, b.layer_count("block_count")),
        context=config.count("context_length"),
        eps=config.number("attention.layer_norm_rms_epsilon"),
        tied=None,
    )
    heads = config.count("attention.head_count")
    geometry, apart = gguf_latent_geometry(b, heads)
    config.neutral("attention.head_count_kv", 1 if apart else heads)
    config.neutral("attention.temperature_scale", 0.0)
    config.neutral("attention.temperature_length", 0)
    b.naming = Naming({**b.naming.parts, **geometry.gguf_parts(apart=apart)})
    rope, growth = _gguf_rope(config, geometry.rope_dim)
    scale = growth / math.sqrt(geometry.nope_dim + geometry.rope_dim)
    ffn = config.count("feed_forward_length")
    experts = _gguf_experts(b, n.layers)

    def attention(i: int) -> Mixer:
        return latent_attention(
            b,
            i,
            n.hidden,
            geometry,
            scale=scale,
            eps=_LATENT_EPS,
            bias=None,
            rope=rope,
            apart=apart,
        )

    def feed_forward(i: int) -> Mixer:
        if experts is None or not experts.routes(b, i):
            return b.gated_ffn(i, n.hidden, ffn, "silu", bias=False)
        return experts.routed_ffn(b, i, n.hidden, "silu")

    return routed.decoder(b, n, attention, feed_forward)


def _gguf_experts(b: Builder, layers: int) -> GgufExperts | None:
    """Read the metadata of routed layers, of which there may be none."""
    config = b.config
    if config.count("expert_count", 0, least=0):
        return gguf_experts(b, 1, renormalises=False, score=None, eps=LEAST_SUM, grouped=True)
    config.neutral("leading_dense_block_count", layers)
    config.neutral("expert_used_count", 0)
    config.neutral("expert_shared_count", 0)
    config.irrelevant("expert_feed_forward_length", "expert_weights_scale", "expert_gating_func")
    return None


def _gguf_rope(config: ConfigReader, dims: int) -> tuple[Rope, float]:
    """Return the rope, and what longer contexts multiply the query-key products by."""
    rope = gguf_rope(config, 10000.0).rope(dims, "adjacent", "rope.dimension_count")
    stated = config.optional_number("rope.scaling.yarn_log_multiplier")
    if stated is None or rope.scaling is None or rope.scaling.kind != "yarn":
        return rope, 1.0
    config.neutral("rope.scaling.attn_factor", 1.0)
    growth = yarn_magnitude(rope.scaling.factor, stated / 0.1) ** 2
    return replace(rope, scaling=replace(rope.scaling, magnitude=None)), growth


FAMILY = Family(
    name="deepseek_v3",
    model_types=("deepseek_v3",),
    architectures=("deepseek2",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
