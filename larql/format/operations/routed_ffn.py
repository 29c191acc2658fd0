"""The routed feed-forward operation: a router chooses experts, and their outputs are added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from larql.format.operations.contract import (
    Defect,
    OperandContract,
    Site,
    above_0,
    at_least_1,
    equal,
)
from larql.format.operations.dense_ffn import Activation, DenseFfn
from larql.format.operations.linear import Linear, Norm
from larql.format.operations.states import StateSpec

__all__ = ["ExpertBank", "ExpertGroups", "LatentSpace", "RoutedFfn", "Router", "SharedExperts"]


@dataclass(frozen=True)
class ExpertGroups:
    """Choose among the experts of the best groups only.

    Attributes
    ----------
    count : int
        Groups of neighbouring experts, equally large.
    kept : int
        Groups whose experts may be chosen: those of the highest score, then of the lowest number.
    score : {"max", "top2_sum"}
        A group's score: the highest of its experts' ranks, or the sum of the two highest.
    """

    count: int
    kept: int
    score: Literal["max", "top2_sum"]


@dataclass(frozen=True)
class Router:
    """How experts are chosen and weighted.

    With logits ``l = scores(x)`` and ``s`` the score function of all logits, experts are ranked by
    ``s + correction``, highest first and then by ascending number, and the first ``top`` are
    chosen. Weights are ``s`` of the chosen, without the correction; divided by their sum plus
    ``renormalise_eps`` where ``renormalise``; times ``scale``, times the expert's ``expert_scale``.
    A softmax over the logits of the chosen alone is a softmax over all that is renormalised.

    With ``sinks`` the last so many logits belong to shared experts, which are not ranked and always
    take part: the sum that weights are divided by is of the chosen and of them.

    Attributes
    ----------
    scores : Linear
        ``[experts + sinks, hidden]``, with the gate's bias if it has one.
    score : {"softmax", "sigmoid"}
    top : int
        Experts chosen for each position.
    renormalise : bool
    renormalise_eps : float
    groups : ExpertGroups or None
    correction : str or None
        Operand ``[experts]``, added for choosing only.
    scale : float
    expert_scale : str or None
        Operand ``[experts]``.
    norm : Norm or None
        Of what the router reads.
    factor : float
        The logits are multiplied by it, before all else.
    sinks : int or None
    global_scale : str or None
        Operand ``[1]``; the weights are multiplied by it too.
    """

    scores: Linear
    score: Literal["softmax", "sigmoid"]
    top: int
    renormalise: bool
    renormalise_eps: float = 0.0
    groups: ExpertGroups | None = None
    correction: str | None = None
    scale: float = 1.0
    expert_scale: str | None = None
    norm: Norm | None = None
    factor: float = 1.0
    sinks: int | None = None
    global_scale: str | None = None

    @property
    def experts(self) -> int:
        """Number of experts that are ranked."""
        return self.scores.outputs - (self.sinks or 0)

    @property
    def ranks_by_logits(self) -> bool:
        """Whether the logits rank in place of their softmax, which keeps their order."""
        sums = self.groups is not None and self.groups.score == "top2_sum"
        return self.score == "softmax" and self.correction is None and not sums

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        if self.norm is not None:
            yield from self.norm.contracts(layer, "ffn.router.norm")
        yield from self.scores.contracts(layer, "ffn.router")
        for name, use in ((self.correction, "correction"), (self.expert_scale, "expert_scale")):
            if name is not None:
                yield OperandContract(name, (self.experts,), layer, f"ffn.router.{use}")
        if self.global_scale is not None:
            yield OperandContract(self.global_scale, (1,), layer, "ffn.router.global_scale")

    def defects(self, experts: int, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers."""
        yield from self.scores.defects(experts + (self.sinks or 0), hidden, where, "router")
        yield from at_least_1(where, ("chosen experts", self.top), ("sinks", self.sinks))
        shares = self.score == "sigmoid" and self.renormalise and self.renormalise_eps == 0.0
        if self.sinks is not None and not shares:
            yield Defect(where, "sinks belong to sigmoids that are renormalised without an eps")
        yield from above_0(where, ("route scale", self.scale), ("logit factor", self.factor))
        if self.norm is not None:
            yield from self.norm.defects(hidden, f"{where} router")
        if self.renormalise_eps < 0:
            yield Defect(where, f"renormalise_eps is {self.renormalise_eps}, expected 0 or more")
        groups = self.groups
        if groups is None:
            if self.top > experts:
                yield Defect(where, f"chooses {self.top} of {experts} experts")
            return
        if groups.count < 1 or experts % groups.count or not 1 <= groups.kept <= groups.count:
            yield Defect(
                where,
                f"keeps {groups.kept} of {groups.count} groups of {experts} experts, expected "
                f"equal groups and at least one kept",
            )
            return
        size = experts // groups.count
        if self.top > groups.kept * size:
            yield Defect(where, f"chooses {self.top} of the {groups.kept * size} experts kept")
        if groups.score == "top2_sum" and size < 2:
            yield Defect(where, f"adds two scores of a group, but groups have {size} expert")

    def words(self) -> str:
        """Return its numbers in a few words."""
        parts: list[str] = [self.score]
        if self.renormalise:
            parts.append("renormalised")
        if self.groups is not None:
            parts.append(f"in {self.groups.kept} of {self.groups.count} groups")
        if self.correction is not None:
            parts.append("correction")
        if self.sinks is not None:
            parts.append("with the shared")
        if self.scale != 1.0:
            parts.append(f"scale {self.scale:.9g}")
        return " ".join(parts)


@dataclass(frozen=True)
class ExpertBank:
    """A population of gated feed-forward networks that store the same regions.

    An expert computes ``down(a(g) * (u + up_offset)) + down_bias`` with ``g`` and ``u`` its gate
    and up projections, their biases added; ``g`` is cut at ``limit`` from above, ``u`` at
    ``-limit`` and ``limit``; ``a`` is the activation, ``silu`` of ``slope``:
    ``g * sigmoid(slope * g)``.

    Attributes
    ----------
    programme : str
        Its name in the registry of programmes.
    experts, hidden, width : int
        Population, and widths of an expert's input and output and of what is between.
    activation : Activation
    gate, up : str or None
        Operands ``[experts, width, hidden]``.
    gate_up : str or None
        Operand ``[experts, 2 width, hidden]`` in place of both.
    fused_rows : {"contiguous_halves", "interleaved"} or None
        How gate and up lie in it: gate rows first, or in turn.
    down : str
        Operand ``[experts, hidden, width]``.
    gate_up_bias : str or None
        Operand ``[experts, 2 width]``, in the order of the fused rows.
    down_bias : str or None
        Operand ``[experts, hidden]``.
    limit : float or None
    slope, up_offset : float
    """

    programme: Literal["gated-mlp-v1", "gpt-oss-expert-v1", "latent-moe-v1"]
    experts: int
    hidden: int
    width: int
    activation: Activation
    down: str
    gate: str | None = None
    up: str | None = None
    gate_up: str | None = None
    fused_rows: Literal["contiguous_halves", "interleaved"] | None = None
    gate_up_bias: str | None = None
    down_bias: str | None = None
    limit: float | None = None
    slope: float = 1.0
    up_offset: float = 0.0

    def contracts(self, layer: int, top: int) -> Iterator[OperandContract]:
        """Yield its operands, of which a position reads ``top`` entries."""
        e, h, w = self.experts, self.hidden, self.width
        for name, shape, use in (
            (self.gate, (e, w, h), "gate"),
            (self.up, (e, w, h), "up"),
            (self.gate_up, (e, 2 * w, h), "gate_up"),
            (self.gate_up_bias, (e, 2 * w), "gate_up.bias"),
            (self.down, (e, h, w), "down"),
            (self.down_bias, (e, h), "down.bias"),
        ):
            if name is not None:
                yield OperandContract(name, shape, layer, f"ffn.experts.{use}", chosen=top)

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers."""
        yield from at_least_1(where, ("experts", self.experts), ("expert width", self.width))
        yield from equal(where, "expert input width", self.hidden, hidden)
        yield from above_0(where, ("limit", self.limit), ("slope", self.slope))
        separate = self.gate is not None and self.up is not None
        fused = self.gate_up is not None and self.fused_rows is not None
        if separate == fused or (fused and (self.gate or self.up)):
            yield Defect(where, "experts need gate and up, or both fused in a stated order")
        if self.gate_up_bias is not None and not fused:
            yield Defect(where, "experts have a bias of fused rows, but the rows are not fused")
        changed = self.limit is not None or (self.slope, self.up_offset) != (1.0, 0.0)
        if changed and self.activation != "silu":
            yield Defect(where, f"limit, slope and offset belong to silu, not {self.activation}")


@dataclass(frozen=True)
class SharedExperts:
    """What every position passes through beside its chosen experts.

    Attributes
    ----------
    ffn : DenseFfn
    gate : Linear or None
        ``[1, hidden]``; the output is multiplied by the sigmoid of it.
    norm, post_norm : Norm or None
        Of what they read, and of what they give.
    """

    ffn: DenseFfn
    gate: Linear | None = None
    norm: Norm | None = None
    post_norm: Norm | None = None


@dataclass(frozen=True)
class LatentSpace:
    """A narrower space that the chosen experts of a layer work in.

    Attributes
    ----------
    into : Linear
        ``[width, hidden]``, of what they read.
    back : Linear
        ``[hidden, width]``, of what they give in sum.
    """

    into: Linear
    back: Linear


@dataclass(frozen=True)
class RoutedFfn:
    """``sum_j weight_j expert_j(x) + shared(x)`` over the chosen experts ``j``.

    Terms are added in the order of the selection, the shared experts' last. ``norm`` is of what the
    chosen experts read, ``post_norm`` of what they give in sum; neither concerns the router or the
    shared experts, nor does ``latent``, which lies between the two. ``weighted`` are shared experts
    of which each has a sink of the router, and is multiplied by its weight.
    """

    op: ClassVar[str] = "routed_ffn"
    site: ClassVar[Site] = "ffn"

    router: Router
    bank: ExpertBank
    shared: SharedExperts | None = None
    reduction: Literal["weighted_sum"] = "weighted_sum"
    norm: Norm | None = None
    post_norm: Norm | None = None
    weighted: tuple[DenseFfn, ...] | None = None
    latent: LatentSpace | None = None

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        yield from self.router.contracts(layer)
        if self.norm is not None:
            yield from self.norm.contracts(layer, "ffn.experts.norm")
        if self.latent is not None:
            yield from self.latent.into.contracts(layer, "ffn.experts.latent_in")
        yield from self.bank.contracts(layer, self.router.top)
        if self.latent is not None:
            yield from self.latent.back.contracts(layer, "ffn.experts.latent_out")
        if self.post_norm is not None:
            yield from self.post_norm.contracts(layer, "ffn.experts.post_norm")
        if self.shared is not None:
            for norm, part in ((self.shared.norm, "norm"), (self.shared.post_norm, "post_norm")):
                if norm is not None:
                    yield from norm.contracts(layer, f"ffn.shared.{part}")
            for contract in self.shared.ffn.contracts(layer):
                use = contract.use.replace("ffn.", "ffn.shared.", 1)
                yield OperandContract(contract.name, contract.shape, layer, use)
            if self.shared.gate is not None:
                yield from self.shared.gate.contracts(layer, "ffn.shared.gate_of_all")
        for number, ffn in enumerate(self.weighted or ()):
            for contract in ffn.contracts(layer):
                use = contract.use.replace("ffn.", f"ffn.shared.{number}.", 1)
                yield OperandContract(contract.name, contract.shape, layer, use)

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers, for a carrier of ``hidden``."""
        yield from self.bank.defects(self.bank.hidden if self.latent else hidden, where)
        if self.latent is not None:
            width = self.bank.hidden
            yield from self.latent.into.defects(width, hidden, where, "latent input")
            yield from self.latent.back.defects(hidden, width, where, "latent output")
        if (self.bank.programme == "latent-moe-v1") != (self.latent is not None):
            yield Defect(where, f"programme {self.bank.programme} and transforms contradict")
        yield from self.router.defects(self.bank.experts, hidden, where)
        for number, ffn in enumerate(self.weighted or ()):
            yield from ffn.defects(hidden, f"{where} shared {number}")
        yield from equal(where, "weighted", len(self.weighted or ()), self.router.sinks or 0)
        norms = [self.norm, self.post_norm]
        if self.shared is not None:
            norms += [self.shared.norm, self.shared.post_norm]
            yield from self.shared.ffn.defects(hidden, f"{where} shared")
            if self.shared.gate is not None:
                yield from self.shared.gate.defects(1, hidden, where, "gate of the shared experts")
        for norm in norms:
            if norm is not None:
                yield from norm.defects(hidden, where)

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions: nothing."""
        return ()

    def words(self) -> str:
        """Return its judged numbers in a few words."""
        bank = self.bank
        parts = [
            f"{self.router.top} of {bank.experts} experts",
            f"{bank.activation}, {bank.width} wide",
            self.router.words(),
        ]
        if self.latent is not None:
            parts.append(f"latent {bank.hidden}")
        if bank.limit is not None:
            parts.append(f"limit {bank.limit:.9g}")
        if self.shared is not None:
            gate = "gated " if self.shared.gate is not None else ""
            parts.append(f"{gate}shared {self.shared.ffn.up.outputs} wide")
        if self.weighted:
            parts.append(f"{len(self.weighted)} shared {self.weighted[0].up.outputs} wide")
        return ", ".join(parts)

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        shared = "" if self.shared is None else f" + shared {self.shared.ffn.up.outputs}"
        if self.weighted:
            shared += f" + {len(self.weighted)} × {self.weighted[0].up.outputs}"
        bank = self.bank
        return f"{self.router.top} of {bank.experts} {bank.activation} {bank.width}{shared}"
