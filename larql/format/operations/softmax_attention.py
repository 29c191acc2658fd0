"""Causal softmax attention over keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from larql.format.operations.contract import Defect, OperandContract, Site, above_0, at_least_1
from larql.format.operations.convolution import Convolution
from larql.format.operations.distance import DistanceBias, PositionScale
from larql.format.operations.linear import Linear, Norm
from larql.format.operations.rope import Rope
from larql.format.operations.states import KvRows, StateSpec

__all__ = ["SoftmaxAttention"]


@dataclass(frozen=True, kw_only=True)
class SoftmaxAttention:
    """Causal softmax attention with grouped heads.

    Attributes
    ----------
    heads, kv_heads : int
        Query heads, and key/value heads that they share in equal groups.
    key_dim, value_dim : int
        Width of one head's queries and keys, and of its values.
    scale : float
        Factor of the query-key products.
    window : int or None
        A query at position q sees keys ``q - window < k <= q``; None: all ``k <= q``.
    softcap : float or None
        Scores become ``softcap * tanh(score / softcap)`` before the mask.
    q, o : Linear
        Projections; rows of q are heads in order.
    k, v : Linear or None
        Projections likewise. Without ``v`` the values are what ``k`` gives, before norm and rope.
        Both are None where keys and values are shared.
    shared : int or None
        The earlier layer whose keys and values this one attends to; it keeps none of its own.
    q_norm, k_norm : Norm or None
        Before rope; of each head where the norm is as wide as a head, else of the whole
        projection.
    v_norm : Norm or None
        Of each head's values.
    clip : float or None
        Queries, keys and values are cut to ``-clip .. clip`` after their norms, before rope.
    rope : Rope or None
        Rotary embedding of queries and keys; None: no positions.
    sinks : str or None
        Operand of shape ``[heads]``: a logit for each head, neither scaled nor capped, that joins
        the softmax and brings no value.
    gate : Linear or None
        Projection of the same input, as wide as all heads' values, neither normed nor rotated;
        the mixed values are multiplied by its sigmoid before ``o``.
    k_conv, v_conv : Convolution or None
        Of the projections to keys and values, before all else.
    distance : DistanceBias or None
        Added to the scaled products, before the softcap.
    position_scale : PositionScale or None
        Factor of the queries, after rope, and of the distance bias.
    """

    op: ClassVar[str] = "softmax_attention"
    site: ClassVar[Site] = "attention"

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    q: Linear
    k: Linear | None = None
    v: Linear | None = None
    o: Linear
    window: int | None = None
    softcap: float | None = None
    shared: int | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    clip: float | None = None
    rope: Rope | None = None
    sinks: str | None = None
    gate: Linear | None = None
    k_conv: Convolution | None = None
    v_conv: Convolution | None = None
    distance: DistanceBias | None = None
    position_scale: PositionScale | None = None

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        yield from self.q.contracts(layer, "attention.q")
        for part, linear in (("k", self.k), ("v", self.v)):
            if linear is not None:
                yield from linear.contracts(layer, f"attention.{part}")
        for part, conv in (("k", self.k_conv), ("v", self.v_conv)):
            if conv is not None:
                yield from conv.contracts(layer, f"attention.{part}_conv")
        norms = (("q", self.q_norm), ("k", self.k_norm), ("v", self.v_norm))
        for part, norm in norms:
            if norm is not None:
                yield from norm.contracts(layer, f"attention.{part}_norm")
        if self.rope is not None:
            yield from self.rope.contracts(layer, "attention.rope")
        if self.distance is not None:
            yield from self.distance.contracts(layer)
        if self.sinks is not None:
            yield OperandContract(self.sinks, (self.heads,), layer, "attention.sinks")
        if self.gate is not None:
            yield from self.gate.contracts(layer, "attention.gate")
        yield from self.o.contracts(layer, "attention.o")

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers, for a carrier of ``hidden``."""
        yield from at_least_1(
            where,
            ("heads", self.heads),
            ("kv heads", self.kv_heads),
            ("key width", self.key_dim),
            ("value width", self.value_dim),
            ("window", self.window),
        )
        yield from above_0(where, ("softcap", self.softcap), ("clip", self.clip))
        if self.kv_heads and self.heads % self.kv_heads:
            yield Defect(where, f"{self.heads} heads cannot share {self.kv_heads} kv heads equally")
        yield from self.q.defects(self.heads * self.key_dim, hidden, where, "q")
        yield from self._projection_defects(hidden, where)
        yield from self.o.defects(hidden, self.heads * self.value_dim, where, "o")
        for norm, heads in ((self.q_norm, self.heads), (self.k_norm, self.kv_heads)):
            if norm is not None:
                whole = norm.width == heads * self.key_dim
                yield from norm.defects(norm.width if whole else self.key_dim, f"{where} q/k")
        if self.v_norm is not None:
            yield from self.v_norm.defects(self.value_dim, f"{where} v")
        if self.rope is not None:
            yield from self.rope.defects(self.key_dim, where)
        if self.distance is not None:
            yield from self.distance.defects(self.heads, hidden, where)
        if self.position_scale is not None:
            yield from self.position_scale.defects(where)
        if self.gate is not None:
            yield from self.gate.defects(self.heads * self.value_dim, hidden, where, "gate")

    def _projection_defects(self, hidden: int, where: str) -> Iterator[Defect]:
        if self.shared is not None:
            own = (self.k, self.v, self.k_norm, self.v_norm, self.k_conv, self.v_conv)
            if any(part is not None for part in own):
                yield Defect(
                    where,
                    f"shares the keys and values of layer {self.shared}, but has a projection, "
                    f"norm or convolution of its own for them",
                )
            return
        if self.k is None:
            yield Defect(where, "has no k, and shares the keys of no layer")
            return
        keys, values = self.kv_heads * self.key_dim, self.kv_heads * self.value_dim
        yield from self.k.defects(keys, hidden, where, "k")
        if self.k_conv is not None:
            yield from self.k_conv.defects(keys, where, "k convolution")
        if self.v_conv is not None:
            yield from self.v_conv.defects(values, where, "v convolution")
            if self.v is None:
                yield Defect(where, "convolves values that it has no projection for")
        if self.v is not None:
            yield from self.v.defects(values, hidden, where, "v")
        elif self.value_dim != self.key_dim:
            yield Defect(
                where, f"values are keys, but are {self.value_dim} wide and not {self.key_dim}"
            )

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions as part of a layer."""
        if self.shared is not None:
            return ()
        convs = (self.k_conv, self.v_conv)
        kept = (conv.state(layer, self.site) for conv in convs if conv is not None)
        return (self.rows(layer), *kept)

    def rows(self, layer: int) -> KvRows:
        """Return the keys and values that it attends to, kept by ``layer``."""
        return KvRows(
            layer=layer,
            heads=self.kv_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            span="full" if self.window is None else "window",
            window=self.window,
        )

    def words(self) -> str:
        """Return its judged numbers in a few words."""
        parts = [
            f"{self.heads} heads / {self.kv_heads} kv × {self.key_dim}",
            f"scale {self.scale:.9g}",
            "full" if self.window is None else f"window {self.window}",
            "no rope" if self.rope is None else self.rope.words(),
        ]
        if self.q_norm is not None or self.k_norm is not None:
            parts.append("q/k norm")
        if self.v_norm is not None:
            parts.append("v norm")
        if self.clip is not None:
            parts.append(f"clip {self.clip:.9g}")
        if self.softcap is not None:
            parts.append(f"softcap {self.softcap:.9g}")
        if self.shared is not None:
            parts.append(f"keys and values of layer {self.shared}")
        elif self.v is None:
            parts.append("values are raw keys")
        if self.sinks is not None:
            parts.append("sinks")
        if self.gate is not None:
            parts.append("gated output")
        for part, conv in (("k", self.k_conv), ("v", self.v_conv)):
            if conv is not None:
                parts.append(f"{part} convolution {conv.taps}")
        if self.distance is not None:
            parts.append(f"{self.distance.count} profiles of {self.distance.extent} distances")
        if self.position_scale is not None:
            parts.append(
                f"scaled from position {self.position_scale.floor} by "
                f"{self.position_scale.rate:.9g} ln"
            )
        return ", ".join(parts)

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        span = "full" if self.window is None else f"window {self.window}"
        rope = "no rope" if self.rope is None else f"rope θ {self.rope.theta:g}"
        shared = "" if self.shared is None else f", kv of layer {self.shared}"
        return f"softmax {self.heads}/{self.kv_heads} × {self.key_dim}, {span}, {rope}{shared}"
