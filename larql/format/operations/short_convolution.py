"""The gated short convolution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from larql.format.operations.contract import Defect, OperandContract, Site, at_least_1
from larql.format.operations.convolution import Convolution
from larql.format.operations.linear import Linear
from larql.format.operations.states import StateSpec

__all__ = ["ShortConvolution"]


@dataclass(frozen=True)
class ShortConvolution:
    """``o(c x * conv(b x * v x))``: a short convolution between two gates (LFM2).

    Attributes
    ----------
    b, c, v : Linear
        Gate before the convolution, gate after it, and what is convolved; all of one width.
    conv : Convolution
        Keeps the products ``b x * v x``.
    o : Linear
    """

    op: ClassVar[str] = "short_convolution"
    site: ClassVar[Site] = "attention"

    b: Linear
    c: Linear
    v: Linear
    conv: Convolution
    o: Linear

    def contracts(self, layer: int) -> Iterator[OperandContract]:
        """Yield the operands that it reads, in the order in which they are used."""
        yield from self.b.contracts(layer, "convolution.b")
        yield from self.c.contracts(layer, "convolution.c")
        yield from self.v.contracts(layer, "convolution.v")
        yield from self.conv.contracts(layer, "convolution.taps")
        yield from self.o.contracts(layer, "convolution.o")

    def defects(self, hidden: int, where: str) -> Iterator[Defect]:
        """Yield the contradictions among its numbers, for a carrier of ``hidden``."""
        width = self.conv.channels
        yield from at_least_1(where, ("channels", width))
        yield from self.b.defects(width, hidden, where, "b")
        yield from self.c.defects(width, hidden, where, "c")
        yield from self.v.defects(width, hidden, where, "v")
        yield from self.conv.defects(width, where, "convolution")
        yield from self.o.defects(hidden, width, where, "o")

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions as part of a layer."""
        return (self.conv.state(layer, self.site),)

    def words(self) -> str:
        """Return its judged numbers in a few words."""
        return f"short convolution, {self.conv.channels} channels × {self.conv.taps}"

    def brief(self) -> str:
        """Return what tells layers apart, in fewer words."""
        return f"short convolution {self.conv.taps}"
