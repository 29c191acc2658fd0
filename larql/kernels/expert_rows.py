"""What is done to the products of chosen experts: biases by expert, and rows that come in turn."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address, float_matrix
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import load_f32, load_i64, store_f32
from larql.kernels.threads import launch

__all__ = ["add_rows_of", "in_turn"]


@kernel
def _add_rows_of(variant: Any, p: int, task: int, worker: int) -> None:
    width, number = load_i64(p + 24), load_i64(load_i64(p + 8) + task * 8)
    x = load_i64(p) + task * width * 4
    row = load_i64(p + 16) + number * load_i64(p + 32)
    for at in range(0, width * 4, 4):
        store_f32(x + at, load_f32(x + at) + load_f32(row + at))


@kernel
def _in_turn(variant: Any, p: int, task: int, worker: int) -> None:
    width = load_i64(p + 24)
    source = load_i64(p) + task * width * 8
    first, second = load_i64(p + 8) + task * width * 4, load_i64(p + 16) + task * width * 4
    for at in range(0, width * 4, 4):
        store_f32(first + at, load_f32(source + 2 * at))
        store_f32(second + at, load_f32(source + 2 * at + 4))


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


def add_rows_of(
    x: npt.NDArray[np.float32],
    table: npt.NDArray[np.float32],
    chosen: npt.NDArray[np.int64],
    first: int = 0,
) -> None:
    """Add to each row of `x` a part of the row of `table` that is chosen for it, in place.

    Parameters
    ----------
    x : float32 ``[n, width]``
    table : float32 ``[experts, columns]``
    chosen : int64 ``[n]``
        Within the table whenever this runs: it may not be known yet where a step is recorded.
    first : int
        Column of `table` at which the part begins.

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    (count, width), columns = x.shape, table.shape[1]
    if not 0 <= first <= columns - width or chosen.shape != (count,):
        raise ValueError(f"cannot add columns {first} to {first + width} of {columns} for {count}")
    if chosen.dtype != np.int64 or not chosen.flags.c_contiguous:
        raise ValueError("chosen must be contiguous int64")
    words = (
        float_matrix(x, x.shape, "x"), address(chosen),
        float_matrix(table, table.shape, "table") + 4 * first, width, 4 * columns,
    )  # fmt: skip
    launch(_compiled(_add_rows_of), np.array(words, np.int64), count, x, table, chosen)


def in_turn(
    fused: npt.NDArray[np.float32],
    first: npt.NDArray[np.float32],
    second: npt.NDArray[np.float32],
) -> None:
    """Part rows ``[n, 2 width]`` into their even and odd columns, ``[n, width]``; all float32.

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    count, width = first.shape
    words = (
        float_matrix(fused, (count, 2 * width), "fused"),
        float_matrix(first, (count, width), "first"),
        float_matrix(second, (count, width), "second"), width,
    )  # fmt: skip
    launch(_compiled(_in_turn), np.array(words, np.int64), count, fused, first, second)
