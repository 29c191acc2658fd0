"""Layers of Gemma 4, of whichever format their numbers and tensors come."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from larql.format.graph import (
    Activation,
    Block,
    Component,
    ExpertBank,
    Layer,
    Norm,
    PerLayerEmbedding,
    PerLayerTable,
    Rope,
    RoutedFfn,
    Router,
    SharedExperts,
    SoftmaxAttention,
)
from larql.format.rows import RowSelection
from larql.format.source.binder import Part
from larql.format.source.builder import Builder

__all__ = ["Numbers", "component"]


@dataclass(frozen=True)
class Numbers:
    """What a configuration or a file's metadata says.

    Attributes
    ----------
    hidden, heads : int
    kinds : tuple of str
        Of each layer.
    turning : mapping
        Kind of layer to window and rope.
    geometry : tuple of (int, int)
        Key/value heads of each layer, and width of a head.
    shared_from : int
        First layer that attends to keys and values of an earlier one.
    has_values : callable
        Layer to whether it has values; without, they are its raw keys.
    widths : tuple of int
        Of each layer's dense FFN.
    eps : float
    activation : str
    attention_bias : bool or None
        None: where the checkpoint carries one.
    embedding, table_rows : int
        Width of a layer's own embedding, 0 without one, and rows of their table.
    experts : (int, int) or None
        How many there are, and how many are chosen; None without any.
    bank : callable
        Layer to its experts.
    context : int
    tied : bool or None
    logit_softcap : float or None
    """

    hidden: int
    heads: int
    kinds: tuple[str, ...]
    turning: Mapping[str, tuple[int | None, Rope]]
    geometry: tuple[tuple[int, int], ...]
    shared_from: int
    has_values: Callable[[int], bool]
    widths: tuple[int, ...]
    eps: float
    activation: Activation
    attention_bias: bool | None
    embedding: int
    table_rows: int
    experts: tuple[int, int] | None
    bank: Callable[[int], ExpertBank]
    context: int
    tied: bool | None
    logit_softcap: float | None


def component(b: Builder, n: Numbers) -> Component:
    """Describe the model.

    Raises
    ------
    CompileError
        If a tensor is missing or has another shape.
    """
    embed = b.embed(n.hidden, scale=math.sqrt(n.hidden))
    layers = len(n.kinds)
    table, context_norm = None, None
    if n.embedding:
        name = b.naming.tensor("per_layer.table", None, ".weight")
        shape = (n.table_rows, layers * n.embedding)
        weight = b.bind("embedding_per_layer", "weight", name, shape)
        scale = math.sqrt(n.embedding)
        table = PerLayerTable(weight, n.table_rows, layers, n.embedding, scale)
        context_norm = b.norm("per_layer.context_norm", None, n.embedding, n.eps, 0.0)
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=n.hidden,
        vocab_size=embed.vocab,
        context_length=n.context,
        embed=embed,
        layers=tuple(_layer(b, n, i, context_norm) for i in range(layers)),
        head=b.head(
            embed,
            b.norm("output", None, n.hidden, n.eps, 0.0),
            tied=n.tied,
            softcap=n.logit_softcap,
        ),
        per_layer=table,
    )


def _layer(b: Builder, n: Numbers, i: int, context_norm: Norm | None) -> Layer:
    def norm(part: str) -> Norm:
        return b.norm(part, i, n.hidden, n.eps, 0.0)

    blocks = [
        Block(
            site="attention",
            norm=norm("attention.norm"),
            mixer=_attention(b, n, i),
            post_norm=norm("attention.post_norm"),
        ),
        _feed_forward(b, n, i),
    ]
    if context_norm is not None:
        blocks.append(
            Block(
                site="per_layer",
                mixer=_embedding(b, n, i, context_norm),
                post_norm=norm("per_layer.post_norm"),
            )
        )
    scale = b.vector("layer_scale", i, 1, stored=(1,))
    return Layer(index=i, blocks=(*blocks[:-1], replace(blocks[-1], carrier_scale=scale)))


def _feed_forward(b: Builder, n: Numbers, i: int) -> Block:
    """Describe the feed-forward block; experts read and route the carrier beside the dense FFN."""

    def norm(part: str) -> Norm:
        return b.norm(part, i, n.hidden, n.eps, 0.0)

    before, after = norm("ffn.norm"), norm("ffn.post_norm")
    dense = b.gated_ffn(i, n.hidden, n.widths[i], n.activation, bias=False)
    if n.experts is None:
        return Block(site="ffn", norm=before, mixer=dense, post_norm=after)
    count, top = n.experts
    router = Router(
        scores=b.linear("ffn.router", i, count, n.hidden, bias=False),
        score="softmax",
        top=top,
        renormalise=True,
        expert_scale=b.vector("ffn.router.expert_scale", i, count, stored=(count,)),
        norm=Norm(
            kind="rms",
            width=n.hidden,
            eps=n.eps,
            weight=b.vector("ffn.router.scale", i, n.hidden, stored=(n.hidden,)),
        ),
        factor=1.0 / math.sqrt(n.hidden),
    )
    mixer = RoutedFfn(
        router=router,
        bank=n.bank(i),
        shared=SharedExperts(dense, norm=before, post_norm=norm("ffn.shared.post_norm")),
        norm=norm("ffn.experts.norm"),
        post_norm=norm("ffn.experts.post_norm"),
    )
    return Block(site="ffn", mixer=mixer, post_norm=after)


def _attention(b: Builder, n: Numbers, i: int) -> SoftmaxAttention:
    kv_heads, dim = n.geometry[i]
    window, rope = n.turning[n.kinds[i]]
    heads, hidden, bias = n.heads, n.hidden, n.attention_bias
    shared = None
    if i >= n.shared_from:
        shared = max(j for j in range(n.shared_from) if n.kinds[j] == n.kinds[i])
        parts = [b.naming.tensor(f"attention.{part}", i, "") for part in ("k", "v", "k_norm")]
        parts.append(parts[1].replace("v_proj", "v_norm"))
        ignored = [f"{name}.{suffix}" for name in parts for suffix in ("weight", "bias")]
        b.leave((name for name in ignored if name in b.tensors), "keys and values are shared")
    mixer = SoftmaxAttention(
        heads=heads,
        kv_heads=kv_heads,
        key_dim=dim,
        value_dim=dim,
        scale=1.0,
        q=b.linear("attention.q", i, heads * dim, hidden, bias=bias),
        o=b.linear("attention.o", i, hidden, heads * dim, bias=bias),
        window=window,
        shared=shared,
        q_norm=b.norm("attention.q_norm", i, dim, n.eps, 0.0),
        rope=rope,
    )
    if shared is not None:
        return mixer
    v = None
    if n.has_values(i):
        v = b.linear("attention.v", i, kv_heads * dim, hidden, bias=bias)
    return replace(
        mixer,
        k=b.linear("attention.k", i, kv_heads * dim, hidden, bias=bias),
        v=v,
        k_norm=b.norm("attention.k_norm", i, dim, n.eps, 0.0),
        v_norm=Norm(kind="rms", width=dim, eps=n.eps),
    )


def _embedding(b: Builder, n: Numbers, i: int, norm: Norm) -> PerLayerEmbedding:
    width = n.embedding
    rows = Part(RowSelection.span(i * width, width), len(n.kinds) * width)
    return PerLayerEmbedding(
        width=width,
        activation=n.activation,
        context=b.linear("per_layer.context", i, width, n.hidden, bias=False, rows=rows),
        norm=norm,
        gate=b.linear("per_layer.gate", i, width, n.hidden, bias=False),
        up=b.linear("per_layer.up", i, n.hidden, width, bias=False),
        context_scale=1.0 / math.sqrt(n.hidden),
        combined=math.sqrt(0.5),
    )
