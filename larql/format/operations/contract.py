"""What every operation says of itself: the operands it reads, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Defect", "OperandContract", "Site", "above_0", "at_least_1", "equal"]


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
class Defect:
    """One thing that keeps a container from closing, verifying or binding."""

    where: str
    problem: str

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
