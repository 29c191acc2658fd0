"""The kernel calls of a step, or of a part of one, recorded once and made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["StepProgram"]

Float32 = npt.NDArray[np.float32]


class StepProgram:
    """Recorded calls that make one array of another.

    Parameters
    ----------
    walk : callable
        What makes the calls: the traversal of the layers, an embedding or a head.
    given : array
        What it is given, a carrier or ids; the values do not matter.
    position : int
        The first position that the calls are recorded for.
    doubts : sequence of int64 arrays
        Filled while the calls are recorded, with words that its calls set where what they
        compute must not be used.
    """

    def __init__(
        self,
        walk: Callable[[npt.NDArray[Any]], Float32],
        given: npt.NDArray[Any],
        position: int,
        doubts: Sequence[npt.NDArray[np.int64]],
    ) -> None:
        from larql.kernels.finite import any_set
        from larql.kernels.program import recorded

        self._given = np.array(given)
        with recorded(position) as program:
            self._result = walk(self._given)
            self._doubt = any_set(doubts) if doubts else None
        self._program = program()

    def fits(self) -> bool:
        """Return whether the program may still be run."""
        return self._program.fits()

    def run(self, given: npt.NDArray[Any], position: int) -> Float32 | None:
        """Return what the calls make of an array like the one that they were recorded with.

        None where the step has to be walked to know what becomes of it. It can be: what a step
        writes to the state is beside what the state before it needs.
        """
        self._given[:] = given
        self._program.run(position)
        if self._doubt is not None and self._doubt[0]:
            return None
        return self._result.copy()
