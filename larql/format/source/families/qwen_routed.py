"""Routed layers of Qwen3-Next and Qwen3.5: experts, and a shared one under a gate of its own."""

from __future__ import annotations

from dataclasses import dataclass

from larql.format.graph import RoutedFfn, SharedExperts
from larql.format.source import routed
from larql.format.source.builder import Builder
from larql.format.source.experts import Experts, gated_experts, shared_ffn
from larql.format.source.families.qwen_hybrid import Numbers

__all__ = ["KEYS", "PARTS", "Defaults", "ExpertNumbers", "numbers", "routed_ffn"]

PARTS = {
    "ffn.router": "mlp.gate",
    "ffn.experts": "mlp.experts",
    "ffn.shared.gate": "mlp.shared_expert.gate_proj",
    "ffn.shared.up": "mlp.shared_expert.up_proj",
    "ffn.shared.down": "mlp.shared_expert.down_proj",
    "ffn.shared.gate_of_all": "mlp.shared_expert_gate",
}
KEYS = (
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts_per_tok",
    "output_router_logits",
    "router_aux_loss_coef",
    "shared_expert_intermediate_size",
)
"""Configuration keys that say nothing where no layer routes."""


@dataclass(frozen=True)
class Defaults:
    """What a configuration that says nothing means."""

    count: int
    width: int
    shared: int
    top: int


@dataclass(frozen=True)
class ExpertNumbers:
    """Numbers of the routed layers."""

    count: int
    width: int
    shared: int
    top: int
    renormalise: bool


def numbers(b: Builder, usual: Defaults, *, renormalises: bool | None) -> ExpertNumbers:
    """Judge the keys of routed layers.

    Parameters
    ----------
    b : Builder
    usual : Defaults
    renormalises : bool or None
        What a configuration without ``norm_topk_prob`` means; None: weights always are
        renormalised, and a key that says otherwise is refused.
    """
    config = b.config
    routed.router_keys(config)
    count = routed.expert_count(config, usual.count)
    if renormalises is None:
        config.neutral("norm_topk_prob", True)
    return ExpertNumbers(
        count=count,
        width=config.count("moe_intermediate_size", usual.width),
        shared=config.count("shared_expert_intermediate_size", usual.shared),
        top=routed.top_of(config, count, usual.top),
        renormalise=True if renormalises is None else routed.renormalises(config, renormalises),
    )


def routed_ffn(b: Builder, i: int, n: Numbers, e: ExpertNumbers) -> RoutedFfn:
    """Describe a routed layer."""
    prefix = b.naming.tensor("ffn.experts", i, "")
    return RoutedFfn(
        routed.router(
            b, i, n.hidden, e.count, score="softmax", top=e.top, renormalise=e.renormalise
        ),
        gated_experts(b, Experts(i, prefix, e.count, n.hidden, e.width), n.activation),
        SharedExperts(
            shared_ffn(b, i, n.hidden, e.shared, n.activation),
            b.linear("ffn.shared.gate_of_all", i, 1, n.hidden, bias=False),
        ),
    )
