"""What every reader does before it believes a byte of a file that somebody else wrote."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from larql.errors import LarqlError

__all__ = [
    "chunks_at",
    "exists",
    "open_regular",
    "read_exactly",
    "read_json_object",
    "refuse_pointer",
    "shown",
]

POINTER_PREFIX = b"version https://git-lfs"
POINTER_LIMIT = 1024
_POINTER_OID = re.compile(rb"^oid ([a-z0-9]{1,16}:[0-9a-f]{1,128})$", re.MULTILINE)
_POINTER_SIZE = re.compile(rb"^size ([0-9]{1,20})$", re.MULTILINE)

_CHUNK = 8 << 20

MAX_JSON_BYTES = 4 << 20
"""Largest small JSON document (a model configuration): Python objects take up to 25 times this."""


def shown(text: str, limit: int = 120) -> str:
    """Return ``text`` quoted for a one-line message: escaped, cut after ``limit``."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}..."


def exists(path: Path) -> bool:
    """Return False if nothing is there, True if something is or the system will not say.

    Opening it then tells what the matter is: no permission, or a name that is too long.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


@contextmanager
def open_regular(path: Path, error: type[LarqlError]) -> Iterator[tuple[int, os.stat_result]]:
    """Open a regular file for reading, for the length of a ``with`` block.

    Parameters
    ----------
    path : Path
        The file. A symbolic link is followed.
    error : type of LarqlError
        The class to raise.

    Yields
    ------
    tuple of int and os.stat_result
        File descriptor and its status.

    Raises
    ------
    LarqlError
        Of class ``error``: the file is missing, unreadable, or a directory, pipe or device; also
        any operating system error inside the block.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe waits for a writer that may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except (OSError, ValueError) as problem:
        raise error(f"{path}: cannot open: {_reason(problem)}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path}: is not a regular file")
        yield descriptor, status
    except OSError as problem:
        raise error(f"{path}: cannot read: {_reason(problem)}") from None
    finally:
        os.close(descriptor)


def _reason(problem: Exception) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)


def read_exactly(
    descriptor: int, offset: int, count: int, where: str, error: type[LarqlError]
) -> bytes:
    """Read ``count`` bytes at ``offset`` without moving the file position.

    Raises
    ------
    LarqlError
        Of class ``error``: the file ends before, or cannot be read.
    """
    parts: list[bytes] = []
    missing = count
    while missing:
        try:
            part = os.pread(descriptor, missing, offset + count - missing)
        except OSError as problem:
            raise error(f"{where}: cannot read: {_reason(problem)}") from None
        if not part:
            raise error(
                f"{where}: ends at byte {offset + count - missing}, expected {offset + count}; "
                "it became shorter while it was read"
            )
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def chunks_at(
    descriptor: int, offset: int, count: int, where: str, error: type[LarqlError]
) -> Iterator[bytes]:
    """Yield ``count`` bytes from ``offset`` on in pieces, without moving the file position.

    Raises
    ------
    LarqlError
        Of class ``error``: the file ends before, or cannot be read.
    """
    for position in range(offset, offset + count, _CHUNK):
        size = min(_CHUNK, offset + count - position)
        yield read_exactly(descriptor, position, size, where, error)


def refuse_pointer(head: bytes, where: str, error: type[LarqlError]) -> None:
    """Refuse a Git LFS pointer that stands where a file should be.

    Git LFS checks a text file of about 130 bytes out in place of each large file until the file
    itself is fetched (Git LFS specification, "The pointer"; pointers are below 1024 bytes).

    Parameters
    ----------
    head : bytes
        The first ``POINTER_LIMIT`` bytes of the file, or all of them.
    where : str
        The file, to start the message with.
    error : type of LarqlError
        The class to raise.

    Raises
    ------
    LarqlError
        Of class ``error``, with object id, size and how to fetch the file.
    """
    if not head.startswith(POINTER_PREFIX):
        return
    oid, size = _POINTER_OID.search(head), _POINTER_SIZE.search(head)
    of = f" {oid[1].decode()}" if oid else ""
    holding = f" of {size[1].decode()} bytes" if size else ""
    raise error(
        f"{where}: is a Git LFS pointer to{of or ' a file'}{holding}, not the file itself; fetch "
        "it with `git lfs pull` in its repository, or with `larql pull hf://owner/name`"
    )


def read_json_object(
    path: Path,
    error: type[LarqlError],
    *,
    limit: int = MAX_JSON_BYTES,
    infinity: bool = True,
) -> Mapping[str, object]:
    """Read a JSON file that must hold an object, strictly. ``NaN`` is refused.

    Parameters
    ----------
    path : Path
        The file.
    error : type of LarqlError
        The class to raise.
    limit : int
        Most bytes that it may have.
    infinity : bool
        Whether ``Infinity`` and ``-Infinity`` are read as floats, because model configurations
        carry them. If not, numbers that overflow a float are refused too.

    Returns
    -------
    Mapping
        The object.

    Raises
    ------
    LarqlError
        Of class ``error``: missing, larger than ``limit``, a Git LFS pointer, not UTF-8, not JSON,
        not an object, nested too deeply, or with a key twice in one object.
    """
    where = str(path)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        document: dict[str, object] = {}
        for key, value in pairs:
            if key in document:
                raise error(f"{where}: duplicate key {shown(key)}; expected each key once")
            document[key] = value
        return document

    def constant(name: str) -> float:
        if name == "NaN" or not infinity:
            raise error(f"{where}: {name} is not a JSON number")
        return float(name)

    def number(text: str) -> float:
        value = float(text)
        if math.isinf(value) and not infinity:
            raise error(f"{where}: number {shown(text)} is too large")
        return value

    with open_regular(path, error) as (descriptor, status):
        if status.st_size > limit:
            raise error(f"{where}: {status.st_size} bytes, more than the {limit} expected of it")
        raw = read_exactly(descriptor, 0, status.st_size, where, error)
    refuse_pointer(raw[:POINTER_LIMIT], where, error)
    try:
        document = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=constant,
            parse_float=number,
        )
    except UnicodeDecodeError as problem:
        raise error(f"{where}: is not UTF-8 at byte {problem.start}") from None
    except RecursionError:
        raise error(f"{where}: JSON is nested too deeply") from None
    except ValueError as problem:
        raise error(f"{where}: is not JSON: {problem}") from None
    if not isinstance(document, dict):
        raise error(f"{where}: is not a JSON object but a {type(document).__name__}")
    return document
