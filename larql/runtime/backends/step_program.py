"""The kernel calls of one position's step, recorded once and made again for the next positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from larql.runtime.backends.base import Carrier
from larql.runtime.plan import Plan

__all__ = ["StepProgram", "step_key"]


def step_key(plan: Plan, position: int) -> tuple[int, ...]:
    """Return what must be equal for two positions to have the same calls.

    Attention works in blocks of keys that are anchored at absolute positions: the block that the
    position is in, and for each window the block in which it begins.
    """
    from larql.kernels.softmax import BLOCK

    windows = sorted({spec.window for spec in plan.state() if spec.window is not None})
    begins = (max(0, position - window + 1) // BLOCK for window in windows)
    return (position // BLOCK, *begins)


class StepProgram:
    """A recorded step.

    Parameters
    ----------
    key : tuple of int
        From :func:`step_key`.
    walk : callable
        The traversal to record.
    carrier : float32 ``[1, hidden]``
        Any carrier; its values do not matter.
    position : int
        The position that the traversal is recorded for.
    """

    def __init__(
        self,
        key: tuple[int, ...],
        walk: Callable[[Carrier], Carrier],
        carrier: Carrier,
        position: int,
    ) -> None:
        from larql.kernels.program import recorded

        self._key = key
        self._carrier = np.array(carrier, dtype=np.float32)
        with recorded(position) as program:
            self._result = walk(self._carrier)
        self._program = program()

    def fits(self, key: tuple[int, ...]) -> bool:
        """Return whether the program may be run for a position with this key."""
        return key == self._key and self._program.fits()

    def run(self, carrier: Carrier, position: int) -> Carrier:
        """Return the carrier after the step, float32 ``[1, hidden]``."""
        self._carrier[:] = carrier
        self._program.run(position)
        return self._result.copy()
