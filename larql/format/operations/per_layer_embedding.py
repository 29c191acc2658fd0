"""Embeddings of its own that each layer adds for the token at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from larql.format.operations.contract import (
    Defect,
    OperandContract,
    Site,
    above_0,
    at_least_1,
)
from larql.format.operations.dense_ffn import Activation
from larql.format.operations.linear import Linear, Norm
from larql.format.operations.states import StateSpec

__all__ = ["PerLayerEmbedding", "PerLayerTable"]


@dataclass(frozen=True)
class PerLayerTable:
    """A second embedding, whose rows hold a vector for each layer, side by side.

    Attributes
    ----------
    weight : str
        Operand of shape ``[vocab, layers * width]``.
    vocab, layers, width : int
        A component of fewer layers reads the first parts of each row.
    scale : float
        Factor of the row.
    """

    weight: str
    vocab: int
    layers: int
    width: int
    scale: float

    def contract(self) -> OperandContract:
        """Return the operand that it reads."""
        shape = (self.vocab, self.layers * self.width)
        return OperandContract(self.weight, shape, None, "embed.per_layer")

    def defects(self, tokens: int, layers: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions with a component of so many tokens and layers."""
        yield from at_least_1(where, ("width", self.width))
        if self.layers < layers:
            yield Defect(where, f"layers is {self.layers}, expected at least {layers}")
        if self.vocab < tokens:
            yield Defect(where, f"vocab is {self.vocab}, expected at least {tokens}")


@dataclass(frozen=True)
class PerLayerEmbedding:
    """``up(activation(gate x) * e)`` with ``e`` made of the token and its embedding alone.

    ``e = combined * (norm(context_scale * context(x0)) + row)``: ``x0`` is what the token's
    embedding put into the carrier, ``row`` the layer's part of the token's row in the component's
    :class:`PerLayerTable`.

    Attributes
    ----------
    width : int
        Length of ``e``.
    activation : str
    context, gate, up : Linear
        Carrier to ``e``, carrier to gate, and back to the carrier.
    norm : Norm
    context_scale, combined : float
    """

    op: ClassVar[str] = "per_layer_embedding"
    site: ClassVar[Site] = "per_layer"

    width: int
    activation: Activation
    context: Linear
    norm: Norm
    gate: Linear
    up: Linear
    context_scale: float
    combined: float

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        yield from self.context.contracts(layer, "per_layer.context")
        yield from self.norm.contracts(layer, "per_layer.context_norm")
        yield from self.gate.contracts(layer, "per_layer.gate")
        yield from self.up.contracts(layer, "per_layer.up")

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers, for a carrier of ``hidden``."""
        yield from at_least_1(where, ("width", self.width))
        yield from above_0(where, ("context scale", self.context_scale))
        yield from self.context.defects(self.width, hidden, where, "context")
        yield from self.norm.defects(self.width, where)
        yield from self.gate.defects(self.width, hidden, where, "gate")
        yield from self.up.defects(hidden, self.width, where, "up")

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions: nothing."""
        return ()

    def words(self) -> str:
        """Return its judged numbers in a few words."""
        return (
            f"{self.activation}, {self.width} wide, context × {self.context_scale:.9g}, "
            f"sum × {self.combined:.9g}"
        )

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        return f"embedding {self.width}"
