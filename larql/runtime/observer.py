"""What a session asks of whoever observes it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from larql.runtime.state import State, StateSnapshot
from larql.runtime.taps import Changes, Keep, Taps

__all__ = ["SessionObserver"]


class SessionObserver(Protocol):
    """Is told of each step of a session, once, from the traversal that computes it.

    What was seen counts when the step ends; a step that fails is as if it had not been.

    Attributes
    ----------
    keep : Keep
        What blocks leave behind beside the carrier.
    most : int
        Most positions that are walked at once.
    """

    keep: Keep
    most: int

    def changes(self, start: int, count: int) -> Changes | None:
        """Return what changes the carrier of positions ``start .. start + count``, if anything."""

    def begin_step(self) -> None:
        """Take note that a step begins."""

    def saw(
        self, start: int, tokens: npt.NDArray[np.int64] | None, taps: Taps, state: State
    ) -> None:
        """Take what a walk left behind; its arrays are used again for the next walk.

        Parameters
        ----------
        start : int
            The first position.
        tokens : int64 ``[T]`` or None
            None where hidden states were given.
        taps : Taps
        state : State
            Holds the rows of the positions.
        """

    def end_step(self) -> None:
        """Take note that the step is complete."""

    def abandon_step(self) -> None:
        """Forget what was seen since the step began."""

    def restored(self, snapshot: StateSnapshot) -> None:
        """Take note that the session went on from a snapshot, its own or a changed one."""

    def truncated(self, length: int) -> None:
        """Take note that positions from ``length`` on were forgotten."""
