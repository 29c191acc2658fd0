"""OLMo 2: norms of what a block writes and none of what it reads; q/k norm over all heads."""

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
from larql.format.source.names import hugging_face_naming
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_DEFAULTS = Defaults(hidden=4096, layers=32, heads=32, ffn=11008, context=2048, eps=1e-5)
_PARTS = {
    "attention.post_norm": "post_attention_layernorm",
    "ffn.post_norm": "post_feedforward_layernorm",
}


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    b.naming = hugging_face_naming("model.", "lm_head", _PARTS)
    basics = hugging_face_basics(b, _DEFAULTS)
    head_dim = basics.geometry.head_dim
    bias = config.flag("attention_bias", False)
    rope = hugging_face_rope(config, 10000.0).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * basics.layers,
        scale=1.0 / math.sqrt(head_dim),
        activation=activation(config, "hidden_act", "silu"),
        bias=bias,
        output_bias=bias,
        ffn_bias=False,
        qk_norm="projection",
        pre_norms=False,
        post_norms=True,
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
        qk_norm="projection",
        pre_norms=False,
        post_norms=True,
    ).component(b)


FAMILY = Family(
    name="olmo2",
    model_types=("olmo2",),
    architectures=("olmo2",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
