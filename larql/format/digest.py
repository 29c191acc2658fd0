"""SHA-256 of files, remembered so that a large file is read once and not at every command.

A digest is remembered under the file's real path together with its size, modification time,
change time and inode; any difference means that the file is read again. The memo is an SQLite
file in the user cache: safe between processes, and never needed, so every failure to read or
write it only costs the reading of the file.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import PlatformError, SourceError

if TYPE_CHECKING:
    import sqlite3

    from larql.format.progress import Progress

__all__ = ["hash_descriptor", "remember_sha256", "sha256_of"]

_MEMO = "digests.sqlite"
_BLOCK = 1 << 20
# File times advance in steps of the kernel's tick (10 ms at most): a file younger than this could
# be written again, to the same size, without its stamp changing.
_SETTLED_NS = 50_000_000


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """Return the SHA-256 of a file's content as 64 lower-case hexadecimal digits.

    Parameters
    ----------
    path : Path
        A regular file.
    progress : Progress, optional
        Told of the bytes read; not told of anything when the digest is remembered.

    Raises
    ------
    SourceError
        If the file cannot be read.
    """
    try:
        real = path.resolve(strict=True)
        if not real.is_file():  # opening a pipe would wait for a writer that may never come
            raise SourceError(f"{path}: is not a regular file; check the path")
        with real.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            remembered = _recall(real, _stamp(before))
            if remembered is not None:
                return remembered
            if progress is not None:
                progress.start(f"Checking {path.name}", before.st_size)
            try:
                _, digest = hash_descriptor(
                    file.fileno(), None if progress is None else progress.advance
                )
            finally:
                if progress is not None:
                    progress.finish()
            after = os.fstat(file.fileno())
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SourceError(f"{path}: cannot be read: {reason}; check the path") from None
    unchanged = _stamp(before) == _stamp(after)
    if unchanged and time.time_ns() - after.st_mtime_ns > _SETTLED_NS:
        _record(real, _stamp(after), digest)
    return digest


def hash_descriptor(
    descriptor: int, advance: Callable[[int], object] | None = None
) -> tuple[int, str]:
    """Return size and SHA-256 of what an open file holds, from its beginning.

    Parameters
    ----------
    descriptor : int
        Its position is not moved.
    advance : callable, optional
        Told of the bytes read, piece by piece; what it raises ends the reading.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    digest = hashlib.sha256()
    size = 0
    # Read into one buffer: a new one for each piece is as many page faults as the file has pages.
    buffer = memoryview(bytearray(_BLOCK))
    while count := os.preadv(descriptor, [buffer], size):
        digest.update(buffer[:count])
        size += count
        if advance is not None:
            advance(count)
    return size, digest.hexdigest()


def remember_sha256(path: Path, digest: str) -> None:
    """Remember the digest of a file that the caller has just written and nobody else writes."""
    try:
        real = path.resolve(strict=True)
        _record(real, _stamp(real.stat()), digest)
    except OSError:
        return


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"


def _recall(real: Path, stamp: str) -> str | None:
    try:
        import sqlite3

        from larql.format.cache import cache_root

        memo = cache_root() / _MEMO
        if not memo.is_file():
            return None
        with closing(sqlite3.connect(memo, timeout=5)) as connection:
            row = connection.execute(
                "SELECT digest FROM digests WHERE path = ? AND stamp = ?",
                (os.fsencode(real), stamp),
            ).fetchone()
    except (ImportError, OSError, PlatformError):
        return None
    except sqlite3.Error as error:
        _discard_if_damaged(memo, error)
        return None
    value = row[0] if row is not None else None
    return value if isinstance(value, str) and len(value) == 64 else None


def _record(real: Path, stamp: str, digest: str) -> None:
    try:
        import sqlite3

        from larql.format.cache import cache_root

        memo = cache_root() / _MEMO
        memo.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(memo, timeout=5)) as connection, connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS digests"
                " (path BLOB PRIMARY KEY, stamp TEXT NOT NULL, digest TEXT NOT NULL)"
            )
            connection.execute(
                "INSERT OR REPLACE INTO digests VALUES (?, ?, ?)",
                (os.fsencode(real), stamp, digest),
            )
    except (ImportError, OSError, PlatformError):
        return
    except sqlite3.Error as error:
        _discard_if_damaged(memo, error)


def _discard_if_damaged(memo: Path, error: sqlite3.Error) -> None:
    """Delete a memo that is not a database, so that the next run starts a new one."""
    import sqlite3

    # OperationalError is a lock, a full disk or a missing permission: the memo itself is sound.
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        try:
            memo.unlink(missing_ok=True)
        except OSError:
            return
