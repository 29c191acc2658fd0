"""Causal softmax attention over keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from larql.format.operations.contract import Defect, OperandContract, Site, above_0, at_least_1
from larql.format.operations.linear import Linear, Norm
from larql.format.operations.rope import Rope
from larql.format.operations.states import KvRows, StateSpec

__all__ = ["SoftmaxAttention"]


@dataclass(frozen=True)
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
    q, k, v, o : Linear
        Projections; rows of q, k, v are heads in order.
    q_norm, k_norm : Norm or None
        Per-head norms, before rope.
    rope : Rope or None
        Rotary embedding of queries and keys; None: no positions.
    gate : Linear or None
        Projection of the same input, as wide as all heads' values, neither normed nor rotated;
        the mixed values are multiplied by its sigmoid before ``o``.
    """

    op: ClassVar[str] = "softmax_attention"
    site: ClassVar[Site] = "attention"

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    window: int | None = None
    softcap: float | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rope: Rope | None = None
    gate: Linear | None = None

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        yield from self.q.contracts(layer, "attention.q")
        yield from self.k.contracts(layer, "attention.k")
        yield from self.v.contracts(layer, "attention.v")
        if self.q_norm is not None:
            yield from self.q_norm.contracts(layer, "attention.q_norm")
        if self.k_norm is not None:
            yield from self.k_norm.contracts(layer, "attention.k_norm")
        if self.rope is not None:
            yield from self.rope.contracts(layer, "attention.rope")
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
        yield from above_0(where, ("softcap", self.softcap))
        yield from self.q.defects(self.heads * self.key_dim, hidden, where, "q")
        yield from self.k.defects(self.kv_heads * self.key_dim, hidden, where, "k")
        yield from self.v.defects(self.kv_heads * self.value_dim, hidden, where, "v")
        yield from self.o.defects(hidden, self.heads * self.value_dim, where, "o")
        if self.kv_heads and self.heads % self.kv_heads:
            yield Defect(where, f"{self.heads} heads cannot share {self.kv_heads} kv heads equally")
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                yield from norm.defects(self.key_dim, f"{where} q/k")
        if self.rope is not None:
            yield from self.rope.defects(self.key_dim, where)
        if self.gate is not None:
            yield from self.gate.defects(self.heads * self.value_dim, hidden, where, "gate")

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions as part of a layer."""
        return (
            KvRows(
                layer=layer,
                heads=self.kv_heads,
                key_dim=self.key_dim,
                value_dim=self.value_dim,
                span="full" if self.window is None else "window",
                window=self.window,
            ),
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
        if self.softcap is not None:
            parts.append(f"softcap {self.softcap:.9g}")
        if self.gate is not None:
            parts.append("gated output")
        return ", ".join(parts)

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        span = "full" if self.window is None else f"window {self.window}"
        rope = "no rope" if self.rope is None else f"rope θ {self.rope.theta:g}"
        return f"softmax {self.heads}/{self.kv_heads} × {self.key_dim}, {span}, {rope}"
