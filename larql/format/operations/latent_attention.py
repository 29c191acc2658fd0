"""Causal softmax attention whose keys and values are made of one latent row for each position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from larql.format.operations.contract import Defect, OperandContract, Site, at_least_1
from larql.format.operations.linear import Linear, Norm
from larql.format.operations.rope import Rope
from larql.format.operations.states import LatentRows, StateSpec

__all__ = ["LatentAttention"]


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1).

    A position leaves a latent ``c = latent_norm(latent x)`` and a rotated key
    ``r = rope(k_rope x)`` that all heads share. Head h has the key ``[k_up_h c | r]``, the value
    ``v_up_h c`` and the query ``[q_nope_h y | rope(q_rope_h y)]`` with ``y = q_norm(q_down x)``, or
    ``y = x`` without ``q_down``.

    Attributes
    ----------
    heads : int
    nope_dim, rope_dim, value_dim, latent_dim : int
        Widths of a head's unrotated and rotated key, of its value, and of a latent.
    scale : float
        Factor of the query-key products.
    q_nope, q_rope : Linear
        Rows are heads in order.
    q_down : Linear or None
    q_norm : Norm or None
        Only with ``q_down``.
    latent, k_rope : Linear
    latent_norm : Norm or None
    k_up, v_up : Linear
        From a latent; rows are heads in order; without bias.
    k_up_rows : {"latent"} or None
        ``latent``: each head's matrix in ``k_up`` is turned, so that it has ``latent_dim`` rows of
        ``nope_dim``, which carry a query over to a latent.
    o : Linear
    rope : Rope or None
        None: the rotated parts are used as they are.
    """

    op: ClassVar[str] = "latent_attention"
    site: ClassVar[Site] = "attention"
    # Seen as attention over latent rows, which all heads share.
    kv_heads: ClassVar[int] = 1
    window: ClassVar[int | None] = None
    softcap: ClassVar[float | None] = None
    sinks: ClassVar[str | None] = None

    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    latent_dim: int
    scale: float
    q_down: Linear | None = None
    q_norm: Norm | None = None
    q_nope: Linear
    q_rope: Linear
    latent: Linear
    latent_norm: Norm | None = None
    k_rope: Linear
    k_up: Linear
    v_up: Linear
    o: Linear
    rope: Rope | None = None
    k_up_rows: Literal["latent"] | None = None

    @property
    def key_dim(self) -> int:
        """Width of a latent row, and of a query that is carried over to such rows."""
        return self.latent_dim + self.rope_dim

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        if self.q_down is not None:
            yield from self.q_down.contracts(layer, "attention.q_down")
        if self.q_norm is not None:
            yield from self.q_norm.contracts(layer, "attention.q_norm")
        yield from self.q_nope.contracts(layer, "attention.q_nope")
        yield from self.q_rope.contracts(layer, "attention.q_rope")
        yield from self.latent.contracts(layer, "attention.latent")
        yield from self.k_rope.contracts(layer, "attention.k_rope")
        if self.latent_norm is not None:
            yield from self.latent_norm.contracts(layer, "attention.latent_norm")
        if self.rope is not None:
            yield from self.rope.contracts(layer, "attention.rope")
        yield from self.k_up.contracts(layer, "attention.k_up")
        yield from self.v_up.contracts(layer, "attention.v_up")
        yield from self.o.contracts(layer, "attention.o")

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers, for a carrier of ``hidden``."""
        yield from at_least_1(
            where,
            ("heads", self.heads),
            ("nope width", self.nope_dim),
            ("rope width", self.rope_dim),
            ("value width", self.value_dim),
            ("latent width", self.latent_dim),
        )
        queries = hidden
        if self.q_down is not None:
            queries = self.q_down.outputs
            yield from self.q_down.defects(queries, hidden, where, "q_down")
        if self.q_norm is not None:
            if self.q_down is None:
                yield Defect(where, "has a q_norm, but no q_down before it")
            yield from self.q_norm.defects(queries, f"{where} q")
        heads, latent = self.heads, self.latent_dim
        yield from self.q_nope.defects(heads * self.nope_dim, queries, where, "q_nope")
        yield from self.q_rope.defects(heads * self.rope_dim, queries, where, "q_rope")
        yield from self.latent.defects(latent, hidden, where, "latent")
        yield from self.k_rope.defects(self.rope_dim, hidden, where, "k_rope")
        if self.latent_norm is not None:
            yield from self.latent_norm.defects(latent, f"{where} latent")
        keys = (self.nope_dim, latent) if self.k_up_rows is None else (latent, self.nope_dim)
        for name, linear, (rows, columns) in (
            ("k_up", self.k_up, keys),
            ("v_up", self.v_up, (self.value_dim, latent)),
        ):
            yield from linear.defects(heads * rows, columns, where, name)
            if linear.bias is not None:
                yield Defect(where, f"{name} has a bias, which latent attention does not add")
        yield from self.o.defects(hidden, heads * self.value_dim, where, "o")
        if self.rope is not None:
            yield from self.rope.defects(self.rope_dim, where)

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions as part of a layer."""
        return (LatentRows(layer=layer, latent_dim=self.latent_dim, rope_dim=self.rope_dim),)

    def words(self) -> str:
        """Return its judged numbers in a few words."""
        down = "" if self.q_down is None else f", queries from {self.q_down.outputs}"
        rope = "no rope" if self.rope is None else self.rope.words()
        return (
            f"{self.heads} heads × {self.nope_dim} + {self.rope_dim}, values {self.value_dim}, "
            f"latent {self.latent_dim}{down}, scale {self.scale:.9g}, {rope}"
        )

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        rope = "no rope" if self.rope is None else f"rope θ {self.rope.theta:g}"
        return f"latent {self.latent_dim} + {self.rope_dim}, {self.heads} heads, {rope}"
