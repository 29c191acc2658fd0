"""Cutting a container of either generation, whichever files it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from larql.format.container import Container
from larql.format.generation import Generation
from larql.format.progress import Progress
from larql.format.slicing.made import Made, Planned
from larql.format.slicing.plan import Request, SlicePlan, plan_slice
from larql.format.slicing.write import planned_files, write_slice

__all__ = ["Cut", "plan_cut"]


class Cut(Protocol):
    """What a slice will hold."""

    @property
    def operands(self) -> int:
        """How many operands it has, whole or in part."""

    @property
    def remote(self) -> Sequence[str]:
        """Objects and operands of the model that are left out."""

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know."""

    def files(self) -> tuple[Planned, ...]:
        """Return the files that it will hold, by name; all but its index."""

    def write(self, output: Path, *, force: bool, progress: Progress) -> Made:
        """Write it.

        Raises
        ------
        ContainerError
            If a file that is taken from is damaged.
        OutputError
            If the output exists or cannot be written. No partial directory is left behind.
        """


@dataclass(frozen=True)
class _Vindex3Cut:
    """A slice of a VINDEX3 container, by roles of the graph."""

    container: Container
    plan: SlicePlan

    @property
    def operands(self) -> int:
        return len({value.operand for value in self.plan.representations.values()})

    @property
    def remote(self) -> Sequence[str]:
        return self.plan.remote

    @property
    def notes(self) -> Sequence[str]:
        return self.plan.notes

    def files(self) -> tuple[Planned, ...]:
        return planned_files(self.container, self.plan)

    def write(self, output: Path, *, force: bool, progress: Progress) -> Made:
        return write_slice(self.container, self.plan, output, force=force, progress=progress)


def plan_cut(container: Container, wanted: Request) -> Cut:
    """Decide what a slice holds.

    Raises
    ------
    UsageError
        If a range is outside the model, or a part that was named is not in it, or nothing is left.
    ContainerError, UnsupportedRefusal
        If the graph, a profile or a table cannot be read.
    """
    if container.generation is Generation.VINDEX2:
        from larql.format.vindex2.slicing import plan_vindex2_slice

        return plan_vindex2_slice(container, wanted)
    return _Vindex3Cut(container, plan_slice(container, wanted))
