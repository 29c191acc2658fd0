"""An observer that keeps all that blocks compute, and can lock what each block reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.runtime.planes import SiteWatch
from larql.runtime.state import State
from larql.runtime.taps import Changes, Keep, Routing, Taps

__all__ = ["Recorder", "Seen"]

Float32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
Stages = Mapping[str, Float32]


@dataclass(frozen=True, eq=False)
class Seen:
    """What a run computed for T positions.

    Attributes
    ----------
    carriers : float32 ``[writes, T, hidden]``
        What the arm itself wrote, whatever was put in its place for the next block.
    stages : tuple of mapping
        For each block, what each of its operations gave: float32 ``[T, …]``.
    routing : tuple of Routing or None
        For each block.
    experts : tuple of mapping
        For each block, the checkpoints of :class:`~larql.runtime.expert_trace.ExpertTrace`; empty
        where it does not route.
    """

    carriers: Float32
    stages: tuple[Stages, ...]
    routing: tuple[Routing | None, ...]
    experts: tuple[Mapping[str, Array], ...]

    def at(self, first: int, last: int) -> Seen:
        """Return what was computed for some of the positions."""
        part = slice(first, last)
        return Seen(
            self.carriers[:, part],
            tuple({name: rows[part] for name, rows in of.items()} for of in self.stages),
            tuple(None if r is None else _part(r, part) for r in self.routing),
            tuple({name: rows[part] for name, rows in of.items()} for of in self.experts),
        )


class Recorder(SiteWatch):
    """Keeps carriers, stages and choices of experts.

    Parameters
    ----------
    most : int
        Most positions that are walked at once.
    locked : float32 ``[writes, T, hidden]`` or None
        The carrier that goes on after each write, in place of what was written.
    """

    def __init__(self, most: int, locked: Float32 | None = None) -> None:
        super().__init__(most)
        self.keep = Keep(stages=True, experts=True)
        self._locked = locked
        self._own: dict[int, Float32] = {}
        self._seen: list[Seen] = []

    def changes(self, start: int, count: int) -> Changes | None:
        """Put the locked carrier in the place of each that is written."""
        locked = self._locked
        if locked is None:
            return None

        def change(write: int, before: Float32, after: Float32) -> None:
            self._own[write] = after.copy()
            after[...] = locked[write, start : start + count]

        return change

    def saw(
        self, start: int, tokens: npt.NDArray[np.int64] | None, taps: Taps, state: State
    ) -> None:
        """Copy what a walk left behind."""
        carriers = taps.carriers.copy()
        for write, own in self._own.items():
            carriers[write] = own
        self._own.clear()
        stages = tuple(
            {name: rows.copy() for name, rows in (block.stages or {}).items()}
            for block in taps.blocks
        )
        routing = tuple(
            None if block.routing is None else _joined([block.routing]) for block in taps.blocks
        )
        # A trace holds copies, but the next walk puts others in their place.
        experts = tuple({} if b.experts is None else b.experts.arrays() for b in taps.blocks)
        self._seen.append(Seen(carriers, stages, routing, experts))

    def seen(self) -> Seen:
        """Return what was computed since the beginning."""
        parts = self._seen
        return Seen(
            np.concatenate([part.carriers for part in parts], axis=1),
            _each_joined([part.stages for part in parts]),
            tuple(
                None if first is None else _joined([part.routing[b] for part in parts])
                for b, first in enumerate(parts[0].routing)
            ),
            _each_joined([part.experts for part in parts]),
        )


def _each_joined(
    parts: Sequence[Sequence[Mapping[str, Array]]],
) -> tuple[dict[str, Array], ...]:
    """Return for each block the arrays of all walks, positions one after the other."""
    return tuple(
        {name: np.concatenate([part[b][name] for part in parts]) for name in first}
        for b, first in enumerate(parts[0])
    )


def _part(routing: Routing, part: slice) -> Routing:
    return Routing(routing.scores[part], routing.chosen[part], routing.weights[part])


def _joined(parts: Sequence[Routing | None]) -> Routing:
    found = [part for part in parts if part is not None]
    return Routing(
        np.concatenate([part.scores for part in found]),
        np.concatenate([part.chosen for part in found]),
        np.concatenate([part.weights for part in found]),
    )
