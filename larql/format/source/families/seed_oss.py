"""Seed-OSS: Llama's layers, whose output projection has a bias or none apart from q, k and v."""

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
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.names import Naming
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_DEFAULTS = Defaults(
    hidden=4096, layers=64, heads=80, kv_heads=8, head_dim=128, ffn=27648, context=524288
)


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    config.irrelevant("residual_dropout", "pretraining_tp")
    basics = hugging_face_basics(b, _DEFAULTS)
    head_dim = basics.geometry.head_dim
    rope = hugging_face_rope(config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * basics.layers,
        scale=1.0 / math.sqrt(head_dim),
        activation=activation(config, "hidden_act", "silu"),
        bias=config.flag("attention_bias", True),
        output_bias=config.flag("attention_out_bias", False),
        ffn_bias=config.flag("mlp_bias", False),
        tied=config.flag("tie_word_embeddings", False),
    ).component(b)


def _gguf(b: Builder) -> Component:
    basics = gguf_basics(b)
    head_dim = basics.geometry.head_dim
    b.naming = Naming({**b.naming.parts, "ffn.norm": "blk.{i}.post_attention_norm"})
    b.config.neutral("rope.dimension_count", head_dim)
    rope = gguf_rope(b.config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * basics.layers,
        scale=1.0 / math.sqrt(head_dim),
    ).component(b)


FAMILY = Family(
    name="seed_oss",
    model_types=("seed_oss",),
    architectures=("seed_oss",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
