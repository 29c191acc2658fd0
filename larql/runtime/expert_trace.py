"""What a routed block computes on its way, kept where an observer asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.runtime.routes import Reached

__all__ = ["CHECKPOINTS", "ExpertTrace"]

Array = npt.NDArray[Any]

CHECKPOINTS = (
    "router_input",
    "scores",
    "ranks",
    "margin",
    "chosen",
    "raw_weights",
    "weights",
    "expert_input",
    "expert_outputs",
    "routed",
    "shared",
    "output",
)
"""Names of the checkpoints, in the order in which a block computes them."""


@dataclass
class ExpertTrace:
    """The checkpoints of one routed block, for T positions, in the backend's own numbers.

    A backend fills it with arrays of its own while the block runs; before, all are None. Positions
    that a best-effort step left out hold zeros from ``expert_outputs`` to ``routed``.

    Attributes
    ----------
    router_input : ``[T, hidden]``
        What the scores are a projection of.
    scores : ``[T, E]``
        The score function of all logits.
    ranks : ``[T, E]``
        What experts are chosen by.
    chosen : int64 ``[T, top]``
        In the order of the selection.
    weights : ``[T, top]``
        After normalisation and scales.
    expert_input : ``[T, width]``
    expert_outputs : ``[T, top, width]``
        Before they are weighted.
    routed : ``[T, hidden]``
        The routed part of the output: weighted, added, transformed back, normalised.
    shared : ``[T, hidden]`` or None
        What shared experts add; None where there are none.
    output : ``[T, hidden]``
    """

    router_input: Array | None = None
    scores: Array | None = None
    ranks: Array | None = None
    chosen: npt.NDArray[np.int64] | None = None
    weights: Array | None = None
    expert_input: Array | None = None
    expert_outputs: Array | None = None
    routed: Array | None = None
    shared: Array | None = None
    output: Array | None = None

    @property
    def margin(self) -> Array | None:
        """How far the lowest rank chosen is above the highest that is not, ``[T]``.

        Infinite where all are chosen. Among groups, it is of the ranks alone.
        """
        if self.ranks is None or self.chosen is None:
            return None
        left = self.ranks.copy()
        np.put_along_axis(left, self.chosen, -np.inf, axis=1)
        lowest = np.take_along_axis(self.ranks, self.chosen, axis=1).min(axis=1)
        return np.asarray(lowest - left.max(axis=1))

    @property
    def raw_weights(self) -> Array | None:
        """The scores of the chosen, before normalisation and scales, ``[T, top]``."""
        if self.scores is None or self.chosen is None:
            return None
        return np.take_along_axis(self.scores, self.chosen, axis=1)

    def gave(self, reached: Reached, count: int, kept: Callable[[Any], Array]) -> None:
        """Keep what experts gave the positions that have all of them, of ``count``.

        Parameters
        ----------
        reached : Reached
        count : int
        kept : callable
            The backend's copy of an array.
        """
        if len(reached.kept) == count and reached.in_order:
            self.expert_outputs = kept(reached.rows).reshape(*reached.places.shape, -1)
            return
        made = reached.rows[reached.places]
        if len(reached.kept) == count:
            self.expert_outputs = made
        else:
            self.expert_outputs = np.zeros((count, *made.shape[1:]), made.dtype)
            self.expert_outputs[reached.kept] = made

    def arrays(self) -> dict[str, Array]:
        """Return the checkpoints that there are, by name, in order."""
        found = ((name, getattr(self, name)) for name in CHECKPOINTS)
        return {name: values for name, values in found if values is not None}
