"""One file that holds tensors: opened on first use, mapped for views, read for streams."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import SourceError
from larql.format.untrusted import open_regular, read_exactly

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["WeightFile"]


class WeightFile:
    """A weights file whose header was read before.

    The file is closed between the reading of its header and the first use of a tensor in it: a
    checkpoint of hundreds of files costs descriptors only for those in use. A file that changed in
    the meantime is refused, since the header's offsets would point at something else.

    Parameters
    ----------
    path : Path
        The file.
    status : os.stat_result
        Its status when the header was read.
    """

    def __init__(self, path: Path, status: os.stat_result) -> None:
        self.path = path
        self.size = status.st_size
        self._identity = _identity(status)
        self._descriptor: int | None = None
        self._map: mmap.mmap | None = None
        self._closed = False

    def view(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return ``nbytes`` bytes at ``offset`` as a read-only mapped uint8 array.

        The view stays valid after :meth:`close`.

        Raises
        ------
        SourceError
            If the file cannot be opened or mapped, or changed since its header was read.
        """
        import numpy as np

        descriptor = self._open()
        if self._map is None:
            try:
                self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as problem:
                raise SourceError(f"{self.path}: cannot map the file: {problem}") from None
        return np.frombuffer(self._map, dtype=np.uint8, count=nbytes, offset=offset)

    def chunks(self, offset: int, nbytes: int, size: int) -> Iterator[bytes]:
        """Yield ``nbytes`` bytes at ``offset`` in pieces of at most ``size``, without mapping.

        Raises
        ------
        SourceError
            As :meth:`view`, or if the file ends too early.
        """
        if size < 1:
            raise ValueError(f"chunk size {size}, expected 1 or more")
        descriptor = self._open()
        end = offset + nbytes
        for start in range(offset, end, size):
            yield read_exactly(
                descriptor, start, min(size, end - start), str(self.path), SourceError
            )

    def _open(self) -> int:
        if self._closed:
            raise ValueError(f"{self.path}: read from a closed checkpoint")
        if self._descriptor is None:
            with open_regular(self.path, SourceError) as (descriptor, status):
                if _identity(status) != self._identity:
                    raise SourceError(
                        f"{self.path}: changed since its header was read; run the command again "
                        "when nothing writes to it"
                    )
                self._descriptor = os.dup(descriptor)
        return self._descriptor

    def close(self) -> None:
        """Release the descriptor, and the mapping once no view of it is left."""
        self._closed = True
        # Views keep the mapping alive; it is unmapped when the last of them goes.
        self._map = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
