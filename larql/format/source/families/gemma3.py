"""Gemma 3: norms before and after each block, per-head q/k norms, alternating windows.

Checkpoints store norm weights as ``w`` and mean ``1 + w``; GGUF files store ``1 + w``. Windowed
layers turn by a base of their own, and a linear scaling holds for the full layers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from larql.format.graph import Activation, Block, Component, Layer, Norm
from larql.format.source.builder import Builder, Family, HeadGeometry
from larql.format.source.config import ConfigReader
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.names import common_prefix, hugging_face_naming
from larql.format.source.rope import (
    RopeSettings,
    gguf_rope,
    hugging_face_rope,
    hugging_face_rope_by_layer_type,
)

__all__ = ["FAMILY"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_LOCAL_THETA = 10000.0
_GLOBAL_THETA = 1000000.0
_PATTERN = 6
_LAYERS_OF_27B = 62

_PARTS = {
    "attention.post_norm": "post_attention_layernorm",
    "ffn.norm": "pre_feedforward_layernorm",
    "ffn.post_norm": "post_feedforward_layernorm",
}
_PREFIXES = (
    ("model.", "lm_head"),
    ("language_model.model.", "language_model.lm_head"),
    ("model.language_model.", "lm_head"),
)


@dataclass(frozen=True)
class _Numbers:
    hidden: int
    layer_types: tuple[str, ...]
    geometry: HeadGeometry
    scale: float
    ffn: int
    context: int
    eps: float
    norm_offset: float
    activation: Activation
    window: int
    ropes: dict[str, RopeSettings]
    attention_bias: bool | None
    logit_softcap: float | None
    tied: bool | None


def _pattern(layers: int, period: int) -> tuple[str, ...]:
    return tuple(_FULL if (i + 1) % period == 0 else _SLIDING for i in range(layers))


def _layer_types(config: ConfigReader, layers: int) -> tuple[str, ...]:
    known = {_FULL: _FULL, _SLIDING: _SLIDING}
    stated = layer_kinds(config, "layer_types", layers, known)
    config.same("sliding_window_pattern", "_sliding_window_pattern")
    period = config.optional_count("sliding_window_pattern")
    if stated is None:
        return _pattern(layers, period or _PATTERN)
    key = config.stated("sliding_window_pattern")
    # The key with an underscore is written beside any list, with its default; the list decides.
    usual = key == "_sliding_window_pattern" and period == _PATTERN
    if period is not None and not usual and stated != _pattern(layers, period):
        full = [i for i, kind in enumerate(stated) if kind == _FULL]
        config.contradiction("layer_types", key, f"full at {full[:8]}", period)
    return stated


def _hugging_face_ropes(config: ConfigReader) -> dict[str, RopeSettings]:
    local = config.optional_number("rope_local_base_freq")
    parameters = config.child("rope_parameters")
    if parameters is not None and (parameters.has(_FULL) or parameters.has(_SLIDING)):
        ropes = hugging_face_rope_by_layer_type(config, (_FULL, _SLIDING)) or {}
        theta = config.optional_number("rope_theta")
        if theta is not None and theta != ropes[_FULL].theta:
            config.contradiction(
                "rope_theta", f"rope_parameters.{_FULL}.rope_theta", theta, ropes[_FULL].theta
            )
        if local is not None and local != ropes[_SLIDING].theta:
            config.contradiction(
                "rope_local_base_freq",
                f"rope_parameters.{_SLIDING}.rope_theta",
                local,
                ropes[_SLIDING].theta,
            )
        config.neutral("rope_scaling")
        return ropes
    return {
        _FULL: hugging_face_rope(config, _GLOBAL_THETA),
        _SLIDING: RopeSettings(_LOCAL_THETA if local is None else local, None, (config,)),
    }


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    config.neutral("use_bidirectional_attention", False)
    config.neutral("attn_logit_softcapping")
    config.refuse_null("sliding_window", "which would leave windowed layers without a window")
    b.naming = hugging_face_naming(*common_prefix(b.tensors, _PREFIXES), _PARTS)
    layers = b.layer_count("num_hidden_layers", 26)
    head_dim = config.count("head_dim", 256)
    heads = config.count("num_attention_heads", 8)
    return _component(
        b,
        _Numbers(
            hidden=config.count("hidden_size", 2304),
            layer_types=_layer_types(config, layers),
            geometry=HeadGeometry(heads, config.count("num_key_value_heads", 4), head_dim),
            scale=1.0 / math.sqrt(config.number("query_pre_attn_scalar", 256)),
            ffn=config.count("intermediate_size", 9216),
            context=config.count("max_position_embeddings", 131072),
            eps=config.number("rms_norm_eps", 1e-6),
            norm_offset=1.0,
            activation=activation(config, "hidden_activation", "gelu_pytorch_tanh", "hidden_act"),
            window=config.count("sliding_window", 4096),
            ropes=_hugging_face_ropes(config),
            attention_bias=config.flag("attention_bias", False),
            logit_softcap=config.optional_number("final_logit_softcapping"),
            tied=config.flag("tie_word_embeddings", True),
        ),
    )


def _gguf(b: Builder) -> Component:
    config = b.config
    hidden = config.count("embedding_length")
    heads = config.count("attention.head_count")
    layers = b.layer_count("block_count")
    head_dim = config.count("attention.key_length", hidden // heads)
    config.neutral("attention.value_length", head_dim)
    config.neutral("rope.dimension_count", head_dim)
    period = config.count("attention.sliding_window_pattern", _PATTERN)
    # The file does not carry the query scale; only the 27B model's differs from its head width.
    scaled_by = hidden // heads if layers == _LAYERS_OF_27B else head_dim
    local = config.number("rope.freq_base_swa", _LOCAL_THETA)
    full = gguf_rope(config, _GLOBAL_THETA)
    return _component(
        b,
        _Numbers(
            hidden=hidden,
            layer_types=_pattern(layers, period),
            geometry=HeadGeometry(heads, config.count("attention.head_count_kv"), head_dim),
            scale=1.0 / math.sqrt(scaled_by),
            ffn=config.count("feed_forward_length"),
            context=config.count("context_length"),
            eps=config.number("attention.layer_norm_rms_epsilon"),
            norm_offset=0.0,
            activation="gelu_tanh",
            window=config.count("attention.sliding_window"),
            ropes={_FULL: full, _SLIDING: replace(full, theta=local, scaling=None)},
            attention_bias=None,
            logit_softcap=config.optional_number("final_logit_softcapping"),
            tied=None,
        ),
    )


def _layer(b: Builder, n: _Numbers, i: int) -> Layer:
    kind = n.layer_types[i]

    def norm(part: str) -> Norm:
        return b.norm(part, i, n.hidden, n.eps, n.norm_offset)

    return Layer(
        index=i,
        blocks=(
            Block(
                site="attention",
                norm=norm("attention.norm"),
                mixer=b.attention(
                    i,
                    n.hidden,
                    n.geometry,
                    scale=n.scale,
                    bias=n.attention_bias,
                    rope=n.ropes[kind].rope(n.geometry.head_dim),
                    qk_norm=(n.eps, n.norm_offset),
                    window=n.window if kind == _SLIDING else None,
                ),
                post_norm=norm("attention.post_norm"),
            ),
            Block(
                site="ffn",
                norm=norm("ffn.norm"),
                mixer=b.gated_ffn(i, n.hidden, n.ffn, n.activation, bias=None),
                post_norm=norm("ffn.post_norm"),
            ),
        ),
    )


def _component(b: Builder, n: _Numbers) -> Component:
    embed = b.embed(n.hidden, scale=math.sqrt(n.hidden))
    layers = tuple(_layer(b, n, i) for i in range(len(n.layer_types)))
    norm = b.norm("output", None, n.hidden, n.eps, n.norm_offset)
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=n.hidden,
        vocab_size=embed.vocab,
        context_length=n.context,
        embed=embed,
        layers=layers,
        head=b.head(embed, norm, tied=n.tied, softcap=n.logit_softcap),
    )


FAMILY = Family(
    name="gemma3",
    model_types=("gemma3_text", "gemma3"),
    architectures=("gemma3",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
