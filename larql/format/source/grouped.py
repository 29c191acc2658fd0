"""Routed layers whose experts are chosen by groups, with a correction that only chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from larql.format.graph import Activation, ExpertGroups, RoutedFfn, SharedExperts
from larql.format.source import routed
from larql.format.source.builder import Builder
from larql.format.source.config import ConfigReader
from larql.format.source.experts import Experts, gated_experts, shared_ffn

__all__ = [
    "GROUPED_PARTS",
    "LEAST_SUM",
    "GroupKeys",
    "Grouped",
    "expert_groups",
    "grouped_ffn",
]

GROUPED_PARTS = {
    "ffn.router": "mlp.gate",
    "ffn.shared.gate": "mlp.shared_experts.gate_proj",
    "ffn.shared.up": "mlp.shared_experts.up_proj",
    "ffn.shared.down": "mlp.shared_experts.down_proj",
}
"""Names inside a layer of routers and shared experts."""

LEAST_SUM = 1e-20
"""Added to the sum of weights before they are divided by it."""


@dataclass(frozen=True)
class GroupKeys:
    """Keys of the experts, the chosen ones, the groups and the groups kept."""

    experts: str = "num_experts"
    top: str = "num_experts_per_tok"
    groups: str = "n_group"
    kept: str = "topk_group"


_USUAL = GroupKeys()


@dataclass(frozen=True)
class Grouped:
    """Numbers of routed layers: experts, how many are shared or chosen, from how many groups."""

    count: int
    width: int
    top: int
    shared: int
    groups: ExpertGroups | None
    scale: float
    renormalise: bool


def expert_groups(
    config: ConfigReader,
    experts: int,
    top: int,
    groups: int,
    kept: int,
    *,
    keys: GroupKeys = _USUAL,
    score: Literal["max", "top2_sum"] = "top2_sum",
) -> ExpertGroups | None:
    """Judge the groups that experts are chosen from; None where all are in one.

    Refused are fewer groups or experts than are to be chosen, and groups with too few experts for
    the two best scores that rank them.
    """
    if top > experts:
        config.refuse(keys.top, f"is {top}, of {experts} experts", keys.experts)
    if groups == 1:
        return None
    least = 2 if score == "top2_sum" else 1
    if experts % groups or experts < least * groups:
        config.refuse(
            keys.groups,
            f"is {groups}, but {experts} experts do not make so many equal groups of at least "
            f"{least}",
            keys.experts,
        )
    if kept > groups:
        config.refuse(keys.kept, f"is {kept}, of {groups} groups", keys.groups)
    within = experts // groups * kept
    if top > within:
        config.refuse(
            keys.top,
            f"is {top}, of {within} experts in the {kept} groups kept",
            *(keys.experts, keys.groups, keys.kept),
        )
    return ExpertGroups(groups, kept, score)


def grouped_ffn(
    b: Builder,
    layer: int,
    hidden: int,
    n: Grouped,
    activation: Activation,
    *,
    module: str = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> RoutedFfn:
    """Describe a routed layer; the weights are sigmoids, the correction is left out of them.

    Parameters
    ----------
    module : str
        The layer's part that holds the experts.
    names : (str, str, str)
        Gate, up and down of one expert.

    Raises
    ------
    CompileError
        If a tensor is missing or has another shape.
    """
    shared = None
    if n.shared:
        ffn = shared_ffn(b, layer, hidden, n.shared * n.width, activation)
        shared = SharedExperts(ffn)
    place = f"model.layers.{layer}.{module}"
    experts = Experts(layer, f"{place}.experts", n.count, hidden, n.width, names)
    return RoutedFfn(
        routed.router(
            b,
            layer,
            hidden,
            n.count,
            score="sigmoid",
            top=n.top,
            renormalise=n.renormalise,
            renormalise_eps=LEAST_SUM if n.renormalise else 0.0,
            correction=f"{place}.gate.e_score_correction_bias",
            groups=n.groups,
            scale=n.scale,
        ),
        gated_experts(b, experts, activation),
        shared,
    )
