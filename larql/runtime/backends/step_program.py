"""The kernel calls of a step of few positions, recorded once and made again for the next ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from larql.runtime.backends.base import Carrier

__all__ = ["StepProgram"]


class StepProgram:
    """A recorded step.

    Parameters
    ----------
    walk : callable
        The traversal to record.
    carrier : float32 ``[T, hidden]``
        Any carrier; its values do not matter.
    position : int
        The first position that the traversal is recorded for.
    doubts : sequence of int64 arrays
        Filled while the traversal is recorded, with words that its calls set where what they
        compute must not be used.
    """

    def __init__(
        self,
        walk: Callable[[Carrier], Carrier],
        carrier: Carrier,
        position: int,
        doubts: Sequence[npt.NDArray[np.int64]],
    ) -> None:
        from larql.kernels.finite import any_set
        from larql.kernels.program import recorded

        self._carrier = np.array(carrier, dtype=np.float32)
        with recorded(position) as program:
            self._result = walk(self._carrier)
            self._doubt = any_set(doubts) if doubts else None
        self._program = program()

    def fits(self) -> bool:
        """Return whether the program may still be run."""
        return self._program.fits()

    def run(self, carrier: Carrier, position: int) -> Carrier | None:
        """Return the carrier after a step of as many positions, float32 ``[T, hidden]``.

        None where the step has to be walked to know what becomes of it. It can be: what a step
        writes to the state is beside what the state before it needs.
        """
        self._carrier[:] = carrier
        self._program.run(position)
        if self._doubt is not None and self._doubt[0]:
            return None
        return self._result.copy()
