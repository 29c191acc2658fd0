"""What a softmax over a vocabulary needs of its logits, taken block by block: none is kept.

A survey goes over rows of logits, a block of columns at a time in ascending order. Of each row it
keeps the largest logits with their columns, the largest of all M with the sum of exp(x - M) in
float64, and for marked columns, whose logits are known beforehand, how many columns come before
them: those with a larger logit, or an equal one and a smaller column.

When a block raises M to M', the sum so far is multiplied by exp(M - M'). A block's own sum is that
of `larql.kernels.exponentials`, to which what is left after whole sixteens is added one by one. So
the bits of a row depend on its logits and the cut into blocks alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address, float_matrix
from larql.kernels.exponentials import exponential_sum, falling_series
from larql.kernels.jit import Variant, compiled_address, device, kernel
from larql.kernels.likelihood import exp_double, powers_of_two
from larql.kernels.memory import (
    load,
    load_f32,
    load_f64,
    load_i64,
    store_f32,
    store_f64,
    store_i64,
)
from larql.kernels.scan import any_lane, count_lanes
from larql.kernels.threads import launch
from larql.kernels.vector import lane_maximum, lane_sum, select, splat

__all__ = ["Survey", "survey"]


@dataclass(frozen=True)
class Survey:
    """What is known of rows of logits so far; :meth:`begin` makes one, :func:`survey` adds to it.

    Attributes
    ----------
    largest, total : float64 [T]
        The largest logit M, and the sum of exp(x - M).
    broken : int64 [T]
        Columns in which stood no finite number; other results of such a row mean nothing.
    heap_columns : int64 [T, k]
        Columns of the largest logits, a heap whose root comes last; -1 where there is none.
    heap_logits : float32 [T, k + 1]
        Those logits, and one number that means nothing.
    columns : int64 [m], or [T, m]
        The marked columns, of all rows or of each.
    marks : float32 [T, m]
        Their logits.
    before : int64 [T, m]
        How many columns come before them.
    """

    largest: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]
    broken: npt.NDArray[np.int64]
    heap_columns: npt.NDArray[np.int64]
    heap_logits: npt.NDArray[np.float32]
    columns: npt.NDArray[np.int64]
    marks: npt.NDArray[np.float32]
    before: npt.NDArray[np.int64]

    @classmethod
    def begin(
        cls, columns: npt.NDArray[np.int64], marks: npt.NDArray[np.float32], top: int
    ) -> Survey:
        """Return the survey of no column yet.

        Parameters
        ----------
        columns : int64 [m], or [T, m]
            Columns to mark in all rows, or in each.
        marks : float32 [T, m]
            Their logits in each row.
        top : int
            How many of the largest logits to keep, at least 1.
        """
        rows = len(marks)
        return cls(
            np.full(rows, -np.inf),
            np.zeros(rows),
            np.zeros(rows, np.int64),
            np.full((rows, top), -1, np.int64),
            np.full((rows, top + 1), -np.inf, np.float32),
            np.ascontiguousarray(columns, np.int64),
            np.ascontiguousarray(marks, np.float32),
            np.zeros(marks.shape, np.int64),
        )

    def top(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the largest logits' columns, int64 [T, k], and the logits, float32 [T, k].

        Larger ones come first, of equals the smaller column; behind the last there are -1 and -inf.
        """
        logits = self.heap_logits[:, :-1]
        order = np.lexsort((self.heap_columns, -logits), axis=1)
        return (
            np.take_along_axis(self.heap_columns, order, 1),
            np.take_along_axis(logits, order, 1),
        )


@device
def _keep(value: Any, column: int, logits: int, columns: int, count: int) -> None:
    """Put a logit in the place of the last of a heap, and what is last now at its root."""
    at = 0
    child = 1
    while child < count:
        least, other = load_f32(logits + child * 4), load_f32(logits + (child + 1) * 4)
        if child + 1 < count and (
            other < least
            or (
                other == least
                and load_i64(columns + (child + 1) * 8) > load_i64(columns + child * 8)
            )
        ):
            child += 1
            least = other
        if not least < value:  # of equals the new one comes last: its column is the largest
            break
        store_f32(logits + at * 4, least)
        store_i64(columns + at * 8, load_i64(columns + child * 8))
        at = child
        child = 2 * at + 1
    store_f32(logits + at * 4, value)
    store_i64(columns + at * 8, column)


@device
def _take(row: int, first: int, end: int, base: int, logits: int, columns: int, count: int) -> None:
    for i in range(first, end):
        value = load_f32(row + i * 4)
        if value > load_f32(logits):
            _keep(value, base + i, logits, columns, count)


@device
def _broken(row: int, first: int, end: int) -> int:
    found = 0
    for i in range(first, end):
        value = load_f32(row + i * 4)
        if value - value != np.float32(0):
            found += 1
    return found


@device
def _count(row: int, first: int, end: int, mark: Any, equal: bool) -> int:
    whole = (end - first) // 16
    found: int = count_lanes(row + first * 4, whole, mark, equal)
    for i in range(first + whole * 16, end):
        value = load_f32(row + i * 4)
        if value > mark or (equal and value == mark):
            found += 1
    return found


@device
def _larger(a: Any, b: Any) -> Any:
    return select(a > b, a, b)


@kernel
def _row(variant: Any, p: int, task: int, worker: int) -> None:
    width, base = load_i64(p + 8), load_i64(p + 16)
    row = load_i64(p) + task * width * 4
    sums, broken = load_i64(p + 24) + task * 8, load_i64(p + 32) + task * 8
    largest = load_i64(p + 40) + task * 8
    kept, marked = load_i64(p + 48), load_i64(p + 56)
    logits, columns = load_i64(p + 64) + task * (kept + 1) * 4, load_i64(p + 72) + task * kept * 8
    places, powers = load_i64(p + 80) + task * load_i64(p + 128), load_i64(p + 104)
    marks, before = load_i64(p + 88) + task * marked * 4, load_i64(p + 96) + task * marked * 8
    whole, steps = width // 16 * 16, width // 64 * 64
    poison = splat(np.float32(0))
    highest = splat(np.float32(-np.inf))
    for at in range(0, steps, 64):
        one, two = load(row + at * 4), load(row + at * 4 + 64)
        three, four = load(row + at * 4 + 128), load(row + at * 4 + 192)
        poison = poison + (((one - one) + (two - two)) + ((three - three) + (four - four)))
        most_here = _larger(_larger(one, two), _larger(three, four))
        if any_lane(most_here > splat(load_f32(logits))):
            _take(row, at, at + 64, base, logits, columns, kept)
        highest = _larger(most_here, highest)
    for at in range(steps, whole, 16):
        one = load(row + at * 4)
        poison = poison + (one - one)
        highest = _larger(one, highest)
    _take(row, steps, width, base, logits, columns, kept)
    checked = 0 if lane_sum(poison) != np.float32(0) else whole
    store_i64(broken, load_i64(broken) + _broken(row, checked, width))
    if load_i64(broken) > 0:
        return
    old = load_f64(largest)
    most = max(old, np.float64(lane_maximum(highest)))
    for i in range(whole, width):
        most = max(most, np.float64(load_f32(row + i * 4)))
    total = exponential_sum(row, whole // 16, most, load_i64(p + 112), load_i64(p + 120))
    for i in range(whole, width):
        total += exp_double(np.float64(load_f32(row + i * 4)) - most, powers)
    if old < most:
        earlier = load_f64(sums)
        if earlier > 0.0:
            total += earlier * exp_double(old - most, powers)
    else:
        total += load_f64(sums)
    store_f64(sums, total)
    store_f64(largest, most)
    for m in range(marked):
        mark, own = load_f32(marks + m * 4), load_i64(places + m * 8) - base
        middle = min(max(own, 0), width)
        found = _count(row, 0, middle, mark, True) + _count(row, middle, width, mark, False)
        store_i64(before + m * 8, load_i64(before + m * 8) + found)


@cache
def _compiled() -> int:
    return compiled_address(_row, Variant(setup.current().level))


def survey(x: npt.NDArray[np.float32], first: int, found: Survey) -> None:
    """Add a block of columns to what is known of rows of logits.

    Parameters
    ----------
    x : float32 [T, columns], C-contiguous
        The next columns of each row, at least one.
    first : int
        Number of the block's first column.
    found : Survey
        Of as many rows; its arrays are changed.

    Raises
    ------
    ValueError
        When `x` is no such array.
    """
    rows = len(found.largest)
    if x.ndim != 2 or x.shape[0] != rows or x.shape[1] < 1:
        raise ValueError(f"x must be {rows} rows of at least one column, found shape {x.shape}")
    top, marked = found.heap_columns.shape[1], found.columns.shape[-1]
    apart = found.columns.strides[0] if found.columns.ndim == 2 else 0
    place = float_matrix(x, x.shape, "x")
    arrays: tuple[npt.NDArray[Any], ...] = (
        found.heap_logits, found.heap_columns, found.columns, found.marks, found.before,
        powers_of_two(), falling_series(),
    )  # fmt: skip
    parameters = np.array(
        [
            place, x.shape[1], first, address(found.total), address(found.broken),
            address(found.largest), top, marked, *[address(array) for array in arrays],
            len(falling_series()), apart,
        ],
        np.int64,
    )  # fmt: skip
    launch(_compiled(), parameters, rows)
