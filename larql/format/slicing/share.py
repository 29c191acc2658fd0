"""Having a file's bytes a second time without storing them twice, where the file system can."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from larql.errors import ContainerError
from larql.format.index import FileEntry
from larql.format.segment import write_stream
from larql.format.untrusted import open_regular

__all__ = ["Shared", "share_file"]

Shared = Literal["cloned", "linked", "copied"]
_FICLONE = 0x40049409
_CHUNK = 8 << 20


def share_file(source: Path, target: Path, entry: FileEntry) -> Shared:
    """Make ``target`` a file of the same bytes: a clone, else a hard link, else a copy.

    A clone shares blocks until one of the two is written to. A hard link is the same file under two
    names: larql never writes into a file that stands, so neither changes the other.

    Parameters
    ----------
    source : Path
        A regular file, whose bytes are known to be those of ``entry``.
    target : Path
        Must not exist.
    entry : FileEntry
        Size and hash that a copy is held to.

    Raises
    ------
    ContainerError
        If the bytes that were copied are others.
    """
    real = Path(os.path.realpath(source))
    if _clone(real, target):
        return "cloned"
    try:
        os.link(real, target)
    except OSError:
        # Another file system, one without links, or a file that may not be linked.
        written = write_stream(target, _chunks(real))
        if (written.size, written.sha256) != (entry.size, entry.sha256):
            raise ContainerError(
                f"{source}: has sha256 {written.sha256}, the index vouches for {entry.sha256}; "
                f"the file is damaged, extract the model again"
            ) from None
        return "copied"
    return "linked"


def _clone(source: Path, target: Path) -> bool:
    with (
        open_regular(source, ContainerError) as (origin, _status),
        target.open("xb", buffering=0) as stream,
    ):
        try:
            fcntl.ioctl(stream, _FICLONE, origin)
        except OSError:
            target.unlink()
            return False
        os.fsync(stream)
    return True


def _chunks(path: Path) -> Iterator[bytes]:
    with open_regular(path, ContainerError) as (descriptor, _status):
        position = 0
        while chunk := os.pread(descriptor, _CHUNK, position):
            position += len(chunk)
            yield chunk
