"""Rows of new positions written into a ring: position p stands in row p mod capacity."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.jit import MATRIX, WORD, Variant, compiled_address, compiled_entry, kernel
from larql.kernels.memory import (
    address_of,
    load,
    load_i64,
    load_part,
    store,
    store_part,
    words,
)
from larql.kernels.threads import begin, depends_on_position, submit

__all__ = ["write_rows"]

_START = 4  # the word that holds the first row's position
_SHARE = 64  # rows of a task


@kernel
def _write(variant: Any, p: int, task: int, worker: int) -> None:
    rows, ring, count, width = load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    start, capacity = load_i64(p + 32), load_i64(p + 40)
    whole = width // 16 * 16
    for t in range(task * _SHARE, min(count, (task + 1) * _SHARE)):
        source, target = rows + t * width * 4, ring + (start + t) % capacity * width * 4
        for at in range(0, whole, 16):
            store(target + at * 4, load(source + at * 4))
        if whole < width:
            store_part(
                target + whole * 4, load_part(source + whole * 4, width - whole), width - whole
            )


@kernel
def _enter(
    run: int, pool: int, function: int, tasks: int, rows: Any, ring: Any, start: int
) -> None:
    begin(run, pool, function, tasks, words((
        address_of(rows), address_of(ring), rows.shape[0], rows.shape[1], start, ring.shape[0],
    )))  # fmt: skip


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(_enter, MATRIX, MATRIX, WORD)


@cache
def _compiled() -> int:
    return compiled_address(_write, Variant(setup.current().level))


def write_rows(rows: npt.NDArray[np.float32], ring: npt.NDArray[np.float32], start: int) -> None:
    """Copy rows of positions ``start, start + 1, …`` to where the ring keeps them.

    Parameters
    ----------
    rows : float32 [T, width], C-contiguous
    ring : float32 [capacity, width], C-contiguous
        Changed in place.
    start : int
        Absolute position of the first row.

    Raises
    ------
    ValueError
        When the arrays do not fit, or the ring has fewer rows than are written.
    """
    fits = rows.ndim == ring.ndim == 2 and rows.shape[1] == ring.shape[1]
    if not fits or len(rows) > len(ring) or start < 0:
        raise ValueError(f"rows {rows.shape} do not fit a ring {ring.shape} at position {start}")
    try:
        submit(_entry(), _compiled(), -(-len(rows) // _SHARE), rows, ring, start)
    except TypeError:
        raise ValueError("rows and ring must be contiguous float32 matrices") from None
    depends_on_position(_START)
