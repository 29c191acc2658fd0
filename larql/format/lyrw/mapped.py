"""A LYRW file opened for reading: sized once, mapped when bytes are first asked for."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import ContainerError
from larql.format.generation import Generation
from larql.format.lyrw.prelude import check_prelude
from larql.format.segment import advise_alone
from larql.format.untrusted import POINTER_LIMIT, open_regular, read_exactly

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["MappedFile", "TableReader"]


class TableReader:
    """Reads the header and the tables of an open file, one after another.

    Parameters
    ----------
    descriptor : int
        File descriptor; its position is neither used nor moved.
    size : int
        Bytes of the file.
    where : str
        The file, to start messages with.
    wanted : Generation
        Whose loader is asking.

    Raises
    ------
    ContainerError
        If the file does not begin as LYRW of that generation.
    """

    def __init__(self, descriptor: int, size: int, where: str, wanted: Generation) -> None:
        self._descriptor = descriptor
        self.size = size
        self.where = where
        self.position = 0
        head = read_exactly(descriptor, 0, min(size, POINTER_LIMIT), where, ContainerError)
        check_prelude(head, wanted, where)

    def take(self, count: int, table: str) -> bytes:
        """Return the next ``count`` bytes, which are the table named ``table``.

        Raises
        ------
        ContainerError
            If the file ends before, naming the table.
        """
        end = self.position + count
        if end > self.size:
            raise ContainerError(
                f"{self.where}: {table} is cut short: it is bytes {self.position} to {end}, but "
                f"the file has {self.size}"
            )
        data = read_exactly(self._descriptor, self.position, count, self.where, ContainerError)
        self.position = end
        return data


class MappedFile:
    """The bytes of a file whose tables were read and checked.

    Parameters
    ----------
    path : Path
        The file.
    status : os.stat_result
        What it was when its tables were read.
    """

    def __init__(self, path: Path, status: os.stat_result) -> None:
        self.path = path
        self.size = status.st_size
        self._identity = _identity(status)
        self._map: mmap.mmap | None = None

    def view(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        """Return bytes of the file as a read-only mapped view ``uint8 [length]``.

        Raises
        ------
        ContainerError
            If the file is no longer the one whose tables were read.
        """
        import numpy as np

        return np.frombuffer(self.mapped(), dtype=np.uint8, count=length, offset=offset)

    def alone(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        """As :meth:`view`, of bytes that are read and whose neighbours are not."""
        advise_alone(self.mapped(), offset, offset + length)
        return self.view(offset, length)

    def mapped(self) -> mmap.mmap:
        """Return the mapping, which is made when it is first asked for.

        Raises
        ------
        ContainerError
            If the file is no longer the one whose tables were read.
        """
        if self._map is None:
            with open_regular(self.path, ContainerError) as (descriptor, status):
                if _identity(status) != self._identity:
                    raise ContainerError(
                        f"{self.path}: was changed after it was opened; open it again"
                    )
                self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        return self._map


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
