"""What a routed block computes on its way, kept where an observer asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
    margin : ``[T]``
        How far the lowest rank chosen is above the highest that is not; infinite where all are
        chosen. Among groups, it is of the ranks alone.
    chosen : int64 ``[T, top]``
        In the order of the selection.
    raw_weights, weights : ``[T, top]``
        Before and after normalisation and scales.
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
    margin: Array | None = None
    chosen: npt.NDArray[np.int64] | None = None
    raw_weights: Array | None = None
    weights: Array | None = None
    expert_input: Array | None = None
    expert_outputs: Array | None = None
    routed: Array | None = None
    shared: Array | None = None
    output: Array | None = None

    def put(self, checkpoint: str, values: Array) -> None:
        """Keep a copy of one checkpoint."""
        setattr(self, checkpoint, np.array(values))

    def add_shared(self, values: Array) -> None:
        """Add what another shared expert gives, ``[T, hidden]``."""
        self.shared = values.copy() if self.shared is None else self.shared + values

    def chose(
        self, scores: Array, ranks: Array, chosen: npt.NDArray[np.int64], weights: Array
    ) -> None:
        """Keep how experts were chosen."""
        self.put("scores", scores)
        self.put("ranks", ranks)
        self.put("chosen", chosen)
        self.put("weights", weights)
        self.put("raw_weights", np.take_along_axis(scores, chosen, axis=1))
        left = np.array(ranks)
        np.put_along_axis(left, chosen, -np.inf, axis=1)
        lowest = np.take_along_axis(ranks, chosen, axis=1).min(axis=1)
        self.margin = lowest - left.max(axis=1)

    def gave(self, kept: npt.NDArray[np.int64], outputs: Array, count: int) -> None:
        """Keep the outputs ``[K, top, width]`` of the positions ``kept`` of ``count``."""
        self.expert_outputs = np.zeros((count, *outputs.shape[1:]), outputs.dtype)
        self.expert_outputs[kept] = outputs

    def arrays(self) -> dict[str, Array]:
        """Return the checkpoints that there are, by name, in order."""
        found = ((name, getattr(self, name)) for name in CHECKPOINTS)
        return {name: values for name, values in found if values is not None}
