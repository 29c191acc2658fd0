"""What Qwen3.5 and Qwen3-Next share: gated delta layers with full attention in between.

All norms store ``w`` and mean ``1 + w``, but for the gated norm inside the delta layers, which has
a plain weight. Full layers turn a quarter of each head unless told otherwise, and gate what
attention gives: their query rows are followed by as many of the gate, head by head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from larql.format.graph import (
    Activation,
    Block,
    Component,
    GatedDelta,
    Layer,
    Mixer,
    Norm,
    Rope,
    SoftmaxAttention,
)
from larql.format.rows import RowSelection
from larql.format.source.binder import Part
from larql.format.source.builder import Builder, HeadGeometry
from larql.format.source.config import ConfigReader
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.rope import hugging_face_rope

__all__ = [
    "DELTA",
    "FULL",
    "PARTS",
    "DeltaGeometry",
    "Numbers",
    "Stored",
    "attention",
    "component",
    "layer",
    "norm",
    "numbers",
    "one_tensor",
]

DELTA, FULL = "linear_attention", "full_attention"
_UNIT_EPS = 1e-6  # of the unit vectors; no key names it

PARTS = {
    "attention.gate": "self_attn.q_proj",
    "delta.q_conv": "linear_attn.conv1d",
    "delta.k_conv": "linear_attn.conv1d",
    "delta.v_conv": "linear_attn.conv1d",
    "delta.decay_rate": "linear_attn.A_log",
    "delta.decay_bias": "linear_attn.dt_bias",
    "delta.norm": "linear_attn.norm",
    "delta.o": "linear_attn.out_proj",
}


@dataclass(frozen=True)
class DeltaGeometry:
    """Heads of a delta layer, their widths, and the taps of its convolutions."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def keys(self) -> int:
        """Rows of q, and of k."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Rows of v, and of z."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class Stored:
    """How a format keeps what the two formats keep differently.

    Attributes
    ----------
    offset : float
        Added to the weights of norms.
    squeezed : bool
        As of :meth:`larql.format.source.builder.Builder.convolution`.
    rates, value_order
        As of :class:`~larql.format.graph.GatedDelta`.
    """

    offset: float
    squeezed: bool = False
    rates: Literal["negated"] | None = None
    value_order: Literal["tiled"] | None = None


@dataclass(frozen=True)
class Numbers:
    """What the configuration says of either family."""

    hidden: int
    kinds: tuple[str, ...]
    geometry: HeadGeometry
    delta: DeltaGeometry
    ffn: int
    context: int
    eps: float
    activation: Activation
    rope: Rope
    attention_bias: bool | None
    tied: bool | None
    stored: Stored


def numbers(b: Builder, defaults: Mapping[str, int]) -> Numbers:
    """Judge the keys that both families have.

    Parameters
    ----------
    b : Builder
    defaults : mapping
        ``hidden_size``, ``num_hidden_layers``, ``num_attention_heads``, ``num_key_value_heads``
        and ``intermediate_size`` where a configuration leaves them out.
    """
    config = b.config
    common_hugging_face_keys(config)
    # Which numbers a state is kept in is the backend's choice here: float32 or better.
    config.irrelevant("mamba_ssm_dtype")
    config.neutral("attn_output_gate", True)
    config.neutral("output_gate_type", "swish", "silu")
    layers = b.layer_count("num_hidden_layers", defaults["num_hidden_layers"])
    heads = config.count("num_attention_heads", defaults["num_attention_heads"])
    kv_heads = config.count("num_key_value_heads", defaults["num_key_value_heads"])
    head_dim = config.count("head_dim", 256)
    return Numbers(
        hidden=config.count("hidden_size", defaults["hidden_size"]),
        kinds=_kinds(config, layers),
        geometry=HeadGeometry(heads, kv_heads, head_dim),
        delta=_delta_geometry(config),
        ffn=config.count("intermediate_size", defaults["intermediate_size"]),
        context=config.count("max_position_embeddings", 32768),
        eps=config.number("rms_norm_eps", 1e-6),
        activation=activation(config, "hidden_act", "silu"),
        rope=_rope(config, head_dim),
        attention_bias=config.flag("attention_bias", False),
        tied=config.flag("tie_word_embeddings", False),
        stored=Stored(offset=1.0),
    )


def _delta_geometry(config: ConfigReader) -> DeltaGeometry:
    found = DeltaGeometry(
        key_heads=config.count("linear_num_key_heads", 16),
        value_heads=config.count("linear_num_value_heads", 32),
        key_dim=config.count("linear_key_head_dim", 128),
        value_dim=config.count("linear_value_head_dim", 128),
        taps=config.count("linear_conv_kernel_dim", 4),
    )
    if found.value_heads % found.key_heads:
        config.refuse(
            "linear_num_value_heads",
            f"is {found.value_heads}, no multiple of linear_num_key_heads {found.key_heads}",
        )
    return found


def _kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    every = config.optional_count("full_attention_interval")
    usual = tuple(DELTA if (i + 1) % (every or 4) else FULL for i in range(layers))
    kinds = layer_kinds(config, "layer_types", layers, {DELTA: DELTA, FULL: FULL})
    if kinds is None:
        return usual
    if every is not None and kinds != usual:
        full = [i for i, kind in enumerate(kinds) if kind == FULL]
        config.contradiction("layer_types", "full_attention_interval", f"full at {full[:8]}", every)
    return kinds


def _rope(config: ConfigReader, head_dim: int) -> Rope:
    for reader in (config, config.child("rope_parameters"), config.child("rope_scaling")):
        if reader is not None:
            # They deal the turned pairs out to the axes of an image; text has one axis.
            reader.irrelevant("mrope_section", "mrope_interleaved")
    return hugging_face_rope(config, 10000.0, 0.25).rope(head_dim)


def attention(b: Builder, i: int, n: Numbers) -> SoftmaxAttention:
    """Describe a full layer's attention."""
    return b.attention(
        i,
        n.hidden,
        n.geometry,
        scale=1.0 / math.sqrt(n.geometry.head_dim),
        bias=n.attention_bias,
        rope=n.rope,
        qk_norm=(n.eps, n.stored.offset),
        gated=True,
    )


def delta(b: Builder, i: int, n: Numbers, packing: Mapping[str, Part]) -> GatedDelta:
    """Describe a delta layer.

    Parameters
    ----------
    b : Builder
    i : int
    n : Numbers
    packing : mapping
        Projection to the rows that it has of the tensor that the naming gives for it; one that is
        not named has a tensor of its own.
    """
    d = n.delta
    outputs = {
        "q": d.keys, "k": d.keys, "v": d.values, "gate": d.values, "beta": d.value_heads,
        "decay": d.value_heads,
    }  # fmt: skip
    linears = {
        part: b.linear(f"delta.{part}", i, rows, n.hidden, bias=False, rows=packing.get(part))
        for part, rows in outputs.items()
    }
    total = 2 * d.keys + d.values
    convolutions = {
        part: b.convolution(
            f"delta.{part}_conv",
            i,
            size,
            d.taps,
            n.activation,
            rows=Part(RowSelection.span(first, size), total),
            squeezed=n.stored.squeezed,
        )
        for part, first, size in (
            ("q", 0, d.keys),
            ("k", d.keys, d.keys),
            ("v", 2 * d.keys, d.values),
        )
    }
    heads = (d.value_heads,)
    return GatedDelta(
        key_heads=d.key_heads,
        value_heads=d.value_heads,
        key_dim=d.key_dim,
        value_dim=d.value_dim,
        scale=1.0 / math.sqrt(d.key_dim),
        unit_eps=_UNIT_EPS,
        q=linears["q"],
        k=linears["k"],
        v=linears["v"],
        gate=linears["gate"],
        beta=linears["beta"],
        decay=linears["decay"],
        q_conv=convolutions["q"],
        k_conv=convolutions["k"],
        v_conv=convolutions["v"],
        decay_rate=b.vector("delta.decay_rate", i, d.value_heads, stored=heads),
        decay_bias=b.vector("delta.decay_bias", i, d.value_heads, stored=heads),
        norm=b.norm("delta.norm", i, d.value_dim, n.eps, 0.0),
        gate_activation="silu",
        o=b.linear("delta.o", i, n.hidden, d.values, bias=False),
        rates=n.stored.rates,
        value_order=n.stored.value_order,
    )


def one_tensor(d: DeltaGeometry) -> dict[str, Part]:
    """Return the packing where queries, keys and values are rows of one tensor, in this order."""
    total = 2 * d.keys + d.values
    spans = (("q", 0, d.keys), ("k", d.keys, d.keys), ("v", 2 * d.keys, d.values))
    return {part: Part(RowSelection.span(first, size), total) for part, first, size in spans}


def layer(b: Builder, i: int, n: Numbers, mixer: Mixer, ffn: Mixer) -> Layer:
    """Describe a layer of two blocks."""
    return Layer(
        index=i,
        blocks=(
            Block(site="attention", norm=norm(b, "attention.norm", i, n), mixer=mixer),
            Block(site="ffn", norm=norm(b, "ffn.norm", i, n), mixer=ffn),
        ),
    )


def norm(b: Builder, part: str, i: int | None, n: Numbers) -> Norm:
    """Describe a norm of the carrier."""
    return b.norm(part, i, n.hidden, n.eps, n.stored.offset)


def component(
    b: Builder, n: Numbers, packing: Mapping[str, Part], ffn: Callable[[int], Mixer]
) -> Component:
    """Describe the model.

    Parameters
    ----------
    b : Builder
    n : Numbers
    packing : mapping
        As for a delta layer.
    ffn : callable
        Layer number to its feed-forward operation.
    """
    embed = b.embed(n.hidden, scale=1.0)
    layers = tuple(
        layer(b, i, n, attention(b, i, n) if kind == FULL else delta(b, i, n, packing), ffn(i))
        for i, kind in enumerate(n.kinds)
    )
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=n.hidden,
        vocab_size=embed.vocab,
        context_length=n.context,
        embed=embed,
        layers=layers,
        head=b.head(embed, norm(b, "output", None, n), tied=n.tied),
    )
