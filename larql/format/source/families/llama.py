"""Llama: pre-norm decoder, grouped heads, gated SiLU FFN.

GGUF files store the rows of q and k so that neighbours turn together; checkpoints keep halves.
Llama 3 rope scaling is closed-form in a checkpoint and a tensor of factors in GGUF.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from larql.format.graph import Activation, Block, Component, Layer, Rope
from larql.format.source.builder import Builder, Family, HeadGeometry
from larql.format.source.keys import activation, common_hugging_face_keys
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]


@dataclass(frozen=True)
class _Numbers:
    hidden: int
    layers: int
    geometry: HeadGeometry
    ffn: int
    context: int
    eps: float
    activation: Activation
    rope: Rope
    attention_bias: bool | None
    ffn_bias: bool | None
    tied: bool | None


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    config.irrelevant("is_llama_config", "transformers.js_config")
    config.neutral("pretraining_tp", 1)
    config.neutral("rope_interleaved", False)
    config.neutral("partial_rotary_factor", 1.0)
    hidden = config.count("hidden_size")
    heads = config.count("num_attention_heads")
    head_dim = config.count("head_dim", hidden // heads)
    rope = hugging_face_rope(config, 10000.0)
    return _component(
        b,
        _Numbers(
            hidden=hidden,
            layers=b.layer_count("num_hidden_layers"),
            geometry=HeadGeometry(heads, config.count("num_key_value_heads", heads), head_dim),
            ffn=config.count("intermediate_size"),
            context=config.count("max_position_embeddings", 2048),
            eps=config.number("rms_norm_eps", 1e-6),
            activation=activation(config, "hidden_act", "silu"),
            rope=Rope(layout="half", dims=head_dim, theta=rope.theta, scaling=rope.scaling),
            attention_bias=config.flag("attention_bias", False),
            ffn_bias=config.flag("mlp_bias", False),
            tied=config.flag("tie_word_embeddings", False),
        ),
    )


def _gguf(b: Builder) -> Component:
    config = b.config
    config.neutral("expert_count", 0)
    config.neutral("expert_used_count", 0)
    hidden = config.count("embedding_length")
    heads = config.count("attention.head_count")
    head_dim = config.count("attention.key_length", hidden // heads)
    config.neutral("attention.value_length", head_dim)
    rope = gguf_rope(config, 10000.0)
    dims = config.count("rope.dimension_count", head_dim)
    factors_name = b.naming.tensor("rope.factors", None, ".weight")
    factors = None
    if factors_name in b.tensors:
        factors = b.bind("rope", "factors", factors_name, (dims // 2,))
    return _component(
        b,
        _Numbers(
            hidden=hidden,
            layers=b.layer_count("block_count"),
            geometry=HeadGeometry(heads, config.count("attention.head_count_kv", heads), head_dim),
            ffn=config.count("feed_forward_length"),
            context=config.count("context_length"),
            eps=config.number("attention.layer_norm_rms_epsilon"),
            activation="silu",
            rope=Rope(
                layout="adjacent",
                dims=dims,
                theta=rope.theta,
                scaling=rope.scaling,
                factors=factors,
            ),
            attention_bias=None,
            ffn_bias=None,
            tied=None,
        ),
    )


def _component(b: Builder, n: _Numbers) -> Component:
    embed = b.embed(n.hidden, scale=1.0)
    layers = tuple(
        Layer(
            index=i,
            blocks=(
                Block(
                    site="attention",
                    norm=b.norm("attention.norm", i, n.hidden, n.eps, 0.0),
                    mixer=b.attention(
                        i,
                        n.hidden,
                        n.geometry,
                        scale=1.0 / math.sqrt(n.geometry.head_dim),
                        bias=n.attention_bias,
                        rope=n.rope,
                    ),
                ),
                Block(
                    site="ffn",
                    norm=b.norm("ffn.norm", i, n.hidden, n.eps, 0.0),
                    mixer=b.gated_ffn(i, n.hidden, n.ffn, n.activation, bias=n.ffn_bias),
                ),
            ),
        )
        for i in range(n.layers)
    )
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=n.hidden,
        vocab_size=embed.vocab,
        context_length=n.context,
        embed=embed,
        layers=layers,
        head=b.head(embed, b.norm("output", None, n.hidden, n.eps, 0.0), tied=n.tied),
    )


FAMILY = Family(
    name="llama",
    model_types=("llama",),
    architectures=("llama",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
