"""What every operation says of itself: the operands it reads, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from larql.format.names import layer_text

__all__ = ["BankPlace", "Defect", "OperandContract", "Site", "above_0", "at_least_1", "equal"]


Site = Literal["attention", "ffn", "per_layer"]


@dataclass(frozen=True)
class OperandContract:
    """One operand that one operation reads.

    Attributes
    ----------
    name : str
        ``<object>/<tensor>``.
    shape : tuple of int
        Logical shape, outermost axis first; the last axis is the contracted one.
    layer : int or None
        Layer index, None outside the layers.
    use : str
        The operation and its role, e.g. ``attention.q``.
    chosen : int or None
        How many of the entries along the first axis a position reads; None: all of them.
    """

    name: str
    shape: tuple[int, ...]
    layer: int | None
    use: str
    chosen: int | None = None


@dataclass(frozen=True)
class BankPlace:
    """Which part of the banks of experts is meant; what is None is not told apart.

    Attributes
    ----------
    layer : int or None
    bank : str or None
        ``routed`` or ``shared``.
    role : str or None
        What the regions are to an expert: ``down``, ``gate_up_fused``.
    segment : int or None
        Place among the bank's files. None: all of it, or it is not cut.
    component : str or None
        Whose layer it is; None: that of the model proper.
    """

    layer: int | None
    bank: str | None = None
    role: str | None = None
    segment: int | None = None
    component: str | None = None

    def text(self) -> str:
        """Return it in words."""
        parts = [
            None if self.layer is None else layer_text(self.layer, self.component),
            None if self.bank is None else f"{self.bank} bank",
            self.role,
            None if self.segment is None else f"segment {self.segment}",
        ]
        return ", ".join(part for part in parts if part is not None)


@dataclass(frozen=True)
class Defect:
    """One thing that keeps a container from closing, verifying or binding.

    Attributes
    ----------
    where : str
        A file, an operand or a component.
    problem : str
    place : BankPlace or None
        Of the banks of experts, where they are meant.
    """

    where: str
    problem: str
    place: BankPlace | None = None

    def line(self) -> str:
        """Return the defect as one line."""
        return f"{self.where}: {self.problem}"


def equal(where: str, what: str, found: int, expected: int) -> Iterator[Defect]:
    """Yield a defect where two numbers differ."""
    if found != expected:
        yield Defect(where, f"{what} is {found}, expected {expected}")


def at_least_1(where: str, *counts: tuple[str, int | None]) -> Iterator[Defect]:
    """Yield a defect for each count below 1; None is no count."""
    for what, found in counts:
        if found is not None and found < 1:
            yield Defect(where, f"{what} is {found}, expected at least 1")


def above_0(where: str, *numbers: tuple[str, float | None]) -> Iterator[Defect]:
    """Yield a defect for each number that is not above 0; None is no number."""
    for what, found in numbers:
        if found is not None and not found > 0:
            yield Defect(where, f"{what} is {found}, expected a number above 0")
