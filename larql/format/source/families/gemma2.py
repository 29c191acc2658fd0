"""Gemma 2: norms before and after each block, soft caps, a window on every other layer from 0 on.

Checkpoints store norm weights as ``w`` and mean ``1 + w``; GGUF files store ``1 + w``.
"""

from __future__ import annotations

import math

from larql.format.graph import Component, Rope
from larql.format.source.builder import Builder, Family
from larql.format.source.decoder import (
    Attention,
    Decoder,
    Defaults,
    gguf_basics,
    hugging_face_basics,
)
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.names import hugging_face_naming
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_DEFAULTS = Defaults(
    hidden=2304, layers=26, heads=8, kv_heads=4, head_dim=256, ffn=9216, context=8192
)
_WINDOW = 4096
_SOFTCAP, _LOGIT_SOFTCAP = 50.0, 30.0
_LAYERS_OF_27B = 46
_FULL, _SLIDING = "full_attention", "sliding_attention"
_PARTS = {
    "attention.post_norm": "post_attention_layernorm",
    "ffn.norm": "pre_feedforward_layernorm",
    "ffn.post_norm": "post_feedforward_layernorm",
}


def _alternating(layers: int) -> tuple[str, ...]:
    return tuple(_FULL if i % 2 else _SLIDING for i in range(layers))


def _attention(kinds: tuple[str, ...], window: int, rope: Rope) -> tuple[Attention, ...]:
    return tuple(Attention(window if kind == _SLIDING else None, rope) for kind in kinds)


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    config.neutral("use_bidirectional_attention", False)
    config.refuse_null("sliding_window", "which would leave windowed layers without a window")
    config.refuse_null("head_dim", "which leaves the width of a head open")
    window = config.count("sliding_window", _WINDOW)
    # Published files repeat the number under this name.
    config.agree("sliding_window_size", "sliding_window", window)
    b.naming = hugging_face_naming("model.", "lm_head", _PARTS)
    basics = hugging_face_basics(b, _DEFAULTS)
    bias = config.flag("attention_bias", False)
    rope = hugging_face_rope(config, 10000.0).rope(basics.geometry.head_dim)
    kinds = layer_kinds(config, "layer_types", basics.layers, {_FULL: _FULL, _SLIDING: _SLIDING})
    return Decoder(
        basics=basics,
        layers=_attention(kinds or _alternating(basics.layers), window, rope),
        scale=1.0 / math.sqrt(config.number("query_pre_attn_scalar", 256)),
        activation=activation(config, "hidden_activation", "gelu_pytorch_tanh", "hidden_act"),
        bias=bias,
        output_bias=bias,
        ffn_bias=False,
        norm_offset=1.0,
        post_norms=True,
        softcap=config.nullable_number("attn_logit_softcapping", _SOFTCAP),
        logit_softcap=config.nullable_number("final_logit_softcapping", _LOGIT_SOFTCAP),
        embed_scale=math.sqrt(basics.hidden),
        tied=config.flag("tie_word_embeddings", True),
    ).component(b)


def _gguf(b: Builder) -> Component:
    config = b.config
    basics = gguf_basics(b)
    head_dim = basics.geometry.head_dim
    config.neutral("rope.dimension_count", head_dim)
    # The file does not carry the query scale; only the 27B model's differs from its head width.
    of_27b = basics.layers == _LAYERS_OF_27B
    scaled_by = basics.hidden // basics.geometry.heads if of_27b else head_dim
    rope = gguf_rope(config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=_attention(
            _alternating(basics.layers), config.count("attention.sliding_window", _WINDOW), rope
        ),
        scale=1.0 / math.sqrt(scaled_by),
        activation="gelu_tanh",
        post_norms=True,
        softcap=config.number("attn_logit_softcapping", _SOFTCAP),
        logit_softcap=config.number("final_logit_softcapping", _LOGIT_SOFTCAP),
        embed_scale=math.sqrt(basics.hidden),
    ).component(b)


FAMILY = Family(
    name="gemma2",
    model_types=("gemma2",),
    architectures=("gemma2",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
