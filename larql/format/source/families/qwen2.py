"""Qwen2: biases on q, k and v only."""

from __future__ import annotations

import math

from larql.format.graph import Component
from larql.format.source.builder import Builder, Family
from larql.format.source.decoder import (
    Attention,
    Decoder,
    Defaults,
    gguf_basics,
    hugging_face_basics,
)
from larql.format.source.families.qwen_dense import attention_of_layers
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_DEFAULTS = Defaults(hidden=4096, layers=32, heads=32, kv_heads=32, ffn=22016, context=32768)


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    config.neutral("use_mrope", False)
    basics = hugging_face_basics(b, _DEFAULTS)
    head_dim = basics.geometry.head_dim
    rope = hugging_face_rope(config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=attention_of_layers(config, basics.layers, rope),
        scale=1.0 / math.sqrt(head_dim),
        activation=activation(config, "hidden_act", "silu"),
        bias=True,
        output_bias=False,
        ffn_bias=False,
        tied=config.flag("tie_word_embeddings", False),
    ).component(b)


def _gguf(b: Builder) -> Component:
    basics = gguf_basics(b)
    head_dim = basics.geometry.head_dim
    b.config.neutral("rope.dimension_count", head_dim)
    rope = gguf_rope(b.config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * basics.layers,
        scale=1.0 / math.sqrt(head_dim),
        bias=True,
    ).component(b)


FAMILY = Family(
    name="qwen2",
    model_types=("qwen2",),
    architectures=("qwen2",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
