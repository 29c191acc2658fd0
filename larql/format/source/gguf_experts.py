"""Routed layers in GGUF files: one tensor for all experts' gates, one for up, one for down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from larql.format.graph import (
    Activation,
    ExpertBank,
    ExpertGroups,
    Mixer,
    RoutedFfn,
    SharedExperts,
)
from larql.format.source import routed
from larql.format.source.builder import Builder
from larql.format.source.config import ConfigReader
from larql.format.source.decoder import Decoder
from larql.format.source.experts import Experts, fused_experts, packed_experts, shared_ffn
from larql.format.source.grouped import GroupKeys, expert_groups
from larql.format.source.names import Naming

__all__ = [
    "GGUF_EXPERTS",
    "ExpertCounts",
    "GgufExperts",
    "expert_counts",
    "gguf_bank",
    "gguf_experts",
    "no_groups",
]

_PARTS = {
    "ffn.router": "blk.{i}.ffn_gate_inp",
    "ffn.shared.gate": "blk.{i}.ffn_gate_shexp",
    "ffn.shared.up": "blk.{i}.ffn_up_shexp",
    "ffn.shared.down": "blk.{i}.ffn_down_shexp",
    "ffn.shared.gate_of_all": "blk.{i}.ffn_gate_inp_shexp",
}
GGUF_EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
"""Gate, up and down of all experts of a layer."""
_FUSED = "ffn_gate_up_exps"
_SCORES = {1: "softmax", 2: "sigmoid"}
_KEYS = GroupKeys(
    "expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count"
)
_CORRECTION = "blk.{i}.exp_probs_b.bias"


@dataclass(frozen=True)
class ExpertCounts:
    """Experts of a layer, how many a position passes through, and how wide they are."""

    count: int
    top: int
    width: int


@dataclass(frozen=True)
class GgufExperts:
    """Numbers of routed layers, as a file's metadata states them.

    Attributes
    ----------
    counts : ExpertCounts
    score : {"softmax", "sigmoid"}
    renormalise : bool
    eps : float
        Added to the sum that weights are divided by.
    scale : float
    shared : int
        Width of what every position passes through; 0: nothing.
    gated : bool
        Whether its output is multiplied by a gate of its own.
    dense : int
        Leading layers that do not route.
    groups : ExpertGroups or None
    """

    counts: ExpertCounts
    score: Literal["softmax", "sigmoid"]
    renormalise: bool
    eps: float
    scale: float
    shared: int
    gated: bool
    dense: int
    groups: ExpertGroups | None

    def ffn(self, b: Builder, i: int, decoder: Decoder) -> Mixer:
        """Describe the FFN of a decoder's layer, which routes or does not."""
        if not self.routes(b, i):
            return decoder.gated(b, i)
        return self.routed_ffn(b, i, decoder.basics.hidden, decoder.activation)

    def routes(self, b: Builder, i: int) -> bool:
        """Return whether a layer routes: it has a router, and is none of the leading dense ones."""
        router = b.naming.tensor("ffn.router", i, ".weight")
        dense = router not in b.tensors and f"blk.{i}.ffn_gate.weight" in b.tensors
        return i >= self.dense and not dense

    def routed_ffn(self, b: Builder, i: int, hidden: int, activation: Activation) -> RoutedFfn:
        """Describe the FFN of a layer that routes.

        Raises
        ------
        CompileError
            If a tensor is missing or has another shape.
        """
        n = self.counts
        correction = _CORRECTION.format(i=i)
        shared = None
        if self.shared:
            gate = None
            if self.gated:
                gate = b.linear("ffn.shared.gate_of_all", i, 1, hidden, bias=False)
            shared = SharedExperts(shared_ffn(b, i, hidden, self.shared, activation), gate)
        return RoutedFfn(
            routed.router(
                b,
                i,
                hidden,
                n.count,
                score=self.score,
                top=n.top,
                renormalise=self.renormalise,
                renormalise_eps=self.eps if self.renormalise else 0.0,
                correction=correction
                if b.optional.holds("ffn.router.correction", i, correction)
                else None,
                groups=self.groups,
                scale=self.scale,
            ),
            gguf_bank(b, i, hidden, n, activation),
            shared,
        )


def gguf_bank(
    b: Builder, i: int, hidden: int, n: ExpertCounts, activation: Activation
) -> ExpertBank:
    """Describe a layer's experts, whose gates and ups are one tensor or two.

    Raises
    ------
    CompileError
        If a tensor is missing or has another shape.
    """
    experts = Experts(i, f"blk.{i}", n.count, hidden, n.width, GGUF_EXPERTS)
    if f"blk.{i}.{_FUSED}.weight" in b.tensors:
        return fused_experts(b, experts, activation, _FUSED, GGUF_EXPERTS[2])
    return packed_experts(b, experts, activation)


def expert_counts(b: Builder, width: int) -> ExpertCounts:
    """Read how many experts there are, and name the tensors of their layers.

    Parameters
    ----------
    b : Builder
    width : int
        Of an expert, where no key states it.
    """
    config: ConfigReader = b.config
    b.naming = Naming({**b.naming.parts, **_PARTS})
    count, top = config.count("expert_count"), config.count("expert_used_count")
    if top > count:
        config.refuse("expert_used_count", f"is {top}, of {count} experts", "expert_count")
    return ExpertCounts(count, top, config.count("expert_feed_forward_length", width))


def no_groups(config: ConfigReader) -> None:
    """Refuse groups of experts; files that know none say 0, or 1."""
    config.neutral("expert_group_count", 0, 1)
    config.neutral("expert_group_used_count", 0, 1)


def _groups(config: ConfigReader, n: ExpertCounts, corrected: bool) -> ExpertGroups | None:
    """Judge the groups that experts are chosen from.

    A group's rank is the sum of its two best experts' where corrections take part in it, as in
    DeepSeek V3; before, it was the best one's.
    """
    groups = config.count("expert_group_count", 1, least=0)
    if groups <= 1:
        config.neutral("expert_group_used_count", 0, 1)
        return None
    kept = config.count("expert_group_used_count")
    score: Literal["max", "top2_sum"] = "top2_sum" if corrected else "max"
    return expert_groups(config, n.count, n.top, groups, kept, keys=_KEYS, score=score)


def gguf_experts(
    b: Builder,
    width: int,
    *,
    renormalises: bool,
    score: int | None = 1,
    eps: float = 0.0,
    grouped: bool = False,
) -> GgufExperts:
    """Read the metadata of routed layers, and name their tensors.

    Parameters
    ----------
    b : Builder
    width : int
        Of an expert, where no key states it.
    renormalises : bool
        Whether weights are divided by their sum where no key says.
    score : int or None
        Number of the score function where no key has one; None: that of sigmoids where the routers
        have corrections, which belong to these, else that of the softmax.
    eps : float
    grouped : bool
        Whether experts may be chosen by groups.
    """
    config: ConfigReader = b.config
    counts = expert_counts(b, width)
    corrected = any(_CORRECTION.format(i=i) in b.tensors for i in range(len(b.tensors)))
    groups = _groups(config, counts, corrected) if grouped else None
    if not grouped:
        no_groups(config)
    if score is None:
        score = 2 if corrected else 1
    number = config.count("expert_gating_func", score, least=0) or score
    if number not in _SCORES:
        known = ", ".join(f"{n}: {name}" for n, name in _SCORES.items())
        config.refuse(
            "expert_gating_func", f"is {number}, which this build does not know ({known})"
        )
    unscaled = config.states("expert_weights_scale", 0.0)
    return GgufExperts(
        counts=counts,
        score="softmax" if number == 1 else "sigmoid",
        renormalise=config.flag("expert_weights_norm", renormalises),
        eps=eps,
        scale=1.0 if unscaled else config.number("expert_weights_scale", 1.0),
        shared=_shared_width(b, counts),
        gated=b.naming.tensor("ffn.shared.gate_of_all", 0, ".weight") in b.tensors,
        dense=config.count("leading_dense_block_count", 0, least=0),
        groups=groups,
    )


def _shared_width(b: Builder, n: ExpertCounts) -> int:
    """Take the width of shared experts, which is stated, or so many experts side by side."""
    config = b.config
    count = config.count("expert_shared_count", 0, least=0)
    width = config.count("expert_shared_feed_forward_length", count * n.width, least=0)
    if count and width != count * n.width:
        config.contradiction(
            "expert_shared_feed_forward_length", "expert_shared_count", width, count
        )
    return width
