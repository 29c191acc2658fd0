"""Mistral: Llama's layers with a window on all of them, and heads of a width of their own.

GGUF files of such models call themselves by Llama's architecture.
"""

from __future__ import annotations

import math

from larql.format.graph import Component
from larql.format.source.builder import Builder, Family
from larql.format.source.decoder import Attention, Decoder, Defaults, hugging_face_basics
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.rope import hugging_face_rope

__all__ = ["FAMILY"]

_DEFAULTS = Defaults(hidden=4096, layers=32, heads=32, kv_heads=8, ffn=14336, context=131072)
_WINDOW = 4096


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    basics = hugging_face_basics(b, _DEFAULTS)
    head_dim = basics.geometry.head_dim
    window = config.nullable_count("sliding_window", _WINDOW)
    rope = hugging_face_rope(config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=(Attention(window, rope),) * basics.layers,
        scale=1.0 / math.sqrt(head_dim),
        activation=activation(config, "hidden_act", "silu"),
        bias=False,
        output_bias=False,
        ffn_bias=False,
        tied=config.flag("tie_word_embeddings", False),
    ).component(b)


FAMILY = Family(
    name="mistral",
    model_types=("mistral",),
    architectures=(),
    hugging_face=_hugging_face,
)
