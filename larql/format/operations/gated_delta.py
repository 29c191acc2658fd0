"""The gated delta rule: linear attention with one decay for each head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from larql.format.operations.contract import Defect, OperandContract, Site, at_least_1
from larql.format.operations.convolution import Convolution
from larql.format.operations.dense_ffn import Activation
from larql.format.operations.linear import Linear, Norm
from larql.format.operations.states import Recurrent, StateSpec

__all__ = ["GatedDelta"]


@dataclass(frozen=True)
class GatedDelta:
    """Linear attention whose state forgets by a factor for each head and learns by the delta rule.

    With q, k, v projected and convolved, k and q divided by ``sqrt(sum(x^2) + unit_eps)`` for each
    head and q times ``scale``, a step of one value head is::

        S <- S * exp(-exp(decay_rate) * softplus(decay x + decay_bias))
        S <- S + k (x) sigmoid(beta x) * (v - k.S)
        o  = q.S

    and the output ``o_proj(norm(o) * gate_activation(gate x))``, the norm shared by all heads.
    Key head h serves value heads ``h r .. h r + r``, or where these are ``tiled`` the heads ``h``,
    ``h + key_heads``, … (Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024).

    Attributes
    ----------
    key_heads, value_heads : int
        Heads of q and k, and heads of v that share them in equal groups.
    key_dim, value_dim : int
    scale : float
    unit_eps : float
    q, k, v, gate : Linear
        Rows are heads in order.
    beta, decay : Linear
        One row for each value head.
    q_conv, k_conv, v_conv : Convolution
    decay_rate, decay_bias : str
        Operands of shape ``[value_heads]``.
    rates : {"negated"} or None
        ``negated``: ``decay_rate`` holds ``-exp`` of what the formula has.
    value_order : {"tiled"} or None
        Which value heads share a key head; None: neighbours.
    norm : Norm
        Of width ``value_dim``.
    gate_activation : Activation
    o : Linear
    """

    op: ClassVar[str] = "gated_delta"
    site: ClassVar[Site] = "attention"

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    scale: float
    unit_eps: float
    q: Linear
    k: Linear
    v: Linear
    gate: Linear
    beta: Linear
    decay: Linear
    q_conv: Convolution
    k_conv: Convolution
    v_conv: Convolution
    decay_rate: str
    decay_bias: str
    norm: Norm
    gate_activation: Activation
    o: Linear
    rates: Literal["negated"] | None = None
    value_order: Literal["tiled"] | None = None

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        yield from self.q.contracts(layer, "delta.q")
        yield from self.k.contracts(layer, "delta.k")
        yield from self.v.contracts(layer, "delta.v")
        yield from self.gate.contracts(layer, "delta.gate")
        yield from self.beta.contracts(layer, "delta.beta")
        yield from self.decay.contracts(layer, "delta.decay")
        yield from self.q_conv.contracts(layer, "delta.q_conv")
        yield from self.k_conv.contracts(layer, "delta.k_conv")
        yield from self.v_conv.contracts(layer, "delta.v_conv")
        heads = (self.value_heads,)
        yield OperandContract(self.decay_rate, heads, layer, "delta.decay_rate")
        yield OperandContract(self.decay_bias, heads, layer, "delta.decay_bias")
        yield from self.norm.contracts(layer, "delta.norm")
        yield from self.o.contracts(layer, "delta.o")

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers, for a carrier of ``hidden``."""
        yield from at_least_1(
            where,
            ("key heads", self.key_heads),
            ("value heads", self.value_heads),
            ("key width", self.key_dim),
            ("value width", self.value_dim),
        )
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        yield from self.q.defects(keys, hidden, where, "q")
        yield from self.k.defects(keys, hidden, where, "k")
        yield from self.v.defects(values, hidden, where, "v")
        yield from self.gate.defects(values, hidden, where, "gate")
        yield from self.beta.defects(self.value_heads, hidden, where, "beta")
        yield from self.decay.defects(self.value_heads, hidden, where, "decay")
        yield from self.q_conv.defects(keys, where, "q convolution")
        yield from self.k_conv.defects(keys, where, "k convolution")
        yield from self.v_conv.defects(values, where, "v convolution")
        yield from self.norm.defects(self.value_dim, where)
        yield from self.o.defects(hidden, values, where, "o")
        if self.unit_eps < 0:
            yield Defect(where, f"unit eps is {self.unit_eps}, expected 0 or more")
        if self.key_heads and self.value_heads % self.key_heads:
            yield Defect(
                where,
                f"{self.value_heads} value heads cannot share {self.key_heads} key heads equally",
            )

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions as part of a layer."""
        return (
            self.q_conv.state(layer, self.site),
            self.k_conv.state(layer, self.site),
            self.v_conv.state(layer, self.site),
            Recurrent(layer, self.value_heads, self.key_dim, self.value_dim),
        )

    def words(self) -> str:
        """Return its judged numbers in a few words."""
        return (
            f"gated delta, {self.value_heads} heads / {self.key_heads} key × {self.key_dim} "
            f"→ {self.value_dim}, scale {self.scale:.9g}, convolution {self.q_conv.taps}, "
            f"{self.gate_activation} gate{', tiled' if self.value_order else ''}"
        )

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        return f"gated delta {self.value_heads}/{self.key_heads} × {self.key_dim}"
