"""Routed layers whose experts are chosen by groups, with a correction that only chooses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from larql.format.graph import Activation, ExpertGroups, RoutedFfn, SharedExperts
from larql.format.source.builder import Builder
from larql.format.source.experts import Experts, gated_experts, shared_ffn
from larql.format.source.families import routed

__all__ = ["GROUPED_PARTS", "Grouped", "grouped_ffn", "leave_drafts"]

GROUPED_PARTS = {
    "ffn.router": "mlp.gate",
    "ffn.shared.gate": "mlp.shared_experts.gate_proj",
    "ffn.shared.up": "mlp.shared_experts.up_proj",
    "ffn.shared.down": "mlp.shared_experts.down_proj",
}
"""Names inside a layer of routers and shared experts."""

_LEAST_SUM = 1e-20  # added to the sum of weights before they are divided by it
_LAYER = re.compile(r"model\.layers\.([0-9]{1,6})\.")


@dataclass(frozen=True)
class Grouped:
    """Numbers of routed layers: experts, how many are shared or chosen, from how many groups."""

    count: int
    width: int
    top: int
    shared: int
    groups: int
    kept: int
    scale: float
    renormalise: bool


def grouped_ffn(
    b: Builder, layer: int, hidden: int, n: Grouped, activation: Activation
) -> RoutedFfn:
    """Describe a routed layer; the weights are sigmoids, the correction is left out of them.

    Raises
    ------
    CompileError
        If a tensor is missing or has another shape.
    """
    groups = None if n.groups == 1 else ExpertGroups(n.groups, n.kept, "top2_sum")
    shared = None
    if n.shared:
        ffn = shared_ffn(b, layer, hidden, n.shared * n.width, activation)
        shared = SharedExperts(ffn)
    place = f"model.layers.{layer}.mlp"
    return RoutedFfn(
        routed.router(
            b,
            layer,
            hidden,
            n.count,
            score="sigmoid",
            top=n.top,
            renormalise=n.renormalise,
            renormalise_eps=_LEAST_SUM if n.renormalise else 0.0,
            correction=f"{place}.gate.e_score_correction_bias",
            groups=groups,
            scale=n.scale,
        ),
        gated_experts(b, Experts(layer, f"{place}.experts", n.count, hidden, n.width), activation),
        shared,
    )


def leave_drafts(b: Builder, layers: int) -> None:
    """Leave the layers behind the last one, which draft tokens and are no part of the model."""
    for key in ("num_nextn_predict_layers", "num_mtp_layers"):
        b.config.irrelevant(key)
    found = [
        name
        for name in b.tensors
        if (match := _LAYER.match(name)) is not None and int(match[1]) >= layers
    ]
    if found:
        b.leave(found, "a layer that drafts tokens")
        b.notes.append(f"{len(found)} tensors of layers that draft tokens were left behind")
