"""Output directories that appear whole or not at all.

A directory is written beside its final place under a temporary name, synced, and renamed. Where
one stands there already the two are exchanged in one step where the system can, else the old one
is moved aside first and :func:`recover` puts it back if the process died in between.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from larql.errors import LarqlError, OutputError

__all__ = [
    "check_output_file",
    "explain_os_error",
    "recover",
    "set_aside",
    "write_directory",
    "write_file",
]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def explain_os_error(error: OSError, path: Path) -> OutputError:
    """Return the one-line refusal for an operating system error on an output path."""
    reasons = {
        errno.ENOSPC: "the disk is full; free some space and run again",
        errno.EDQUOT: "the disk quota is used up; free some space and run again",
        errno.EFBIG: "the file would exceed the allowed file size; raise the limit (ulimit -f)",
        errno.EACCES: "permission denied; choose a place you may write to",
        errno.EPERM: "the system does not permit it; choose a place you may write to",
        errno.EROFS: "the file system is read-only; choose another place",
        errno.ENOENT: "its parent directory does not exist; create it first",
        errno.ENOTDIR: "its parent is not a directory; choose another place",
        errno.ENAMETOOLONG: "the name is too long for the file system",
        errno.ENOTEMPTY: "something appeared there meanwhile; choose another path",
    }
    reason = reasons.get(error.errno or 0, error.strerror or str(error))
    return OutputError(f"{path}: cannot write: {reason}")


def _sibling(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}-{secrets.token_hex(6)}")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two paths in one step; False where the system or file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        renameat2 = libc.renameat2
    except AttributeError:
        return False
    result = renameat2(
        _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    )
    return int(result) == 0


def recover(path: Path) -> None:
    """Put back a directory that a killed replacement left moved aside, if ``path`` is missing."""
    if path.exists() or not path.name:
        return
    for aside in sorted(path.parent.glob(f".{glob.escape(path.name)}.old-*")):
        # Gone already where another process recovers at the same time.
        with suppress(FileNotFoundError):
            aside.rename(path)
        return


@contextmanager
def write_directory(
    path: Path, *, force: bool, replaceable: Callable[[Path], bool], kind: str = "a container"
) -> Iterator[Path]:
    """Yield a temporary directory that becomes ``path`` if the body completes.

    Parameters
    ----------
    path : Path
        Final place. Its parent must exist.
    force : bool
        Whether an existing ``path`` may be replaced.
    replaceable : callable
        Says of an existing directory whether it is of the kind that ``force`` may replace; an
        empty directory always is.
    kind : str
        What that is, for the refusal.

    Raises
    ------
    OutputError
        If the path exists and must not be replaced, or cannot be written.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - a symlink at the end must stay one
    check_output(path, force=force, replaceable=replaceable, kind=kind)
    try:
        temporary, descriptor = _begin(path)
    except OSError as error:
        raise explain_os_error(error, path) from None
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_dir():
                _sync_directory(file)
        _sync_directory(temporary)
        # The body may have taken minutes: what is there now may not be what was there before.
        check_output(path, force=force, replaceable=replaceable, kind=kind)
        _install(temporary, path)
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(descriptor)


def _begin(path: Path) -> tuple[Path, int]:
    """Make a temporary directory that is locked while its writer lives; remove dead ones.

    The parent is locked meanwhile, so that no directory is seen between its making and its lock.
    Where the file system has no locks nothing is removed.
    """
    temporary = _sibling(path, "tmp")
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        locks = _lock(parent, wait=True)
        if locks:
            for stale in path.parent.glob(f".{glob.escape(path.name)}.tmp-*"):
                _remove_if_dead(stale)
        temporary.mkdir()
        descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
        if locks:
            _lock(descriptor, wait=False)
    finally:
        os.close(parent)
    return temporary, descriptor


def _lock(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _remove_if_dead(directory: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _lock(descriptor, wait=False):
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(descriptor)


def check_output(
    path: Path, *, force: bool, replaceable: Callable[[Path], bool], kind: str = "a container"
) -> None:
    """Refuse an output path before any work is done; ``kind`` is what may be replaced.

    Raises
    ------
    OutputError
        If ``path`` exists without ``force``, or is something that must not be replaced.
    """
    try:
        recover(path)
        is_directory = path.is_dir() and not path.is_symlink()
        free = not is_directory and not path.exists() and not path.is_symlink()
        if free or (is_directory and not any(path.iterdir())):
            return
    except OSError as error:
        raise explain_os_error(error, path) from None
    if not is_directory or not replaceable(path):
        raise OutputError(
            f"{path}: exists and is not {kind}; it will not be replaced, choose another path"
        )
    if not force:
        raise OutputError(f"{path}: exists; give --force to replace it, or choose another path")


def _install(temporary: Path, path: Path) -> None:
    """Put ``temporary`` in its place; what stood there takes its name, to be removed."""
    filled = path.exists() and any(path.iterdir())
    if not filled:
        # Succeeds onto an empty directory, and fails if something has filled it since.
        temporary.rename(path)
    elif not _exchange(temporary, path):
        aside = _sibling(path, "old")
        path.rename(aside)
        try:
            temporary.rename(path)
        except OSError:
            aside.rename(path)
            raise
        # Only now: a name that `recover` looks for must not outlive the replacement.
        aside.rename(temporary)
    _sync_directory(path.parent)


def check_output_file(path: Path, *, force: bool) -> None:
    """Refuse the path of an output file before any work is done.

    Raises
    ------
    OutputError
        If it is a directory, is in none, or is a file that ``force`` does not let replace.
    """
    try:
        is_directory, is_file, in_directory = path.is_dir(), path.is_file(), path.parent.is_dir()
    except OSError as error:
        raise explain_os_error(error, path) from None
    if is_directory:
        raise OutputError(f"{path}: is a directory; expected a file name")
    if not in_directory:
        raise OutputError(f"{path}: the directory {path.parent} does not exist; create it first")
    if is_file and not force:
        raise OutputError(f"{path}: exists; give --force to replace it, or choose another path")


@contextmanager
def write_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file name that becomes ``path`` if the body completes.

    An existing file is replaced in one step. Special files (a pipe, ``/dev/stdout``) are written
    to as they are.

    Raises
    ------
    OutputError
        If the path cannot be written.
    """
    try:
        is_special = path.exists() and not path.is_file()
        is_directory = path.is_dir()
    except OSError as error:
        raise explain_os_error(error, path) from None
    if is_directory:
        raise OutputError(f"{path}: is a directory; expected a file name")
    if is_special:
        yield path
        return
    temporary = _sibling(path, "tmp")
    try:
        yield temporary
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
        _sync_directory(path.parent)
    except LarqlError:
        raise
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def set_aside(path: Path) -> Iterator[Callable[[], None]]:
    """Move a file aside while another is written in its place as it comes to be.

    Yields
    ------
    callable
        Puts the file back; does nothing where there was none. What is not put back is removed when
        the body ends.

    Raises
    ------
    OutputError
        If it cannot be moved.
    """
    aside = _sibling(path, "old")
    try:
        moved = path.is_file() and not path.is_symlink()
        if moved:
            path.rename(aside)
    except OSError as error:
        raise explain_os_error(error, path) from None

    def put_back() -> None:
        if moved:
            aside.replace(path)

    try:
        yield put_back
    finally:
        if moved:
            aside.unlink(missing_ok=True)
