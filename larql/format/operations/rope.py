"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from larql.format.operations.contract import Defect, OperandContract, above_0, at_least_1

__all__ = ["Rope", "RopeScaling"]


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched.

    ``linear`` divides every frequency by ``factor``. ``llama3`` divides those whose wavelength
    exceeds ``original_context / low_freq_factor``, keeps those below
    ``original_context / high_freq_factor`` and interpolates between.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_context: int | None = None


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding over the first ``dims`` of a head.

    Attributes
    ----------
    layout : {"half", "adjacent"}
        Which element is turned with element i: ``i + dims/2``, or the neighbour ``2i, 2i+1``.
    dims : int
        Number of leading dimensions that turn.
    theta : float
        Pair i turns by ``theta ** (-2 i / dims)`` radians per position.
    scaling : RopeScaling or None
        Closed-form stretching of the frequencies.
    turning : int or None
        Only so many leading pairs turn and the others stand still; None: all of them.
    factors : str or None
        Operand of shape ``[dims / 2]`` that divides the frequencies.
    """

    layout: Literal["half", "adjacent"]
    dims: int
    theta: float
    scaling: RopeScaling | None = None
    factors: str | None = None
    turning: int | None = None

    def contracts(self, layer: int | None, use: str) -> Iterator[OperandContract]:
        """Yield the operands that it reads."""
        if self.factors is not None:
            yield OperandContract(self.factors, (self.dims // 2,), layer, f"{use}.factors")

    def defects(self, key_dim: int, where: str) -> Iterator[Defect]:
        """Yield what is wrong with turning heads of ``key_dim``."""
        if self.dims % 2 or not 0 < self.dims <= key_dim:
            yield Defect(where, f"rope turns {self.dims} dims, expected an even count ≤ {key_dim}")
        if self.turning is not None and not 0 <= self.turning <= self.dims // 2:
            yield Defect(where, f"{self.turning} of {self.dims // 2} rope pairs cannot turn")
        yield from above_0(where, ("rope theta", self.theta))
        scaling = self.scaling
        if scaling is None:
            return
        yield from above_0(where, ("rope factor", scaling.factor))
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        context = scaling.original_context
        if scaling.kind == "linear":
            if (low, high, context) != (None, None, None):
                yield Defect(where, "linear rope scaling has numbers of another kind")
        elif low is None or high is None or context is None:
            yield Defect(where, "rope scaling lacks a frequency factor or the original context")
        else:
            yield from above_0(where, ("low_freq_factor", low))
            yield from at_least_1(where, ("original_context", context))
            if not high > low:
                yield Defect(where, f"high_freq_factor is {high}, expected more than {low}")

    def words(self) -> str:
        """Return its numbers in a few words."""
        text = f"rope {self.layout} {self.dims} θ {self.theta:.9g}"
        if self.scaling is not None:
            text += f" {self.scaling.kind} ÷{self.scaling.factor:.9g}"
        if self.turning is not None:
            text += f", first {self.turning} pairs"
        return text + (" with factors" if self.factors is not None else "")
