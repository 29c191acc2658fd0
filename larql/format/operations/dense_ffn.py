"""The dense feed-forward operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from larql.format.operations.contract import Defect, OperandContract, Site, at_least_1, equal
from larql.format.operations.linear import Linear
from larql.format.operations.states import StateSpec

__all__ = ["Activation", "DenseFfn"]


Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid"]


@dataclass(frozen=True)
class DenseFfn:
    """``down(activation(gate x) * up x)``, or ``down(activation(up x))`` without a gate.

    With ``scale``, an operand of one number, the result is multiplied by it.
    """

    op: ClassVar[str] = "dense_ffn"
    site: ClassVar[Site] = "ffn"

    activation: Activation
    up: Linear
    down: Linear
    gate: Linear | None = None
    scale: str | None = None

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        if self.gate is not None:
            yield from self.gate.contracts(layer, "ffn.gate")
        yield from self.up.contracts(layer, "ffn.up")
        yield from self.down.contracts(layer, "ffn.down")
        if self.scale is not None:
            yield OperandContract(self.scale, (1,), layer, "ffn.scale")

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers, for a carrier of ``hidden``."""
        yield from at_least_1(where, ("up outputs", self.up.outputs))
        yield from equal(where, "up inputs", self.up.inputs, hidden)
        yield from equal(where, "down outputs", self.down.outputs, hidden)
        yield from equal(where, "down inputs", self.down.inputs, self.up.outputs)
        if self.gate is not None:
            yield from equal(where, "gate inputs", self.gate.inputs, hidden)
            yield from equal(where, "gate outputs", self.gate.outputs, self.up.outputs)

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions: nothing."""
        return ()

    def words(self) -> str:
        """Return its judged numbers in a few words."""
        gate = "gated " if self.gate is not None else ""
        return f"{gate}{self.activation}, {self.up.outputs} wide"

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        return f"{self.activation} {self.up.outputs}"
