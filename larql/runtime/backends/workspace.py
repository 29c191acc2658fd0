"""Memory for intermediate results, used again for every block of layers.

Fresh arrays of some megabytes are fresh pages: having the system make them took a third of a long
prefill.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Workspace"]

_LINE = 64


class Workspace:
    """Arrays that are handed out in order, and again from the first one after a restart.

    What was taken before a restart must not be used after it. A workspace serves one thread at a
    time.
    """

    def __init__(self) -> None:
        self._slots: list[npt.NDArray[np.uint8]] = []
        self._next = 0

    def restart(self) -> None:
        """Let everything that was taken be used again."""
        self._next = 0

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Return an array with any content, C-contiguous, on a cache line's boundary."""
        kind = np.dtype(dtype)
        size = kind.itemsize
        for axis in shape:
            size *= axis
        if self._next == len(self._slots):
            self._slots.append(np.empty(0, np.uint8))
        if self._slots[self._next].size < size + _LINE:
            self._slots[self._next] = np.empty(size + _LINE, np.uint8)
        slot = self._slots[self._next]
        self._next += 1
        skip = -int(slot.ctypes.data) % _LINE
        return slot[skip : skip + size].view(kind).reshape(shape)
