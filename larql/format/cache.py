"""The user's cache directory: pulled models, extracted containers, compiled kernels.

::

    <root>/models/<scheme>/<entry>    fetched checkpoints, one directory each
    <root>/containers/<entry>         containers extracted for a command
    <root>/kernels/<entry>            compiled kernels
    <root>/digests.sqlite             remembered SHA-256 of files (:mod:`larql.format.digest`)

The root is ``LARQL_CACHE_DIR`` if set, else the platform's cache directory for ``larql``. Names
that begin with a dot are locks and unfinished work, never entries.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from larql.errors import OutputError, PlatformError, UsageError
from larql.format.digest import remember_sha256, sha256_of

__all__ = [
    "KINDS",
    "CacheEntry",
    "Kind",
    "cache_dir",
    "cache_root",
    "entries",
    "locked",
    "remember_sha256",
    "remove",
    "sha256_of",
    "sweep",
]

Kind = Literal["models", "containers", "kernels"]
KINDS: tuple[Kind, ...] = ("models", "containers", "kernels")

_ADVICE = "set LARQL_CACHE_DIR to a directory you may write to"
_ABANDONED_SECONDS = 3600.0
_TRASH = ".trash-"


@dataclass(frozen=True)
class CacheEntry:
    """One thing in the cache.

    Attributes
    ----------
    name : str
        A plain name without separators.
    kind : str
        ``models``, ``containers`` or ``kernels``.
    bytes : int
        Sum of the sizes of its files.
    path : Path
        Where it is.
    """

    name: str
    kind: Kind
    bytes: int
    path: Path


def cache_root() -> Path:
    """Return the absolute root of the cache; it need not exist.

    Raises
    ------
    PlatformError
        If there is neither ``LARQL_CACHE_DIR`` nor a home directory.
    """
    chosen = os.environ.get("LARQL_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_dir

    # Without a home some versions raise, others leave '~' as it is, and the cache would land in the
    # working directory.
    with suppress(RuntimeError):
        root = Path(user_cache_dir("larql"))
        if root.is_absolute():
            return root
    raise PlatformError(f"no cache directory: the user has no home directory; {_ADVICE}")


def cache_dir(kind: Kind) -> Path:
    """Return the directory of one kind, created if missing and known to be writable.

    Raises
    ------
    PlatformError
        If it cannot be created or written to.
    """
    path = cache_root() / kind
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlatformError(
            f"{path}: cannot make the cache directory: {error.strerror}; {_ADVICE}"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise PlatformError(f"{path}: the cache directory is not writable; {_ADVICE}")
    return path


def entries(kind: Kind | None = None) -> list[CacheEntry]:
    """Return what the cache holds, sorted by kind and name; an absent cache holds nothing.

    Raises
    ------
    PlatformError
        If the cache cannot be listed.
    """
    found = []
    for wanted in KINDS if kind is None else (kind,):
        for path in _entry_paths(wanted):
            found.append(CacheEntry(path.name, wanted, _size(path), path))
    return found


def remove(name: str, kind: Kind | None = None) -> CacheEntry:
    """Remove one entry: renamed out of sight in one step, then deleted.

    Parameters
    ----------
    name : str
        As :func:`entries` gives it.
    kind : str, optional
        Where to look; needed only when several kinds have an entry of this name.

    Raises
    ------
    UsageError
        If the name is not a plain name, is unknown, or is ambiguous.
    OutputError
        If the entry cannot be removed.
    """
    if not name or name.startswith(".") or any(c in name for c in "/\\\0"):
        raise UsageError(
            f"{name!r} is not the name of a cache entry; see 'larql cache ls' for the names"
        )
    wanted = KINDS if kind is None else (kind,)
    found = [(k, path) for k in wanted for path in _entry_paths(k) if path.name == name]
    if not found:
        raise UsageError(f"no entry {name!r} in the cache; see 'larql cache ls' for the names")
    if len(found) > 1:
        places = ", ".join(str(path) for _, path in found)
        raise UsageError(f"{name!r} names several entries ({places}); give --kind")
    where, path = found[0]
    entry = CacheEntry(name, where, _size(path), path)
    _delete(path)
    return entry


def sweep(kind: Kind | None = None) -> int:
    """Delete what interrupted commands left behind; return its bytes.

    Unfinished work that was touched within the last hour is taken to be in progress and stays.
    """
    freed = 0
    for wanted in KINDS if kind is None else (kind,):
        for parent in _parents(wanted):
            for path in _listing(parent):
                if not path.name.startswith(".") or path.name.endswith(".lock"):
                    continue
                age = time.time() - _newest(path)
                if age > _ABANDONED_SECONDS or path.name.startswith(_TRASH):
                    freed += _size(path)
                    _delete(path)
    return freed


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes on ``path``, an empty file that stays behind.

    Where the file system has no locks the body runs without one.
    """
    import fcntl

    with path.open("a") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _parents(kind: Kind) -> list[Path]:
    """Return the directories whose children are entries of ``kind``."""
    directory = cache_root() / kind
    if kind != "models":
        return [directory]
    return [p for p in _listing(directory) if not p.name.startswith(".") and p.is_dir()]


def _entry_paths(kind: Kind) -> list[Path]:
    return [
        path
        for parent in _parents(kind)
        for path in _listing(parent)
        if not path.name.startswith(".")
    ]


def _listing(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PlatformError(
            f"{directory}: cannot list the cache: {error.strerror}; {_ADVICE}"
        ) from None


def _size(path: Path) -> int:
    """Return the bytes of all files under ``path``; links count as themselves."""
    total = 0
    for file in _walk(path):
        try:
            total += file.lstat().st_size
        except OSError:
            continue
    return total


def _newest(path: Path) -> float:
    newest = 0.0
    for file in (path, *_walk(path)):
        try:
            newest = max(newest, file.lstat().st_mtime)
        except OSError:
            continue
    return newest


def _walk(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for directory, _, names in os.walk(path):
        for name in names:
            yield Path(directory) / name


def _delete(path: Path) -> None:
    trash = path.with_name(f"{_TRASH}{secrets.token_hex(6)}")
    try:
        path.rename(trash)
        if trash.is_symlink() or not trash.is_dir():
            trash.unlink()
        else:
            shutil.rmtree(trash)
    except OSError as error:
        raise OutputError(f"{path}: cannot be removed: {error.strerror}; check it") from None
