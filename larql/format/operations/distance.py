"""What attention scores owe to the distance of a key, and to the position of a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from larql.format.operations.contract import Defect, OperandContract, above_0, at_least_1
from larql.format.operations.linear import Linear

__all__ = ["DistanceBias", "PositionScale"]


@dataclass(frozen=True)
class DistanceBias:
    """A number added to each score: ``sum over i of mix[i] * profiles[i, distance]``.

    Each head of each query mixes the profiles in a way of its own. The distance is the query's
    position less the key's; from ``extent`` on nothing is added.

    Attributes
    ----------
    mix : Linear
        Of the attention's input to ``[heads * count]``, heads in order.
    profiles : str
        Operand of shape ``[count, extent]``.
    count, extent : int
    """

    mix: Linear
    profiles: str
    count: int
    extent: int

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads."""
        yield from self.mix.contracts(layer, "attention.distance")
        shape = (self.count, self.extent)
        yield OperandContract(self.profiles, shape, layer, "attention.distance.profiles")

    def defects(self, heads: int, hidden: int, where: str) -> Iterator[Defect]:
        """Yield what is wrong with it for so many heads."""
        yield from at_least_1(
            where, ("distance profiles", self.count), ("distance extent", self.extent)
        )
        yield from self.mix.defects(heads * self.count, hidden, where, "distance mix")


@dataclass(frozen=True)
class PositionScale:
    """``1 + rate * ln(max((position + 1) / floor, 1))``, positions counted from 0.

    Attributes
    ----------
    floor : int
        Up to so many positions it is 1.
    rate : float
    """

    floor: int
    rate: float

    def defects(self, where: str) -> Iterator[Defect]:
        """Yield what is wrong with it."""
        yield from at_least_1(where, ("position scale floor", self.floor))
        yield from above_0(where, ("position scale rate", self.rate))
