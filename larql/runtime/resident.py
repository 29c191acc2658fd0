"""What this process occupies, and giving back what it no longer needs."""

from __future__ import annotations

import ctypes

from larql.runtime.bench.arms.child import memory

__all__ = ["resident", "trim"]


def resident() -> dict[str, object]:
    """Return the memory of this process, in bytes; nothing where the system does not tell.

    Returns
    -------
    dict
        ``resident_bytes``; ``resident_file_bytes``, the part of them that is mapped from files
        and can be dropped; ``peak_resident_bytes``, the most so far.
    """
    try:
        found = memory({})
    except OSError:
        return {}
    return {
        "resident_bytes": found["resident_bytes"],
        "resident_file_bytes": found["file_bytes"],
        "peak_resident_bytes": found["peak_bytes"],
    }


def trim() -> None:
    """Return free memory of the C library's heap to the system, where that library can.

    What reads a large file into many small objects leaves holes of several times their size.
    """
    try:
        give_back = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return  # another C library than glibc
    give_back(ctypes.c_size_t(0))
