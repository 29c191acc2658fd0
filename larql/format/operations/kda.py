"""Kimi delta attention: the delta rule with a decay for each key channel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from larql.format.operations.contract import Defect, OperandContract, Site, at_least_1
from larql.format.operations.convolution import Convolution
from larql.format.operations.dense_ffn import Activation
from larql.format.operations.linear import Linear, Norm
from larql.format.operations.states import Recurrent, StateSpec

__all__ = ["Kda"]


@dataclass(frozen=True)
class Kda:
    """Linear attention by the delta rule whose state forgets by a factor for each key channel.

    As :class:`~larql.format.operations.gated_delta.GatedDelta` with as many key as value heads,
    where row i of a head's state decays by
    ``exp(-exp(decay_rate) * softplus(decay_up(decay_down x) + decay_bias))[i]``, and the gate is
    ``gate_up(gate_down x)`` (Kimi Team, "Kimi Linear", 2025).

    Attributes
    ----------
    heads, key_dim, value_dim : int
    scale, unit_eps : float
    q, k, v : Linear
        Rows are heads in order.
    beta : Linear
        One row for each head.
    decay_down, decay_up : Linear
        To the low rank and from there to ``heads * key_dim``.
    gate_down, gate_up : Linear
        To the low rank and from there to ``heads * value_dim``.
    q_conv, k_conv, v_conv : Convolution
    decay_rate : str
        Operand of shape ``[heads]``.
    decay_bias : str
        Operand of shape ``[heads * key_dim]``.
    rates : {"negated"} or None
        ``negated``: ``decay_rate`` holds ``-exp`` of what the formula has.
    norm : Norm
        Of width ``value_dim``.
    gate_activation : Activation
    o : Linear
    """

    op: ClassVar[str] = "kda"
    site: ClassVar[Site] = "attention"

    heads: int
    key_dim: int
    value_dim: int
    scale: float
    unit_eps: float
    q: Linear
    k: Linear
    v: Linear
    beta: Linear
    decay_down: Linear
    decay_up: Linear
    gate_down: Linear
    gate_up: Linear
    q_conv: Convolution
    k_conv: Convolution
    v_conv: Convolution
    decay_rate: str
    decay_bias: str
    norm: Norm
    gate_activation: Activation
    o: Linear
    rates: Literal["negated"] | None = None

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        yield from self.q.contracts(layer, "kda.q")
        yield from self.k.contracts(layer, "kda.k")
        yield from self.v.contracts(layer, "kda.v")
        yield from self.beta.contracts(layer, "kda.beta")
        yield from self.decay_down.contracts(layer, "kda.decay_down")
        yield from self.decay_up.contracts(layer, "kda.decay_up")
        yield from self.gate_down.contracts(layer, "kda.gate_down")
        yield from self.gate_up.contracts(layer, "kda.gate_up")
        yield from self.q_conv.contracts(layer, "kda.q_conv")
        yield from self.k_conv.contracts(layer, "kda.k_conv")
        yield from self.v_conv.contracts(layer, "kda.v_conv")
        yield OperandContract(self.decay_rate, (self.heads,), layer, "kda.decay_rate")
        channels = (self.heads * self.key_dim,)
        yield OperandContract(self.decay_bias, channels, layer, "kda.decay_bias")
        yield from self.norm.contracts(layer, "kda.norm")
        yield from self.o.contracts(layer, "kda.o")

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers, for a carrier of ``hidden``."""
        yield from at_least_1(
            where,
            ("heads", self.heads),
            ("key width", self.key_dim),
            ("value width", self.value_dim),
        )
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        yield from self.q.defects(keys, hidden, where, "q")
        yield from self.k.defects(keys, hidden, where, "k")
        yield from self.v.defects(values, hidden, where, "v")
        yield from self.beta.defects(self.heads, hidden, where, "beta")
        for down, up, outputs, what in (
            (self.decay_down, self.decay_up, keys, "decay"),
            (self.gate_down, self.gate_up, values, "gate"),
        ):
            yield from at_least_1(where, (f"{what} rank", down.outputs))
            yield from down.defects(down.outputs, hidden, where, f"{what} down")
            yield from up.defects(outputs, down.outputs, where, f"{what} up")
        yield from self.q_conv.defects(keys, where, "q convolution")
        yield from self.k_conv.defects(keys, where, "k convolution")
        yield from self.v_conv.defects(values, where, "v convolution")
        yield from self.norm.defects(self.value_dim, where)
        yield from self.o.defects(hidden, values, where, "o")
        if self.unit_eps < 0:
            yield Defect(where, f"unit eps is {self.unit_eps}, expected 0 or more")

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions as part of a layer."""
        return (
            self.q_conv.state(layer, self.site),
            self.k_conv.state(layer, self.site),
            self.v_conv.state(layer, self.site),
            Recurrent(layer, self.heads, self.key_dim, self.value_dim),
        )

    def words(self) -> str:
        """Return its judged numbers in a few words."""
        return (
            f"kda, {self.heads} heads × {self.key_dim} → {self.value_dim}, scale "
            f"{self.scale:.9g}, convolution {self.q_conv.taps}, {self.gate_activation} gate"
        )

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        return f"kda {self.heads} × {self.key_dim}"
