"""Hashing many files at once; what is found hangs neither on threads nor on the order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock

from larql.errors import ContainerError
from larql.format.index import FileEntry
from larql.format.progress import Progress
from larql.format.segment import hash_file

__all__ = ["hash_files", "largest_first"]


class _StoppedError(Exception):
    """The work was given up while a file was read."""


def largest_first(sizes: Mapping[str, int]) -> Sequence[str]:
    """Return in which order to begin: no large file is left for when other threads are done."""
    return sorted(sizes, key=lambda name: -sizes[name])


def hash_files(
    directory: Path, sizes: Mapping[str, int], threads: int | None, progress: Progress
) -> dict[str, FileEntry | ContainerError]:
    """Hash files of a directory.

    A file is hashed by one thread, as SHA-256 is one chain over its bytes.

    Parameters
    ----------
    directory : Path
    sizes : mapping of str to int
        The files, and how many bytes each is expected to have.
    threads : int or None
        At most so many files at once; None: one for each core that may be used.
    progress : Progress
        Told of the bytes read, by one thread at a time.

    Returns
    -------
    dict
        For each file what it has, or why that cannot be said.
    """
    stop, lock = Event(), Lock()

    def advance(count: int) -> None:
        if stop.is_set():
            raise _StoppedError
        with lock:
            progress.advance(count)

    def one(name: str) -> FileEntry | ContainerError:
        try:
            return hash_file(directory / name, advance)
        except ContainerError as error:
            return error

    order = largest_first(sizes)
    workers = min(threads or len(os.sched_getaffinity(0)), max(1, len(order)))
    progress.start("verify", sum(sizes.values()))
    # An interruption arrives in this thread, which waits for the others when the pool is left.
    with ThreadPoolExecutor(workers, thread_name_prefix="larql-hash") as pool:
        try:
            found = list(pool.map(one, order))
        except BaseException:
            stop.set()
            raise
        finally:
            progress.finish()
    return dict(zip(order, found, strict=True))
