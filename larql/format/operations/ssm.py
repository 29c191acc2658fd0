"""The state-space operation of Mamba-2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from larql.format.operations.contract import Defect, OperandContract, Site, at_least_1
from larql.format.operations.convolution import Convolution
from larql.format.operations.dense_ffn import Activation
from larql.format.operations.linear import Linear, Norm
from larql.format.operations.states import Recurrent, StateSpec

__all__ = ["Ssm"]


@dataclass(frozen=True)
class Ssm:
    """A selective state space with one decay for each head (Dao and Gu, "Transformers are SSMs").

    With x, B and C projected and convolved and
    ``dt = clip(softplus(step x + step_bias), step_least, step_most)``, a step of one head is::

        S <- S * exp(-exp(decay_rate) * dt) + B (x) (dt * x)
        y  = C.S + skip * x

    and the output ``o_proj(norm(y * gate_activation(gate x)))``, the norm taken over each of
    ``groups`` equal runs of y by itself. Group g's B and C serve heads ``g r .. g r + r``.

    Attributes
    ----------
    heads, head_dim : int
        Heads of x and their width.
    groups, state_dim : int
        Groups of B and C and their width.
    gate, x, b, c, step : Linear
        Rows of gate and x are heads in order, of b and c groups; step has one for each head.
    x_conv, b_conv, c_conv : Convolution
    decay_rate, step_bias, skip : str
        Operands of shape ``[heads]``.
    norm : Norm
        Its weight has ``heads * head_dim`` elements.
    gate_activation : Activation
    o : Linear
    step_least : float
        Least step.
    step_most : float or None
        Largest step; None: there is none.
    rates : {"negated"} or None
        ``negated``: ``decay_rate`` holds ``-exp`` of what the formula has.
    """

    op: ClassVar[str] = "ssm"
    site: ClassVar[Site] = "attention"

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    gate: Linear
    x: Linear
    b: Linear
    c: Linear
    step: Linear
    x_conv: Convolution
    b_conv: Convolution
    c_conv: Convolution
    decay_rate: str
    step_bias: str
    skip: str
    norm: Norm
    gate_activation: Activation
    o: Linear
    step_least: float = 0.0
    step_most: float | None = None
    rates: Literal["negated"] | None = None

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        yield from self.gate.contracts(layer, "ssm.gate")
        yield from self.x.contracts(layer, "ssm.x")
        yield from self.b.contracts(layer, "ssm.b")
        yield from self.c.contracts(layer, "ssm.c")
        yield from self.step.contracts(layer, "ssm.step")
        yield from self.x_conv.contracts(layer, "ssm.x_conv")
        yield from self.b_conv.contracts(layer, "ssm.b_conv")
        yield from self.c_conv.contracts(layer, "ssm.c_conv")
        for name, use in (
            (self.decay_rate, "ssm.decay_rate"),
            (self.step_bias, "ssm.step_bias"),
            (self.skip, "ssm.skip"),
        ):
            yield OperandContract(name, (self.heads,), layer, use)
        yield from self.norm.contracts(layer, "ssm.norm")
        yield from self.o.contracts(layer, "ssm.o")

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers, for a carrier of ``hidden``."""
        yield from at_least_1(
            where,
            ("heads", self.heads),
            ("head width", self.head_dim),
            ("groups", self.groups),
            ("state width", self.state_dim),
        )
        inner, states = self.heads * self.head_dim, self.groups * self.state_dim
        yield from self.gate.defects(inner, hidden, where, "gate")
        yield from self.x.defects(inner, hidden, where, "x")
        yield from self.b.defects(states, hidden, where, "b")
        yield from self.c.defects(states, hidden, where, "c")
        yield from self.step.defects(self.heads, hidden, where, "step")
        yield from self.x_conv.defects(inner, where, "x convolution")
        yield from self.b_conv.defects(states, where, "b convolution")
        yield from self.c_conv.defects(states, where, "c convolution")
        yield from self.norm.defects(inner, where)
        yield from self.o.defects(hidden, inner, where, "o")
        if self.groups and self.heads % self.groups:
            yield Defect(where, f"{self.heads} heads cannot share {self.groups} groups equally")
        if self.step_least < 0 or (
            self.step_most is not None and not self.step_most >= self.step_least
        ):
            yield Defect(where, f"steps are limited to {self.step_least} .. {self.step_most}")

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions as part of a layer."""
        return (
            self.x_conv.state(layer, self.site),
            self.b_conv.state(layer, self.site),
            self.c_conv.state(layer, self.site),
            Recurrent(layer, self.heads, self.state_dim, self.head_dim),
        )

    def words(self) -> str:
        """Return its judged numbers in a few words."""
        parts = [
            f"ssm, {self.heads} heads × {self.head_dim}, {self.groups} groups × {self.state_dim}",
            f"convolution {self.x_conv.taps}",
            f"{self.gate_activation} gate",
        ]
        if self.step_least > 0:
            parts.append(f"steps ≥ {self.step_least:.9g}")
        if self.step_most is not None:
            parts.append(f"steps ≤ {self.step_most:.9g}")
        return ", ".join(parts)

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        return f"ssm {self.heads} × {self.head_dim}, state {self.state_dim}"
