"""LFM2: gated short convolutions with attention layers in between.

``in_proj`` of a convolution layer holds the rows of B, C and x one after the other. The width of
the FFN is made of the one that the configuration states. The final norm is ``embedding_norm``.
GGUF files state the width as it is; there, a layer without key/value heads is a convolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from larql.format.graph import Block, Component, Layer, Mixer, Rope, ShortConvolution
from larql.format.rows import RowSelection
from larql.format.source.binder import Part
from larql.format.source.builder import Builder, Family, HeadGeometry
from larql.format.source.config import ConfigReader
from larql.format.source.gguf_recurrent import one_count
from larql.format.source.keys import common_hugging_face_keys, layer_kinds
from larql.format.source.names import Naming, hugging_face_naming
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_CONV, _FULL = "conv", "full_attention"
_PARTS = {
    "attention.norm": "operator_norm",
    "attention.o": "self_attn.out_proj",
    "attention.q_norm": "self_attn.q_layernorm",
    "attention.k_norm": "self_attn.k_layernorm",
    "convolution.b": "conv.in_proj",
    "convolution.c": "conv.in_proj",
    "convolution.v": "conv.in_proj",
    "convolution.taps": "conv.conv",
    "convolution.o": "conv.out_proj",
    "ffn.norm": "ffn_norm",
    "ffn.gate": "feed_forward.w1",
    "ffn.up": "feed_forward.w3",
    "ffn.down": "feed_forward.w2",
}
_GGUF_PARTS = {
    "output": "token_embd_norm",
    "convolution.b": "blk.{i}.shortconv.in_proj",
    "convolution.c": "blk.{i}.shortconv.in_proj",
    "convolution.v": "blk.{i}.shortconv.in_proj",
    "convolution.taps": "blk.{i}.shortconv.conv",
    "convolution.o": "blk.{i}.shortconv.out_proj",
}


@dataclass(frozen=True)
class _Numbers:
    hidden: int
    eps: float
    ffn: int
    geometry: HeadGeometry
    rope: Rope
    taps: int
    conv_bias: bool
    squeezed: bool = False


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    naming = hugging_face_naming("model.", "lm_head", _PARTS)
    b.naming = Naming({**naming.parts, "output": "model.embedding_norm"})
    hidden = config.count("hidden_size", 2560)
    heads = config.count("num_attention_heads", 32)
    head_dim = config.count("head_dim", hidden // heads)
    eps = config.number("norm_eps", 1e-5)
    config.same("tie_embedding", "tie_word_embeddings")
    _older_keys(config, hidden, heads, eps)
    rope = hugging_face_rope(config, 1000000.0)
    theta = config.optional_number("theta")
    if theta is not None and theta != rope.theta:
        config.contradiction("theta", "rope_theta", theta, rope.theta)
    n = _Numbers(
        hidden=hidden,
        eps=eps,
        ffn=_ffn_width(config),
        geometry=HeadGeometry(heads, config.count("num_key_value_heads", 8), head_dim),
        rope=rope.rope(head_dim),
        taps=config.count("conv_L_cache", 3),
        conv_bias=config.flag("conv_bias", False),
    )
    kinds = _layer_kinds(config, b.layer_count("num_hidden_layers", 32))
    context = config.count("max_position_embeddings", 128000)
    return _component(b, n, kinds, context, config.flag("tie_word_embeddings", True))


def _component(
    b: Builder, n: _Numbers, kinds: tuple[str, ...], context: int, tied: bool | None
) -> Component:
    embed = b.embed(n.hidden, scale=1.0)
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=n.hidden,
        vocab_size=embed.vocab,
        context_length=context,
        embed=embed,
        layers=tuple(_layer(b, i, kind, n) for i, kind in enumerate(kinds)),
        head=b.head(embed, b.norm("output", None, n.hidden, n.eps, 0.0), tied=tied),
    )


def _gguf(b: Builder) -> Component:
    config = b.config
    b.naming = Naming({**b.naming.parts, **_GGUF_PARTS})
    hidden, heads = config.count("embedding_length"), config.count("attention.head_count")
    head_dim = config.count("attention.key_length", hidden // heads)
    config.neutral("attention.value_length", head_dim)
    config.neutral("rope.dimension_count", head_dim)
    config.neutral("attention.sliding_window", 0)
    layers = b.layer_count("block_count")
    counts = config.counts_by_layer("attention.head_count_kv", layers)
    kv_heads = one_count(config, "attention.head_count_kv", counts, heads)
    n = _Numbers(
        hidden=hidden,
        eps=config.number("attention.layer_norm_rms_epsilon"),
        ffn=config.count("feed_forward_length"),
        geometry=HeadGeometry(heads, kv_heads, head_dim),
        rope=gguf_rope(config, 1000000.0).rope(head_dim),
        taps=config.count("shortconv.l_cache"),
        conv_bias=False,
        squeezed=True,
    )
    kinds = tuple(_FULL if count else _CONV for count in counts)
    return _component(b, n, kinds, config.count("context_length"), None)


def _older_keys(config: ConfigReader, hidden: int, heads: int, eps: float) -> None:
    """Judge keys that repeat others, or that nothing reads any more."""
    for key in ("block_dim", "conv_dim", "conv_dim_out"):
        config.agree(key, "hidden_size", hidden)
    config.agree("num_heads", "num_attention_heads", heads)
    config.agree("block_norm_eps", "norm_eps", eps)
    config.neutral("block_use_swiglu", True)
    config.neutral("use_pos_enc", True)
    config.irrelevant(
        "block_mlp_init_scale",
        "block_out_init_scale",
        "block_use_xavier_init",
        "conv_use_xavier_init",
    )


def _ffn_width(config: ConfigReader) -> int:
    """Return the width: two thirds of what is stated, times a factor, rounded up, if adjusted."""
    config.same("block_ff_dim", "intermediate_size")
    width = config.count("intermediate_size", 12288)
    adjusted = config.flag("block_auto_adjust_ff_dim", True)
    factor = config.number("block_ffn_dim_multiplier", 1.0)
    multiple = config.count("block_multiple_of", 256)
    if not adjusted:
        return width
    return multiple * math.ceil(int(factor * int(2 * width / 3)) / multiple)


def _layer_kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    kinds = layer_kinds(config, "layer_types", layers, {_CONV: _CONV, _FULL: _FULL})
    indices = config.counts("full_attn_idxs")
    if indices is None:
        return kinds or (_FULL,) * layers
    listed = tuple(_FULL if i in indices else _CONV for i in range(layers))
    if kinds is not None and kinds != listed:
        full = [i for i, kind in enumerate(kinds) if kind == _FULL]
        config.contradiction("layer_types", "full_attn_idxs", f"full at {full}", indices)
    return listed


def _layer(b: Builder, i: int, kind: str, n: _Numbers) -> Layer:
    mixer: Mixer
    if kind == _CONV:
        mixer = _convolution(b, i, n)
    else:
        mixer = b.attention(
            i,
            n.hidden,
            n.geometry,
            scale=1.0 / math.sqrt(n.geometry.head_dim),
            bias=False,
            rope=n.rope,
            qk_norm=(n.eps, 0.0),
        )
    return Layer(
        index=i,
        blocks=(
            Block(
                site="attention",
                norm=b.norm("attention.norm", i, n.hidden, n.eps, 0.0),
                mixer=mixer,
            ),
            Block(
                site="ffn",
                norm=b.norm("ffn.norm", i, n.hidden, n.eps, 0.0),
                mixer=b.gated_ffn(i, n.hidden, n.ffn, "silu", bias=False),
            ),
        ),
    )


def _convolution(b: Builder, i: int, n: _Numbers) -> ShortConvolution:
    width, bias = n.hidden, n.conv_bias
    before, after, values = (
        b.linear(
            f"convolution.{part}",
            i,
            width,
            width,
            bias=bias,
            rows=Part(RowSelection.span(at * width, width), 3 * width),
        )
        for at, part in enumerate("bcv")
    )
    return ShortConvolution(
        b=before,
        c=after,
        v=values,
        conv=b.convolution(
            "convolution.taps", i, width, n.taps, None, bias=bias, squeezed=n.squeezed
        ),
        o=b.linear("convolution.o", i, width, width, bias=bias),
    )


FAMILY = Family(
    name="lfm2",
    model_types=("lfm2",),
    architectures=("lfm2",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
