"""The kernel calls of a step of few positions, recorded once and made again for the next ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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
    """

    def __init__(
        self,
        walk: Callable[[Carrier], Carrier],
        carrier: Carrier,
        position: int,
    ) -> None:
        from larql.kernels.program import recorded

        self._carrier = np.array(carrier, dtype=np.float32)
        with recorded(position) as program:
            self._result = walk(self._carrier)
        self._program = program()

    def fits(self) -> bool:
        """Return whether the program may still be run."""
        return self._program.fits()

    def run(self, carrier: Carrier, position: int) -> Carrier:
        """Return the carrier after a step of as many positions, float32 ``[T, hidden]``."""
        self._carrier[:] = carrier
        self._program.run(position)
        return self._result.copy()
