"""RMS and layer normalisation of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import EMPTY, float_matrix, refuse
from larql.kernels.jit import (
    MATRIX,
    READ_VECTOR,
    REAL,
    WORD,
    Variant,
    compiled_address,
    compiled_entry,
    device,
    kernel,
)
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
from larql.kernels.vector import fma, lane_numbers, lane_sum, root, select, splat

__all__ = ["layer_norm", "rms_norm"]

_SHARE = 8192  # elements of a task
_ZERO, _ONE = np.float32(0), np.float32(1)


@device
def _squares(x: int, width: int) -> Any:
    lanes = splat(_ZERO)
    whole = width // 16 * 16
    for at in range(0, whole, 16):
        value = load(x + at * 4)
        lanes = fma(value, value, lanes)
    if whole < width:
        value = load_part(x + whole * 4, width - whole)
        lanes = fma(value, value, lanes)
    return lane_sum(lanes)


@device
def _total(x: int, width: int) -> Any:
    lanes = splat(_ZERO)
    whole = width // 16 * 16
    for at in range(0, whole, 16):
        lanes = lanes + load(x + at * 4)
    if whole < width:
        lanes = lanes + load_part(x + whole * 4, width - whole)
    return lane_sum(lanes)


@device
def _spread_squares(x: int, width: int, mean: Any) -> Any:
    lanes = splat(_ZERO)
    whole = width // 16 * 16
    for at in range(0, whole, 16):
        value = load(x + at * 4) - mean
        lanes = fma(value, value, lanes)
    if whole < width:
        inside = lane_numbers() < splat(np.int32(width - whole))
        value = select(inside, load_part(x + whole * 4, width - whole) - mean, splat(_ZERO))
        lanes = fma(value, value, lanes)
    return lane_sum(lanes)


@device
def _factor(weight: int, at: int, count: int, offset: Any) -> Any:
    if weight == 0:
        return splat(_ONE)
    if count == 16:
        return load(weight + at * 4) + offset
    return load_part(weight + at * 4, count) + offset


@device
def _shift(bias: int, at: int, count: int) -> Any:
    if bias == 0:
        return splat(_ZERO)
    if count == 16:
        return load(bias + at * 4)
    return load_part(bias + at * 4, count)


@kernel
def _rms(variant: Any, p: int, task: int, worker: int) -> None:
    x, weights, out = load_i64(p), load_i64(p + 8), load_i64(p + 24)
    rows, width, share = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    offset, eps, cycle = splat(load_f32(p + 56)), load_f32(p + 64), load_i64(p + 72)
    for row in range(task * share, min(rows, (task + 1) * share)):
        source, target = x + row * width * 4, out + row * width * 4
        mean = _squares(source, width) / np.float32(width)
        rate = splat(_ONE / root(mean + eps))
        whole = width // 16 * 16
        weight = 0
        if weights != 0:
            weight = weights + row % cycle * width * 4
        for at in range(0, whole, 16):
            value = load(source + at * 4) * rate
            store(target + at * 4, value * _factor(weight, at, 16, offset))
        if whole < width:
            rest = width - whole
            value = load_part(source + whole * 4, rest) * rate
            store_part(target + whole * 4, value * _factor(weight, whole, rest, offset), rest)


@kernel
def _layer(variant: Any, p: int, task: int, worker: int) -> None:
    x, weight, bias, out = load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    rows, width, share = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    offset, eps = splat(load_f32(p + 56)), load_f32(p + 64)
    for row in range(task * share, min(rows, (task + 1) * share)):
        source, target = x + row * width * 4, out + row * width * 4
        mean = splat(_total(source, width) / np.float32(width))
        variance = _spread_squares(source, width, mean) / np.float32(width)
        rate = splat(_ONE / root(variance + eps))
        whole = width // 16 * 16
        for at in range(0, whole, 16):
            value = (load(source + at * 4) - mean) * rate
            value = fma(value, _factor(weight, at, 16, offset), _shift(bias, at, 16))
            store(target + at * 4, value)
        if whole < width:
            rest = width - whole
            value = (load_part(source + whole * 4, rest) - mean) * rate
            factor = _factor(weight, whole, rest, offset)
            store_part(target + whole * 4, fma(value, factor, _shift(bias, whole, rest)), rest)


@kernel
def _enter(
    run: int, pool: int, function: int, tasks: int, x: Any, weight: Any, bias: Any, out: Any,
    share: int, offset: float, eps: float,
) -> None:  # fmt: skip
    rows, width = x.shape
    begin(run, pool, function, tasks, words((
        address_of(x), address_of(weight) if weight.size else 0,
        address_of(bias) if bias.size else 0, address_of(out), rows, width, share,
        np.float32(offset), np.float32(eps), weight.size // max(1, width),
    )))  # fmt: skip


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(_enter, MATRIX, READ_VECTOR, READ_VECTOR, MATRIX, WORD, REAL, REAL)


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


def rms_norm(
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32] | None,
    offset: float,
    eps: float,
    out: npt.NDArray[np.float32],
) -> None:
    """Write x / sqrt(mean(x^2) + eps) * (weight + offset) to `out`, row by row.

    Parameters
    ----------
    x, out : float32 [T, H], C-contiguous
        May be the same array; [T * heads, dim] normalises heads.
    weight : float32 [H], [n * H] or None
        With n times as many, row r has those of part r mod n. None stands for a factor of one,
        without offset.
    offset : float
        Added to the weight: 1 where a model stores weights around zero.
    eps : float

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    _normalise(_rms, x, weight, None, offset, eps, out)


def layer_norm(
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32] | None,
    bias: npt.NDArray[np.float32] | None,
    offset: float,
    eps: float,
    out: npt.NDArray[np.float32],
) -> None:
    """Write (x - mean) / sqrt(variance + eps) * (weight + offset) + bias to `out`, row by row.

    Parameters are those of `rms_norm`, the weight [H]; `bias` is float32 [H] or None.
    """
    _normalise(_layer, x, weight, bias, offset, eps, out)


def _normalise(
    function: Any,
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32] | None,
    bias: npt.NDArray[np.float32] | None,
    offset: float,
    eps: float,
    out: npt.NDArray[np.float32],
) -> None:
    shape = x.shape
    rows, width = shape
    factor = EMPTY if weight is None else weight
    shift = EMPTY if bias is None else bias
    if (
        out.shape != shape
        or (weight is not None and not _serves(factor, x, cycled=function is _rms))
        or (bias is not None and shift.shape != (width,))
    ):
        _explain(x, weight, bias, out)
    share = max(1, _SHARE // max(1, width))
    try:
        submit(
            _entry(), _compiled(function), -(-rows // share), x, factor, shift, out, share, offset,
            eps,
        )  # fmt: skip
    except TypeError:
        _explain(x, weight, bias, out)


def _serves(weight: npt.NDArray[np.float32], x: npt.NDArray[np.float32], cycled: bool) -> bool:
    """Return whether a weight has the rows' width, or that of several of them where it may."""
    rows, width = x.shape
    if weight.ndim != 1 or weight.size < 1 or not width:
        return weight.shape == (width,)
    parts = weight.size // width
    return weight.size == width or (cycled and weight.size == parts * width and rows % parts == 0)


def _explain(
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32] | None,
    bias: npt.NDArray[np.float32] | None,
    out: npt.NDArray[np.float32],
) -> NoReturn:
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None:
            float_matrix(vector, (x.shape[1],), name)
    refuse(("x", x, x.shape), ("out", out, x.shape))
