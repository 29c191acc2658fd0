"""Giving back the compiler's memory, which a run needs only until its kernels are loaded.

LLVM is one library of more than a hundred megabytes, of which half is touched by its start and by
loading kernels. What is dropped here comes back, from the file, where it is used again.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

__all__ = ["release", "used"]

_DONTNEED = 4  # MADV_DONTNEED
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (r-[x-]p) .*/libllvmlite[^/]*$")
_TOUCHED = [True]  # by importing it


def used() -> None:
    """Note that the compiler has run."""
    _TOUCHED[0] = True


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
        text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except (AttributeError, OSError):
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    mapping: re.Match[str] | None = None
    for line in text.splitlines():
        if line[:1] in "0123456789abcdef":
            mapping = _MAPPING.match(line)
        elif mapping is not None and line.startswith("Anonymous:") and line.split()[1] == "0":
            begin, end = int(mapping[1], 16), int(mapping[2], 16)
            madvise(begin, end - begin, _DONTNEED)
