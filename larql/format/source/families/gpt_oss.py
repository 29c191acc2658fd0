"""GPT-OSS: sinks in every softmax, every other layer windowed, every layer routed.

Experts have biases and a clamped activation; their numbers may be MXFP4.
"""

from __future__ import annotations

import math
from dataclasses import replace

from larql.format.graph import Component, Mixer, RopeScaling, RoutedFfn
from larql.format.source import routed
from larql.format.source.builder import Builder, Family, HeadGeometry
from larql.format.source.config import ConfigReader
from larql.format.source.experts import Experts, clamped_experts
from larql.format.source.keys import common_hugging_face_keys, layer_kinds
from larql.format.source.names import hugging_face_naming
from larql.format.source.rope import RopeSettings, hugging_face_rope
from larql.format.source.stretching import yarn_magnitude

__all__ = ["FAMILY"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETA, _FACTOR, _ORIGINAL = 150000.0, 32.0, 4096


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
    rope = _rope(config).rope(dim)
    bias = config.flag("attention_bias", True)
    width = config.count("intermediate_size", 2880)
    experts = config.count("num_local_experts", 128)
    limit, slope = config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702)
    top = routed.top_of(config, experts, 4)
    config.neutral("experts_per_token", top)

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
        config.neutral("initial_context_length", *_original(config))
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


FAMILY = Family(
    name="gpt_oss",
    model_types=("gpt_oss",),
    architectures=(),
    hugging_face=_hugging_face,
)
