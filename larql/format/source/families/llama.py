"""Llama: pre-norm decoder, grouped heads, gated SiLU FFN.

GGUF files store the rows of q and k so that neighbours turn together; checkpoints keep halves.
Llama 3 rope scaling is closed-form in a checkpoint and a tensor of factors in GGUF. GGUF files of
Mixtral call themselves by this architecture, and count experts.
"""

from __future__ import annotations

import math
from dataclasses import replace

from larql.format.graph import Component
from larql.format.source.builder import Builder, Family
from larql.format.source.decoder import (
    Attention,
    Decoder,
    Defaults,
    gguf_basics,
    hugging_face_basics,
)
from larql.format.source.gguf_experts import gguf_experts
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY", "gguf"]

_DEFAULTS = Defaults(context=2048)


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    config.irrelevant("is_llama_config")
    config.neutral("pretraining_tp", 1)
    config.neutral("rope_interleaved", False)
    config.neutral("partial_rotary_factor", 1.0)
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
        ffn_bias=config.flag("mlp_bias", False),
        tied=config.flag("tie_word_embeddings", False),
    ).component(b)


def gguf(b: Builder) -> Component:
    """Compile a file whose layers are Llama's, or Mixtral's."""
    config = b.config
    basics = gguf_basics(b)
    experts = None
    if config.count("expert_count", 0, least=0):
        experts = gguf_experts(b, basics.ffn, renormalises=True)
    else:
        config.neutral("expert_used_count", 0)
    head_dim = basics.geometry.head_dim
    dims = config.count("rope.dimension_count", head_dim)
    rope = gguf_rope(config, 10000.0).rope(dims, "adjacent")
    factors = b.naming.tensor("rope.factors", None, ".weight")
    if factors in b.tensors:
        rope = replace(rope, factors=b.bind("rope", "factors", factors, (dims // 2,)))
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * basics.layers,
        scale=1.0 / math.sqrt(head_dim),
        ffn=None if experts is None else experts.ffn,
    ).component(b)


FAMILY = Family(
    name="llama",
    model_types=("llama",),
    architectures=("llama",),
    hugging_face=_hugging_face,
    gguf=gguf,
)
