"""Sums, scales and soft caps, elementwise and in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import float_matrix, refuse
from larql.kernels.jit import (
    MATRIX,
    READ_VECTOR,
    REAL,
    VECTOR,
    Variant,
    compiled_address,
    compiled_entry,
    device,
    kernel,
)
from larql.kernels.math import tanh
from larql.kernels.memory import (
    address_of,
    load,
    load_f32,
    load_i64,
    load_part,
    store,
    store_part,
    words,
)
from larql.kernels.threads import begin, submit
from larql.kernels.vector import fma, select, splat

__all__ = ["add_row", "add_scaled", "clamp", "scale", "softcap"]

_SHARE = 16384


@kernel
def _add_scaled(variant: Any, p: int, task: int, worker: int) -> None:
    x, delta, size, factor = load_i64(p), load_i64(p + 8), load_i64(p + 16), splat(load_f32(p + 24))
    at = task * _SHARE
    end = min(at + _SHARE, size)
    while at + 16 <= end:
        store(x + at * 4, fma(load(delta + at * 4), factor, load(x + at * 4)))
        at += 16
    if at < end:
        n = end - at
        value = fma(load_part(delta + at * 4, n), factor, load_part(x + at * 4, n))
        store_part(x + at * 4, value, n)


@kernel
def _scale(variant: Any, p: int, task: int, worker: int) -> None:
    x, size, factor = load_i64(p), load_i64(p + 8), splat(load_f32(p + 16))
    at = task * _SHARE
    end = min(at + _SHARE, size)
    while at + 16 <= end:
        store(x + at * 4, load(x + at * 4) * factor)
        at += 16
    if at < end:
        store_part(x + at * 4, load_part(x + at * 4, end - at) * factor, end - at)


@kernel
def _softcap(variant: Any, p: int, task: int, worker: int) -> None:
    x, size, cap = load_i64(p), load_i64(p + 8), splat(load_f32(p + 16))
    at = task * _SHARE
    end = min(at + _SHARE, size)
    while at + 16 <= end:
        store(x + at * 4, cap * tanh(load(x + at * 4) / cap))
        at += 16
    if at < end:
        store_part(x + at * 4, cap * tanh(load_part(x + at * 4, end - at) / cap), end - at)


@device
def _cut(x: Any, most: Any) -> Any:
    low = select(x < splat(-most), splat(-most), x)
    return select(splat(most) < low, splat(most), low)


@kernel
def _clamp(variant: Any, p: int, task: int, worker: int) -> None:
    x, size, most = load_i64(p), load_i64(p + 8), load_f32(p + 16)
    at = task * _SHARE
    end = min(at + _SHARE, size)
    while at + 16 <= end:
        store(x + at * 4, _cut(load(x + at * 4), most))
        at += 16
    if at < end:
        store_part(x + at * 4, _cut(load_part(x + at * 4, end - at), most), end - at)


@kernel
def _enter_pair(
    run: int, pool: int, function: int, tasks: int, x: Any, delta: Any, factor: float
) -> None:
    begin(run, pool, function, tasks, words((
        address_of(x), address_of(delta), x.size, np.float32(factor),
    )))  # fmt: skip


@kernel
def _enter_one(run: int, pool: int, function: int, tasks: int, x: Any, factor: float) -> None:
    begin(run, pool, function, tasks, words((address_of(x), x.size, np.float32(factor))))


@kernel
def _add_row(variant: Any, p: int, task: int, worker: int) -> None:
    row, width = load_i64(p + 8), load_i64(p + 16)
    x = load_i64(p) + task * width * 4
    at = 0
    while at + 16 <= width:
        store(x + at * 4, load(x + at * 4) + load(row + at * 4))
        at += 16
    if at < width:
        value = load_part(x + at * 4, width - at) + load_part(row + at * 4, width - at)
        store_part(x + at * 4, value, width - at)


@kernel
def _enter_row(run: int, pool: int, function: int, tasks: int, x: Any, row: Any) -> None:
    begin(run, pool, function, tasks, words((address_of(x), address_of(row), row.size)))


@cache
def _entry_row() -> Callable[..., None]:
    return compiled_entry(_enter_row, MATRIX, READ_VECTOR)


@cache
def _entry_pair() -> Callable[..., None]:
    return compiled_entry(_enter_pair, VECTOR, VECTOR, REAL)


@cache
def _entry_one() -> Callable[..., None]:
    return compiled_entry(_enter_one, VECTOR, REAL)


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


def add_scaled(x: npt.NDArray[np.float32], delta: npt.NDArray[np.float32], scale: float) -> None:
    """Add `scale` * `delta` to `x` in place, each element rounded once.

    Parameters
    ----------
    x, delta : float32, C-contiguous, of one shape
    scale : float
        Rounded to float32. With 1 this is a plain sum.

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    if x.shape != delta.shape or not (x.flags.c_contiguous and delta.flags.c_contiguous):
        refuse(("x", x, x.shape), ("delta", delta, x.shape))
    try:
        submit(
            _entry_pair(), _compiled(_add_scaled), -(-x.size // _SHARE), x.reshape(-1),
            delta.reshape(-1), scale,
        )  # fmt: skip
    except TypeError:
        refuse(("x", x, x.shape), ("delta", delta, x.shape))


def add_row(x: npt.NDArray[np.float32], row: npt.NDArray[np.float32]) -> None:
    """Add `row` (float32 [N]) to each row of `x` (float32 [T, N]) in place; both C-contiguous.

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    if x.ndim != 2 or row.shape != x.shape[1:]:
        refuse(("row", row, x.shape[1:]))
    try:
        submit(_entry_row(), _compiled(_add_row), len(x), x, row)
    except TypeError:
        refuse(("x", x, x.shape), ("row", row, x.shape[1:]))


def scale(x: npt.NDArray[np.float32], factor: float) -> None:
    """Multiply `x` (float32, C-contiguous) by `factor`, rounded to float32, in place.

    Raises
    ------
    ValueError
        When `x` is no such array.
    """
    _in_place(_scale, x, factor)


def softcap(x: npt.NDArray[np.float32], cap: float) -> None:
    """Replace `x` (float32, C-contiguous) by cap * tanh(x / cap) in place.

    Raises
    ------
    ValueError
        When `x` is no such array or `cap` is not positive.
    """
    if not cap > 0:
        raise ValueError(f"a soft cap must be positive, found {cap}")
    _in_place(_softcap, x, cap)


def clamp(x: npt.NDArray[np.float32], most: float) -> None:
    """Cut `x` (float32, C-contiguous) to -most .. most in place; NaN stays NaN.

    Raises
    ------
    ValueError
        When `x` is no such array or `most` is not positive.
    """
    if not most > 0:
        raise ValueError(f"a bound must be positive, found {most}")
    _in_place(_clamp, x, most)


def _in_place(function: Any, x: npt.NDArray[np.float32], factor: float) -> None:
    float_matrix(x, x.shape, "x")
    submit(_entry_one(), _compiled(function), -(-x.size // _SHARE), x.reshape(-1), factor)
