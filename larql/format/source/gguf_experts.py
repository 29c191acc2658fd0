"""Routed layers in GGUF files: one tensor for all experts' gates, one for up, one for down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from larql.format.graph import Mixer, RoutedFfn, SharedExperts
from larql.format.source import routed
from larql.format.source.builder import Builder
from larql.format.source.config import ConfigReader
from larql.format.source.decoder import Decoder
from larql.format.source.experts import Experts, fused_experts, packed_experts, shared_ffn
from larql.format.source.names import Naming

__all__ = ["GGUF_EXPERTS", "ExpertCounts", "GgufExperts", "expert_counts", "gguf_experts"]

_PARTS = {
    "ffn.router": "blk.{i}.ffn_gate_inp",
    "ffn.shared.gate": "blk.{i}.ffn_gate_shexp",
    "ffn.shared.up": "blk.{i}.ffn_up_shexp",
    "ffn.shared.down": "blk.{i}.ffn_down_shexp",
}
GGUF_EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
"""Gate, up and down of all experts of a layer."""
_FUSED = "ffn_gate_up_exps"
_SCORES = {1: "softmax", 2: "sigmoid"}


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
        Experts that every position passes through, side by side in one FFN.
    dense : int
        Leading layers that do not route.
    """

    counts: ExpertCounts
    score: Literal["softmax", "sigmoid"]
    renormalise: bool
    eps: float
    scale: float
    shared: int
    dense: int

    def ffn(self, b: Builder, i: int, decoder: Decoder) -> Mixer:
        """Describe the FFN of a layer, which routes where the file has a router for it."""
        router = b.naming.tensor("ffn.router", i, ".weight")
        if i < self.dense or (router not in b.tensors and f"blk.{i}.ffn_gate.weight" in b.tensors):
            return decoder.gated(b, i)
        n, hidden, activation = self.counts, decoder.basics.hidden, decoder.activation
        experts = Experts(i, f"blk.{i}", n.count, hidden, n.width, GGUF_EXPERTS)
        correction = f"blk.{i}.exp_probs_b.bias"
        shared = None
        if self.shared:
            width = self.shared * n.width
            shared = SharedExperts(shared_ffn(b, i, hidden, width, activation))
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
                scale=self.scale,
            ),
            fused_experts(b, experts, activation, _FUSED, GGUF_EXPERTS[2])
            if b.spelling("ffn_(gate|up)_exps", _FUSED) == _FUSED
            else packed_experts(b, experts, activation),
            shared,
        )


def expert_counts(b: Builder, width: int) -> ExpertCounts:
    """Read how many experts there are, without groups, and name the tensors of their layers.

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
    # Files that know no groups say 0, or 1.
    config.neutral("expert_group_count", 0, 1)
    config.neutral("expert_group_used_count", 0, 1)
    return ExpertCounts(count, top, config.count("expert_feed_forward_length", width))


def gguf_experts(
    b: Builder, width: int, *, renormalises: bool, score: int = 1, eps: float = 0.0
) -> GgufExperts:
    """Read the metadata of routed layers, and name their tensors.

    Parameters
    ----------
    b : Builder
    width : int
        Of an expert, where no key states it.
    renormalises : bool
        Whether weights are divided by their sum where no key says.
    score : int
        Number of the score function where no key has one.
    eps : float
    """
    config: ConfigReader = b.config
    counts = expert_counts(b, width)
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
        shared=config.count("expert_shared_count", 0, least=0),
        dense=config.count("leading_dense_block_count", 0, least=0),
    )
