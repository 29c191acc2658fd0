"""The usual decoder: attention and a gated FFN in each layer, whatever its numbers.

A family reads its configuration into :class:`Decoder`, and this module names the operands. What
differs between families is a number or a flag here; a family whose layers are of another make
describes them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from larql.format.graph import (
    Activation,
    Block,
    Component,
    DenseFfn,
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

__all__ = ["Attention", "Basics", "Decoder", "Defaults", "gguf_basics", "hugging_face_basics"]


@dataclass(frozen=True)
class Basics:
    """The numbers that every decoder has."""

    hidden: int
    layers: int
    geometry: HeadGeometry
    ffn: int
    context: int
    eps: float


@dataclass(frozen=True)
class Defaults:
    """What a configuration that says nothing means; None: it must say it.

    ``kv_heads`` None means as many as heads, ``head_dim`` None hidden / heads.
    """

    context: int
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    ffn: int | None = None
    eps: float = 1e-6
    kv_heads: int | None = None
    head_dim: int | None = None


def hugging_face_basics(b: Builder, usual: Defaults) -> Basics:
    """Read the keys of ``config.json`` that are called alike in most families."""
    config = b.config

    def count(key: str, default: int | None) -> int:
        return config.count(key) if default is None else config.count(key, default)

    hidden = count("hidden_size", usual.hidden)
    heads = count("num_attention_heads", usual.heads)
    kv_heads = config.nullable_count("num_key_value_heads", usual.kv_heads) or heads
    stated = config.nullable_count("head_dim", usual.head_dim)
    head_dim = hidden // heads if stated is None else stated
    if head_dim < 1:
        config.contradiction("hidden_size", "num_attention_heads", hidden, heads)
        head_dim = 1
    return Basics(
        hidden=hidden,
        layers=b.layer_count("num_hidden_layers", usual.layers),
        geometry=HeadGeometry(heads, kv_heads, head_dim),
        ffn=count("intermediate_size", usual.ffn),
        context=config.count("max_position_embeddings", usual.context),
        eps=config.number("rms_norm_eps", usual.eps),
    )


def gguf_basics(b: Builder) -> Basics:
    """Read the metadata keys that are called alike in most architectures."""
    config: ConfigReader = b.config
    hidden = config.count("embedding_length")
    heads = config.count("attention.head_count")
    head_dim = config.count("attention.key_length", hidden // heads)
    config.agree("attention.value_length", "attention.key_length", head_dim)
    layers = b.layer_count("block_count")
    kv_heads = config.counts_by_layer("attention.head_count_kv", layers, heads)
    if len(set(kv_heads)) != 1 or kv_heads[0] == 0:
        found = sorted(set(kv_heads))
        config.refuse("attention.head_count_kv", f"is {found}, expected one number above 0")
        kv_heads = (1,)
    return Basics(
        hidden=hidden,
        layers=layers,
        geometry=HeadGeometry(heads, kv_heads[0], head_dim),
        ffn=config.count("feed_forward_length"),
        context=config.count("context_length"),
        eps=config.number("attention.layer_norm_rms_epsilon"),
    )


@dataclass(frozen=True)
class Attention:
    """What may differ between the attention of two layers: window, and rope or none."""

    window: int | None
    rope: Rope | None


@dataclass(frozen=True)
class Decoder:
    """A decoder in numbers.

    Attributes
    ----------
    basics : Basics
    layers : tuple of Attention
        One for each layer.
    scale : float
        Factor of the query-key products.
    activation : str
    bias : bool or None
        Of the projections to q, k and v; None: where the checkpoint carries one.
    output_bias, ffn_bias : bool or None
        Likewise, of the projection from the mixed values, and of the FFN's.
    qk_norm : {"head", "projection"} or None
        What queries and keys are normalised over.
    norm_offset : float
        Of every norm.
    pre_norms, post_norms : bool
        Norms of what a block reads, and of what it writes.
    fused : bool
        One tensor holds the rows of q, k and v, another those of gate and up, in these orders.
    softcap, logit_softcap : float or None
    embed_scale, residual_scale, logit_multiplier : float
    tied : bool or None
        As for :meth:`larql.format.source.builder.Builder.head`.
    clip : float or None
        As of :class:`~larql.format.graph.SoftmaxAttention`.
    sinks : bool
        Every head has one, in a tensor whose whole name is given for ``attention.sinks``.
    ffn : callable or None
        ``ffn(builder, layer, decoder) -> Mixer``, where it is not :meth:`gated` on all layers.
    """

    basics: Basics
    layers: tuple[Attention, ...]
    scale: float
    activation: Activation = "silu"
    bias: bool | None = None
    output_bias: bool | None = None
    ffn_bias: bool | None = None
    qk_norm: Literal["head", "projection"] | None = None
    norm_offset: float = 0.0
    pre_norms: bool = True
    post_norms: bool = False
    fused: bool = False
    softcap: float | None = None
    logit_softcap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_multiplier: float = 1.0
    tied: bool | None = None
    clip: float | None = None
    sinks: bool = False
    ffn: Callable[[Builder, int, Decoder], Mixer] | None = None

    def component(self, b: Builder) -> Component:
        """Describe it, binding a checkpoint tensor to each operand."""
        hidden = self.basics.hidden
        embed = b.embed(hidden, scale=self.embed_scale)
        layers = tuple(self._layer(b, i) for i in range(len(self.layers)))
        return Component(
            id=b.component,
            role="decoder",
            hidden_size=hidden,
            vocab_size=embed.vocab,
            context_length=self.basics.context,
            embed=embed,
            layers=layers,
            head=b.head(
                embed,
                b.norm("output", None, hidden, self.basics.eps, self.norm_offset),
                tied=self.tied,
                multiplier=self.logit_multiplier,
                softcap=self.logit_softcap,
            ),
        )

    def _layer(self, b: Builder, i: int) -> Layer:
        def norm(part: str, wanted: bool) -> Norm | None:
            hidden, eps = self.basics.hidden, self.basics.eps
            return b.norm(part, i, hidden, eps, self.norm_offset) if wanted else None

        return Layer(
            index=i,
            blocks=(
                Block(
                    site="attention",
                    norm=norm("attention.norm", self.pre_norms),
                    mixer=self._attention(b, i),
                    post_norm=norm("attention.post_norm", self.post_norms),
                    residual_scale=self.residual_scale,
                ),
                Block(
                    site="ffn",
                    norm=norm("ffn.norm", self.pre_norms),
                    mixer=self.gated(b, i) if self.ffn is None else self.ffn(b, i, self),
                    post_norm=norm("ffn.post_norm", self.post_norms),
                    residual_scale=self.residual_scale,
                ),
            ),
        )

    def _attention(self, b: Builder, i: int) -> SoftmaxAttention:
        hidden, geometry = self.basics.hidden, self.basics.geometry
        dim, heads, kv_heads = geometry.head_dim, geometry.heads, geometry.kv_heads
        sizes = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
        rows = self._rows(sizes)

        def norm(part: str) -> Norm | None:
            if self.qk_norm is None:
                return None
            width = dim if self.qk_norm == "head" else sizes[part]
            name = f"attention.{part}_norm"
            return b.norm(name, i, width, self.basics.eps, self.norm_offset)

        q, k, v = (
            b.linear(f"attention.{part}", i, size, hidden, bias=self.bias, rows=rows[part])
            for part, size in sizes.items()
        )
        return SoftmaxAttention(
            heads=heads,
            kv_heads=kv_heads,
            key_dim=dim,
            value_dim=dim,
            scale=self.scale,
            q=q,
            k=k,
            v=v,
            o=b.linear("attention.o", i, hidden, heads * dim, bias=self.output_bias),
            window=self.layers[i].window,
            softcap=self.softcap,
            q_norm=norm("q"),
            k_norm=norm("k"),
            clip=self.clip,
            sinks=b.vector("attention.sinks", i, heads, stored=(heads,)) if self.sinks else None,
            rope=self.layers[i].rope,
        )

    def gated(self, b: Builder, i: int) -> DenseFfn:
        """Describe the gated FFN of a layer."""
        hidden, width, bias = self.basics.hidden, self.basics.ffn, self.ffn_bias
        rows = self._rows({"gate": width, "up": width})
        return DenseFfn(
            activation=self.activation,
            gate=b.linear("ffn.gate", i, width, hidden, bias=bias, rows=rows["gate"]),
            up=b.linear("ffn.up", i, width, hidden, bias=bias, rows=rows["up"]),
            down=b.linear("ffn.down", i, hidden, width, bias=bias),
        )

    def _rows(self, sizes: dict[str, int]) -> dict[str, Part | None]:
        """Return where the rows of several projections stand, one after the other, in a tensor."""
        if not self.fused:
            return dict.fromkeys(sizes)
        total, first = sum(sizes.values()), 0
        parts: dict[str, Part | None] = {}
        for name, size in sizes.items():
            parts[name] = Part(RowSelection.span(first, size), total)
            first += size
        return parts
