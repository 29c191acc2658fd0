"""Which pages of a file are in memory, and having them dropped."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt


def resident(path: Path) -> npt.NDArray[np.bool_]:
    """Which pages of a file are in memory."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with path.open("rb") as stream:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, stream.fileno(), 0)
        found = (ctypes.c_ubyte * pages)()
        status = libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), found)
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    assert status == 0
    return np.frombuffer(found, np.uint8) % 2 == 1


def drop(path: Path) -> None:
    """Ask the system to forget a file's pages; those that some process maps stay."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
