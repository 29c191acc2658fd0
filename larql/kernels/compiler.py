"""Giving back the compiler's memory, which a run needs only until its kernels are loaded.

LLVM is one library of more than a hundred megabytes, of which half is touched by its start and by
loading kernels. What is dropped here comes back, from the file, where it is used again.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

__all__ = ["release", "uninterrupted", "used"]

_DONTNEED = 4  # MADV_DONTNEED
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p .*/libllvmlite[^/]*$", re.MULTILINE)
# Of an entry of pagemap: in memory, or swapped out; and whether it is the file's own page.
_EXISTS, _OF_FILE = np.uint64(3 << 62), np.uint64(1 << 61)
_TOUCHED = [True]  # by importing it


def used() -> None:
    """Note that the compiler has run."""
    _TOUCHED[0] = True


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let what SIGINT and SIGTERM do wait until the body has ended.

    LLVM calls Python back while it compiles. What a signal raises there is lost, and a kernel
    stays half made.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread alone
        return
    came: list[int] = []
    before = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(handler := signal.getsignal(number))
    }
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for arrived in came:
        before[signal.Signals(arrived)](arrived, None)


def release() -> None:
    """Drop the compiler's pages from memory, if it has run since they were dropped last.

    Only pages that are as the file has them are dropped: read-only mappings of which the system
    says that no page was ever changed.
    """
    if not _TOUCHED[0]:
        return
    _TOUCHED[0] = False
    try:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        for found in _MAPPING.finditer(maps):
            begin, end = int(found[1], 16), int(found[2], 16)
            if _unchanged(begin, end):
                madvise(begin, end - begin, _DONTNEED)
    except (AttributeError, OSError):
        return  # a system that does not tell, or does not take pages back


def _unchanged(begin: int, end: int) -> bool:
    """Return whether all pages of a mapping that exist are the file's own."""
    first, count = begin // mmap.PAGESIZE, (end - begin) // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(8 * first)
        entries = np.frombuffer(pagemap.read(8 * count), np.uint64)
    changed = (entries & _EXISTS != 0) & (entries & _OF_FILE == 0)
    return len(entries) == count and not changed.any()
