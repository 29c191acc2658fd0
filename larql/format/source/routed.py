"""What decoders with routed experts share: pre-norm layers, routers, and which layers route."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from larql.format.graph import (
    Block,
    Component,
    ExpertGroups,
    Layer,
    Mixer,
    Router,
)
from larql.format.source.builder import Builder
from larql.format.source.config import ConfigReader

__all__ = [
    "Basics",
    "decoder",
    "expert_count",
    "layer_list",
    "renormalises",
    "router",
    "router_keys",
    "top_of",
]


@dataclass(frozen=True)
class Basics:
    """The numbers of a decoder that its layers share."""

    hidden: int
    layers: int
    context: int
    eps: float
    tied: bool | None


def router_keys(config: ConfigReader) -> None:
    """Judge the keys of routers that matter in training only."""
    config.irrelevant(
        "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "aux_loss_alpha",
        "seq_aux",
    )  # fmt: skip


def expert_count(config: ConfigReader, default: int) -> int:
    """Take the number of a layer's experts."""
    return config.optional_count("num_experts") or default


def renormalises(config: ConfigReader, default: bool) -> bool:
    """Take whether weights are divided by their sum; null may mean false or nothing said."""
    config.refuse_null("norm_topk_prob", "expected true or false, or no key")
    return config.flag("norm_topk_prob", default)


def top_of(config: ConfigReader, experts: int, default: int) -> int:
    """Take how many experts a position passes through, of which there must be so many."""
    top = config.count("num_experts_per_tok", default)
    if top > experts:
        config.refuse("num_experts_per_tok", f"is {top}, of {experts} experts", "num_experts")
    return top


def router(
    b: Builder,
    layer: int,
    hidden: int,
    experts: int,
    *,
    score: Literal["softmax", "sigmoid"],
    top: int,
    renormalise: bool,
    renormalise_eps: float = 0.0,
    bias: bool = False,
    correction: str | None = None,
    groups: ExpertGroups | None = None,
    scale: float = 1.0,
) -> Router:
    """Describe a router; the naming has ``ffn.router``, and ``correction`` names a tensor."""
    kind = f"layer.{layer:03d}"
    return Router(
        scores=b.linear("ffn.router", layer, experts, hidden, bias=bias),
        score=score,
        top=top,
        renormalise=renormalise,
        renormalise_eps=renormalise_eps,
        groups=groups,
        correction=None
        if correction is None
        else b.bind(kind, "ffn.router.correction", correction, (experts,)),
        scale=scale,
    )


def decoder(
    b: Builder,
    n: Basics,
    attention: Callable[[int], Mixer],
    ffn: Callable[[int], Mixer],
) -> Component:
    """Describe a decoder whose blocks read a norm of the carrier and are added to it."""
    embed = b.embed(n.hidden, scale=1.0)
    layers = tuple(
        Layer(
            index=i,
            blocks=(
                Block(
                    site="attention",
                    norm=b.norm("attention.norm", i, n.hidden, n.eps, 0.0),
                    mixer=attention(i),
                ),
                Block(
                    site="ffn",
                    norm=b.norm("ffn.norm", i, n.hidden, n.eps, 0.0),
                    mixer=ffn(i),
                ),
            ),
        )
        for i in range(n.layers)
    )
    norm = b.norm("output", None, n.hidden, n.eps, 0.0)
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=n.hidden,
        vocab_size=embed.vocab,
        context_length=n.context,
        embed=embed,
        layers=layers,
        head=b.head(embed, norm, tied=n.tied),
    )


def layer_list(config: ConfigReader, key: str, layers: int) -> tuple[int, ...]:
    """Take an array of layer numbers, empty where the key is absent."""
    found = config.counts(key) or ()
    for number in found:
        if number >= layers:
            config.refuse(key, f"names layer {number} of {layers}", "num_hidden_layers")
    return found
