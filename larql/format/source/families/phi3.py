"""Phi-3 and Phi-4-mini: q, k, v in one tensor, gate and up in another, part of each head turning.

Frequencies of the long-context models come as two lists. GGUF files carry them as tensors, and the
factor of cos and sin as a number.
"""

from __future__ import annotations

import math
from dataclasses import replace

from larql.format.graph import Component, Rope, RopeScaling
from larql.format.source.builder import Builder, Family
from larql.format.source.config import ConfigReader
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

_DEFAULTS = Defaults(hidden=3072, layers=32, heads=32, ffn=8192, context=4096, eps=1e-5)
_ORIGINAL_CONTEXT = 4096
_ORIGINAL = "original_max_position_embeddings"
# What the list-based scaling was called before it had a name.
_ALIASES = {"su": "longrope", "yarn": "longrope"}
_FUSED = {
    "attention.q": "self_attn.qkv_proj",
    "attention.k": "self_attn.qkv_proj",
    "attention.v": "self_attn.qkv_proj",
    "ffn.gate": "mlp.gate_up_proj",
    "ffn.up": "mlp.gate_up_proj",
}
_GGUF_FUSED = {
    "attention.q": "blk.{i}.attn_qkv",
    "attention.k": "blk.{i}.attn_qkv",
    "attention.v": "blk.{i}.attn_qkv",
    "ffn.gate": "blk.{i}.ffn_up",
    "ffn.up": "blk.{i}.ffn_up",
}
_LISTS = {"factors": "rope_factors_short.weight", "long_factors": "rope_factors_long.weight"}


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        config.neutral(key, False)
    for key in ("full_attn_mod", "interpolate_factor"):
        config.neutral(key, 1)
    fused = {part: f"model.layers.{{i}}.{name}" for part, name in _FUSED.items()}
    b.naming = Naming({**b.naming.parts, **fused})
    basics = hugging_face_basics(b, _DEFAULTS)
    window = config.nullable_count("sliding_window", None)
    rope = _hugging_face_rope(config, basics.geometry.head_dim)
    return Decoder(
        basics=basics,
        layers=(Attention(window, rope),) * basics.layers,
        scale=1.0 / math.sqrt(basics.geometry.head_dim),
        activation=activation(config, "hidden_act", "silu"),
        bias=False,
        output_bias=False,
        ffn_bias=False,
        fused=True,
        tied=config.flag("tie_word_embeddings", False),
    ).component(b)


def _hugging_face_rope(config: ConfigReader, head_dim: int) -> Rope:
    rope = hugging_face_rope(config, 10000.0, 1.0, _ALIASES).rope(head_dim)
    if rope.scaling is not None and rope.scaling.kind != "longrope":
        config.refuse(
            "rope_scaling", f"is of type {rope.scaling.kind!r}; expected default or longrope"
        )
    # Where only the rotary settings state it, programs that read such models disagree.
    if rope.scaling is not None and not config.has(_ORIGINAL):
        original = rope.scaling.original_context
        if original != _ORIGINAL_CONTEXT:
            config.refuse(
                _ORIGINAL,
                f"is missing, which means {_ORIGINAL_CONTEXT}, but the rope has {original}; they "
                f"must agree",
            )
    config.irrelevant(_ORIGINAL)
    return rope


def _gguf(b: Builder) -> Component:
    config = b.config
    basics = gguf_basics(b)
    b.naming = Naming({**b.naming.parts, **_GGUF_FUSED})
    dims = config.count("rope.dimension_count", basics.geometry.head_dim)
    window = config.count("attention.sliding_window", 0, least=0) or None
    rope = gguf_rope(config, 10000.0).rope(dims)
    original = config.optional_count("rope.scaling.original_context_length")
    magnitude = config.optional_number("rope.scaling.attn_factor")
    if any(name in b.tensors for name in _LISTS.values()):
        context = original or basics.context
        short, long = (
            b.bind("rope", operand, name, (dims // 2,)) for operand, name in _LISTS.items()
        )
        scaling = RopeScaling(
            kind="longrope",
            factor=basics.context / context,
            original_context=context,
            magnitude=None if magnitude == 1.0 else magnitude,
        )
        rope = replace(rope, scaling=scaling, factors=short, long_factors=long)
    elif magnitude not in (None, 1.0):
        config.refuse(
            "rope.scaling.attn_factor", f"is {magnitude}, but the file has no {_LISTS['factors']}"
        )
    return Decoder(
        basics=basics,
        layers=(Attention(window, rope),) * basics.layers,
        scale=1.0 / math.sqrt(basics.geometry.head_dim),
        fused=True,
    ).component(b)


FAMILY = Family(
    name="phi3",
    model_types=("phi3",),
    architectures=("phi3",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
