"""Mistral and Ministral: Llama's layers with windows, and heads of a width of their own.

Without a list of layer types every layer has the window. GGUF files of such models call themselves
by Llama's architecture, newer ones by ``mistral3``, which also Ministral 3 does: it scales scores
by the position, in steps that this build has no operation for.
"""

from __future__ import annotations

import math

from larql.format.graph import Component
from larql.format.source.builder import Builder, Family
from larql.format.source.config import ConfigReader
from larql.format.source.decoder import Attention, Decoder, Defaults, hugging_face_basics
from larql.format.source.families import llama
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.rope import hugging_face_rope

__all__ = ["FAMILY"]

_DEFAULTS = Defaults(hidden=4096, layers=32, heads=32, kv_heads=8, ffn=14336, context=131072)
_WINDOW = 4096
_FULL, _SLIDING = "full_attention", "sliding_attention"


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    basics = hugging_face_basics(b, _DEFAULTS)
    head_dim = basics.geometry.head_dim
    rope = hugging_face_rope(config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=tuple(Attention(window, rope) for window in _windows(config, basics.layers)),
        scale=1.0 / math.sqrt(head_dim),
        activation=activation(config, "hidden_act", "silu"),
        bias=False,
        output_bias=False,
        ffn_bias=False,
        tied=config.flag("tie_word_embeddings", False),
    ).component(b)


def _windows(config: ConfigReader, layers: int) -> tuple[int | None, ...]:
    window = config.nullable_count("sliding_window", _WINDOW)
    kinds = layer_kinds(config, "layer_types", layers, {_FULL: _FULL, _SLIDING: _SLIDING})
    if kinds is None:
        return (window,) * layers
    if window is None and _SLIDING in kinds:
        config.contradiction("layer_types", "sliding_window", list(kinds), None)
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _gguf(b: Builder) -> Component:
    b.config.neutral("attention.temperature_scale", 0.0)
    return llama.gguf(b)


FAMILY = Family(
    name="mistral",
    model_types=("mistral", "ministral"),
    architectures=("mistral3",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
