"""Writing regions piece by piece: nothing is held but what the caller hands over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from larql.errors import ContainerError, OutputError
from larql.format.atomic import write_file

__all__ = ["Pieces", "open_output", "write_pieces"]

Pieces = Iterable[bytes | memoryview]
"""Stored bytes of a region, in order."""


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream that becomes the file ``path`` if the body completes.

    Raises
    ------
    OutputError
        If the path cannot be written, or is a pipe or device, where tables cannot be filled in.
    """
    with write_file(path) as temporary:
        if temporary == path:
            raise OutputError(f"{path}: is not a regular file; a LYRW file needs one")
        with temporary.open("xb") as stream:
            yield stream


def write_pieces(stream: BinaryIO, pieces: Pieces, expected: int | None, what: str) -> int:
    """Write the bytes of one region.

    Parameters
    ----------
    stream : BinaryIO
        Where to write.
    pieces : iterable of bytes or memoryview
        The bytes.
    expected : int or None
        How many there must be, None where any number but none will do.
    what : str
        File and region, to start the message with.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    ContainerError
        If there are more or fewer bytes than expected; more are refused before they are written.
    """
    written = 0
    for piece in pieces:
        count = memoryview(piece).nbytes
        if expected is not None and written + count > expected:
            raise ContainerError(
                f"{what} gave {written + count} bytes or more, expected {expected} for its format "
                "and shape"
            )
        stream.write(piece)
        written += count
    if written == 0 or (expected is not None and written != expected):
        wanted = "at least one" if expected is None else f"{expected} for its format and shape"
        raise ContainerError(f"{what} gave {written} bytes, expected {wanted}")
    return written
