"""Granite: Llama's layers with four multipliers. Logits are divided by the fourth.

GGUF files store the rows of q and k so that neighbours turn together; a key that elsewhere only
tells how a model was trained says here whether they turn at all.
"""

from __future__ import annotations

from larql.format.graph import Component
from larql.format.source.builder import Builder, Family
from larql.format.source.decoder import (
    Attention,
    Decoder,
    Defaults,
    gguf_basics,
    hugging_face_basics,
)
from larql.format.source.gguf_recurrent import no_recurrent_layers
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_DEFAULTS = Defaults(hidden=4096, layers=32, heads=32, ffn=11008, context=2048)


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    basics = hugging_face_basics(b, _DEFAULTS)
    bias = config.flag("attention_bias", False)
    config.refuse_null("attention_multiplier", "which is no scale; a number is expected, or no key")
    rope = hugging_face_rope(config, 10000.0).rope(basics.geometry.head_dim)
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * basics.layers,
        scale=config.number("attention_multiplier", 1.0),
        activation=activation(config, "hidden_act", "silu"),
        bias=bias,
        output_bias=bias,
        ffn_bias=config.flag("mlp_bias", False),
        embed_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_multiplier=1.0 / config.number("logits_scaling", 1.0),
        tied=config.flag("tie_word_embeddings", False),
    ).component(b)


def _gguf(b: Builder) -> Component:
    config = b.config
    basics = gguf_basics(b)
    head_dim = basics.geometry.head_dim
    config.neutral("rope.dimension_count", head_dim)
    # What is left of a hybrid whose layers are all of attention and dense.
    no_recurrent_layers(config)
    config.neutral("expert_count", 0)
    config.neutral("expert_used_count", 0)
    config.neutral("expert_shared_feed_forward_length", basics.ffn)
    turns = config.flag("rope.scaling.finetuned", True)
    settings = gguf_rope(config, 10000.0)
    rope = settings.rope(head_dim, "adjacent") if turns else None
    return Decoder(
        basics=basics,
        layers=(Attention(None, rope),) * basics.layers,
        scale=config.number("attention.scale"),
        embed_scale=config.number("embedding_scale", 1.0),
        residual_scale=config.number("residual_scale", 1.0),
        logit_multiplier=1.0 / config.number("logit_scale", 1.0),
    ).component(b)


FAMILY = Family(
    name="granite",
    model_types=("granite",),
    architectures=("granite",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
