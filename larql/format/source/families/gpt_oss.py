"""GPT-OSS: sinks in every softmax, every other layer windowed, every layer routed.

Experts have biases and a clamped activation; their numbers may be MXFP4. GGUF files keep gate and
up apart, and say neither where the activation is cut nor which layers have the window.
"""

from __future__ import annotations

import math
from dataclasses import replace

from larql.format.graph import Component, Mixer, RopeScaling, RoutedFfn
from larql.format.source import routed
from larql.format.source.builder import Builder, Family, HeadGeometry
from larql.format.source.config import ConfigReader
from larql.format.source.decoder import Attention, Decoder, gguf_basics
from larql.format.source.experts import Experts, clamped_experts
from larql.format.source.gguf_experts import GGUF_EXPERTS, expert_counts, no_groups
from larql.format.source.keys import common_hugging_face_keys, layer_kinds
from larql.format.source.names import Naming, hugging_face_naming
from larql.format.source.rope import RopeSettings, gguf_rope, hugging_face_rope
from larql.format.source.stretching import yarn_magnitude

__all__ = ["FAMILY"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETA, _FACTOR, _ORIGINAL = 150000.0, 32.0, 4096
_LIMIT, _SLOPE = 7.0, 1.702
_SOFTMAX_OF_CHOSEN = 3  # as files number score functions; 0 where they have none
_GGUF_PARTS = {
    "attention.sinks": "blk.{i}.attn_sinks.weight",
    "ffn.norm": "blk.{i}.post_attention_norm",
}


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config, quantised=("mxfp4",))
    routed.router_keys(config)
    config.neutral("hidden_act", "silu")
    b.naming = hugging_face_naming(
        "model.",
        "lm_head",
        {"attention.sinks": "self_attn.sinks", "ffn.router": "mlp.router"},
    )
    n = routed.Basics(
        hidden=config.count("hidden_size", 2880),
        layers=b.layer_count("num_hidden_layers", 36),
        context=config.count("max_position_embeddings", 131072),
        eps=config.number("rms_norm_eps", 1e-5),
        tied=config.flag("tie_word_embeddings", False),
    )
    heads = config.count("num_attention_heads", 64)
    dim = config.nullable_count("head_dim", 64) or n.hidden // heads
    kv_heads = config.nullable_count("num_key_value_heads", 8) or heads
    geometry = HeadGeometry(heads, kv_heads, dim)
    kinds = _kinds(config, n.layers)
    window = config.nullable_count("sliding_window", 128)
    if window is None and config.has("layer_types") and _SLIDING in kinds:
        config.contradiction("layer_types", "sliding_window", _SLIDING, None)
    rope = _rope(config).rope(dim)
    bias = config.flag("attention_bias", True)
    width = config.count("intermediate_size", 2880)
    config.same("num_experts_per_tok", "experts_per_token")
    experts = routed.expert_count(config, 128)
    limit, slope = config.number("swiglu_limit", _LIMIT), config.number("swiglu_alpha", _SLOPE)
    top = routed.top_of(config, experts, 4)

    def attention(i: int) -> Mixer:
        mixer = b.attention(
            i,
            n.hidden,
            geometry,
            scale=1.0 / math.sqrt(dim),
            bias=bias,
            rope=rope,
            window=window if kinds[i] == _SLIDING else None,
        )
        return replace(mixer, sinks=b.vector("attention.sinks", i, heads, stored=(heads,)))

    def feed_forward(i: int) -> Mixer:
        prefix = f"model.layers.{i}.mlp.experts"
        return RoutedFfn(
            routed.router(
                b, i, n.hidden, experts, score="softmax", top=top, renormalise=True, bias=True
            ),
            clamped_experts(
                b, Experts(i, prefix, experts, n.hidden, width), limit=limit, slope=slope
            ),
        )

    return routed.decoder(b, n, attention, feed_forward)


def _kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    stated = layer_kinds(config, "layer_types", layers, {_FULL: _FULL, _SLIDING: _SLIDING})
    return stated or tuple(_FULL if i % 2 else _SLIDING for i in range(layers))


def _rope(config: ConfigReader) -> RopeSettings:
    """Read the rope, which is stretched unless the configuration says otherwise."""
    if config.has("rope_parameters") or config.has("rope_scaling"):
        for stated in _original(config):
            config.agree("initial_context_length", "original_max_position_embeddings", stated)
        if not _original(config):
            config.neutral("initial_context_length")
        return hugging_face_rope(config, _THETA)
    original = config.count("initial_context_length", _ORIGINAL)
    scaling = RopeScaling(
        kind="yarn",
        factor=_FACTOR,
        original_context=original,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
        magnitude=yarn_magnitude(_FACTOR, 1.0),
    )
    return RopeSettings(config.number("rope_theta", _THETA), scaling, (config,))


def _original(config: ConfigReader) -> list[int]:
    """Return the context before stretching as the rope states it."""
    key = "original_max_position_embeddings"
    readers = (config.child("rope_parameters"), config.child("rope_scaling"))
    return [reader.count(key) for reader in readers if reader is not None and reader.has(key)]


def _gguf(b: Builder) -> Component:
    basics = gguf_basics(b)
    head_dim = basics.geometry.head_dim
    b.config.neutral("rope.dimension_count", head_dim)
    window = b.config.count("attention.sliding_window", 128)
    counts = expert_counts(b, basics.ffn)
    no_groups(b.config)
    # The weights are always a softmax over the chosen experts.
    b.config.neutral("expert_gating_func", 0, _SOFTMAX_OF_CHOSEN)
    b.config.neutral("expert_weights_norm", True)
    b.config.neutral("expert_weights_scale", 0.0, 1.0)
    b.config.neutral("expert_shared_count", 0)
    b.config.neutral("leading_dense_block_count", 0)
    b.naming = Naming({**b.naming.parts, **_GGUF_PARTS})
    rope = gguf_rope(b.config, _THETA).rope(head_dim)
    if rope.scaling is not None and rope.scaling.kind == "yarn":
        # Files do not say that the ramp's ends are no whole numbers here.
        rope = replace(rope, scaling=replace(rope.scaling, truncate=False))

    def ffn(b: Builder, i: int, decoder: Decoder) -> Mixer:
        hidden, count = basics.hidden, counts.count
        experts = Experts(i, f"blk.{i}", count, hidden, counts.width, GGUF_EXPERTS)
        return RoutedFfn(
            routed.router(
                b, i, hidden, count, score="softmax", top=counts.top, renormalise=True, bias=True
            ),
            clamped_experts(b, experts, limit=_LIMIT, slope=_SLOPE),
        )

    return Decoder(
        basics=basics,
        layers=tuple(Attention(None if i % 2 else window, rope) for i in range(basics.layers)),
        scale=1.0 / math.sqrt(head_dim),
        sinks=True,
        ffn=ffn,
    ).component(b)


FAMILY = Family(
    name="gpt_oss",
    model_types=("gpt_oss",),
    architectures=("gpt-oss",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
