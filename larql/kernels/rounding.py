"""Activations rounded to eight bits, in the layouts that the integer products read.

Vectors lie in blocks of W: 1 where rows are the lanes of a product, else
`larql.kernels.lane_columns.WIDTH`. Per block and per group of 32 elements there are the values
[8, W, 4], float32 terms [2, W] (d, and d times the sum of the group) and int32 sums [3, W] (of both
halves and of the group). Lanes past the last vector are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from larql.kernels import setup
from larql.kernels.check import address, float_matrix
from larql.kernels.integer_rows import SUMS, TERMS
from larql.kernels.integers import GROUP
from larql.kernels.jit import Variant, compiled_address, instruction, kernel, types
from larql.kernels.lane_columns import WIDTH
from larql.kernels.memory import load, load_f32, load_i64, offset, store_f32, store_i32, write
from larql.kernels.threads import launch
from larql.kernels.vector import (
    F32,
    I32,
    bits,
    lane_maximum,
    lane_sum,
    select,
    shuffled,
    splat,
    whole_lanes,
)

__all__ = ["QuantizedRows", "gather_rounded", "quantize_rows"]

Empty = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]
_SHARE = 8192  # elements of a quantising task
_FEW = 6  # vectors that are multiplied one by one
_ZERO, _MOST, _ROUND = np.float32(0), np.float32(127), np.float32(12582912.0)
_SIZE = np.int32(0x7FFFFFFF)
_WORD = ir.IntType(64)


@dataclass(frozen=True, eq=False)
class QuantizedRows:
    """Vectors rounded to eight bits; see the module for the layout.

    Attributes
    ----------
    count, columns : int
        C vectors of K elements.
    width : int
        W, vectors of a block.
    values : int8 [blocks, K / 32, 8, W, 4]
        Within ±127.
    terms : float32 [blocks, K / 32, 2, W]
        NaN where the group held a NaN or an infinity.
    sums : int32 [blocks, K / 32, 3, W]
    """

    count: int
    columns: int
    width: int
    values: npt.NDArray[np.int8]
    terms: npt.NDArray[np.float32]
    sums: npt.NDArray[np.int32]


@instruction
def _store_fours(typingctx: Any, address: Any, stride: Any, value: Any) -> Any:
    """Write 16 float32 that are small integers as int8, four together, `stride` bytes apart."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, stride, value = args
        small = builder.trunc(builder.fptosi(value, I32.llvm), ir.VectorType(ir.IntType(8), 16))
        for index in range(4):
            four = shuffled(builder, small, small, list(range(4 * index, 4 * index + 4)))
            place = builder.add(address, builder.mul(stride, _WORD(index)))
            write(builder, four, offset(builder, place, 0))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, F32), emit


@kernel
def _quantize(variant: Any, p: int, task: int, worker: int) -> None:
    x, values, terms, sums = load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    count, groups, width, share = (
        load_i64(p + 32), load_i64(p + 40), load_i64(p + 48), load_i64(p + 56)
    )  # fmt: skip
    for index in range(task * share, min(count * groups, (task + 1) * share)):
        c = index // groups
        place = c // width * groups + index % groups
        lane = c % width
        a, b = load(x + index * 128), load(x + index * 128 + 64)
        poison = lane_sum((a - a) + (b - b))  # zero, or NaN where something is not finite
        size_a, size_b = bits(bits(a) & splat(_SIZE)), bits(bits(b) & splat(_SIZE))
        largest = lane_maximum(select(size_a < size_b, size_b, size_a))
        scale = largest / _MOST
        if poison == _ZERO and scale > _ZERO:
            a = whole_lanes(a / splat(scale), splat(_MOST), splat(_ROUND))
            b = whole_lanes(b / splat(scale), splat(_MOST), splat(_ROUND))
        else:
            a, b = splat(_ZERO), splat(_ZERO)
            scale = poison
        four = 4 * width
        target = values + place * 32 * width + 4 * lane
        _store_fours(target, four, a)
        _store_fours(target + 4 * four, four, b)
        first, second = lane_sum(a), lane_sum(b)  # exact: integers far below 2^24
        at = terms + place * 2 * four + 4 * lane
        store_f32(at, scale)
        store_f32(at + four, scale * (first + second))
        at = sums + place * 3 * four + 4 * lane
        store_i32(at, np.int32(first))
        store_i32(at + four, np.int32(second))
        store_i32(at + 2 * four, np.int32(first + second))


@kernel
def _gather(variant: Any, p: int, task: int, worker: int) -> None:
    """Copy one vector of width 1 to its place among others."""
    source, source_terms, source_sums = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    values, terms, sums = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40)
    row, groups, width = load_i64(load_i64(p + 48) + task * 8), load_i64(p + 56), load_i64(p + 64)
    lane = task % width * 4
    for g in range(groups):
        old, new = row * groups + g, task // width * groups + g
        for four in range(8):  # four bytes at a time, as bits
            at = values + (new * 8 + four) * 4 * width + lane
            store_f32(at, load_f32(source + (old * 8 + four) * 4))
        for number in range(2):
            at = terms + (new * 2 + number) * 4 * width + lane
            store_f32(at, load_f32(source_terms + (old * 2 + number) * 4))
        for number in range(3):
            at = sums + (new * 3 + number) * 4 * width + lane
            store_f32(at, load_f32(source_sums + (old * 3 + number) * 4))


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


def _room_for(count: int, columns: int, width: int | None, empty: Empty) -> QuantizedRows:
    """Return memory for so many vectors, in the layout that products of so many read."""
    groups = columns // GROUP
    width = width or (1 if count < _FEW else WIDTH)
    shape = -(-count // width), groups
    found = QuantizedRows(
        count, columns, width,
        empty((*shape, 8, width, 4), np.int8),
        empty((*shape, TERMS, width), np.float32),
        empty((*shape, SUMS, width), np.int32),
    )  # fmt: skip
    if count % width:
        for array in (found.values, found.terms, found.sums):
            array[-1] = 0
    return found


def quantize_rows(
    x: npt.NDArray[np.float32], empty: Empty = np.empty, *, apart: bool = False
) -> QuantizedRows:
    """Round vectors to eight bits per element, with a scale for each group of 32.

    The scale d is the group's largest magnitude / 127; a value is x / d, rounded to the nearest
    integer, ties to even.

    Parameters
    ----------
    x : float32 [C, K], C-contiguous
        K a multiple of 32.
    empty : function
        (shape, dtype) -> C-contiguous array with any content; it makes the result's arrays.
    apart : bool
        Vectors one after another, of width 1, however many there are.

    Returns
    -------
    QuantizedRows

    Raises
    ------
    ValueError
        When `x` is no such array.
    """
    if x.ndim != 2 or x.shape[1] % GROUP:
        raise ValueError(f"x must be [C, multiple of {GROUP}], found shape {x.shape}")
    source = float_matrix(x, x.shape, "x")
    count, columns = x.shape
    found = _room_for(count, columns, 1 if apart else None, empty)
    groups = columns // GROUP
    share = _SHARE // GROUP
    parameters = np.array(
        (
            source, address(found.values), address(found.terms), address(found.sums), count,
            groups, found.width, share,
        ),
        np.int64,
    )  # fmt: skip
    launch(_compiled(_quantize), parameters, -(-count * groups // share), x, found)
    return found


def gather_rounded(
    x: QuantizedRows, rows: npt.NDArray[np.int64], empty: Empty = np.empty
) -> QuantizedRows:
    """Return some vectors that were rounded before, in the layout for so many.

    Parameters
    ----------
    x : QuantizedRows
        Of width 1.
    rows : int64 [n], C-contiguous
    empty : function
        As of :func:`quantize_rows`, whose bits these are.

    Raises
    ------
    ValueError
        When a row is not among those of `x`, or their width is not 1.
    """
    if x.width != 1:
        raise ValueError(f"rounded rows must have width 1, found {x.width}")
    if rows.dtype != np.int64 or rows.ndim != 1 or not rows.flags.c_contiguous:
        raise ValueError("rows must be contiguous int64")
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= x.count):
        raise ValueError(f"rows must be from 0 to {x.count - 1}")
    found = _room_for(len(rows), x.columns, None, empty)
    parameters = np.array(
        (
            address(x.values), address(x.terms), address(x.sums), address(found.values),
            address(found.terms), address(found.sums), address(rows), x.columns // GROUP,
            found.width,
        ),
        np.int64,
    )  # fmt: skip
    launch(_compiled(_gather), parameters, len(rows), x, rows, found)
    return found
