"""Products with activations rounded to eight bits: faster for one vector, and approximate.

Each block of 32 activations becomes a float32 scale and 32 integers within ±127. The products are
then exact integers, so that they have the same bits on every instruction set; what is summed in
float32, and in which order, is said in `larql.kernels.integer_tile`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import flat_bytes, float_matrix, refuse
from larql.kernels.encodings import block
from larql.kernels.expand import PREPARED, prepare, prepared_room
from larql.kernels.integer_tile import integer_tile, store_rounded, store_sums
from larql.kernels.integers import GROUP, INTEGERS
from larql.kernels.jit import (
    BYTES,
    MATRIX,
    WORD,
    Variant,
    compiled_address,
    compiled_entry,
    kernel,
    types,
)
from larql.kernels.memory import address_of, load, load_i64, store_f32, words
from larql.kernels.product import batch_rows, share_rows
from larql.kernels.shape import narrow, scale_count, tile_columns, tile_rows
from larql.kernels.threads import begin, submit, threads
from larql.kernels.vector import bits, lane_maximum, lane_sum, select, splat, whole_lanes

__all__ = ["QuantizedRows", "product_q8", "quantize_rows", "takes_integers"]

_TILE = {"avx512": (4, 2), "avx2": (4, 1), "portable": (1, 1)}
_SHARE = 8192  # elements of a quantising task
_ZERO, _MOST, _ROUND = np.float32(0), np.float32(127), np.float32(12582912.0)
_SIZE = np.int32(0x7FFFFFFF)


@dataclass(frozen=True)
class QuantizedRows:
    """Vectors rounded to eight bits.

    Attributes
    ----------
    values : int8 [C, K]
        Within ±127.
    scales : float32 [C, K / 32]
        Of each block of 32; NaN where the block held a NaN or an infinity.
    sums : int32 [C, K / 4]
        Of each four neighbouring values.
    """

    values: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    sums: npt.NDArray[np.int32]


@kernel
def _quantize(variant: Any, p: int, task: int, worker: int) -> None:
    x, values, scales = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    sums, groups, share = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40)
    for group in range(task * share, min(groups, (task + 1) * share)):
        a, b = load(x + group * 128), load(x + group * 128 + 64)
        poison = lane_sum((a - a) + (b - b))  # zero, or NaN where something is not finite
        size_a, size_b = bits(bits(a) & splat(_SIZE)), bits(bits(b) & splat(_SIZE))
        largest = lane_maximum(select(size_a < size_b, size_b, size_a))
        scale = largest / _MOST
        place = values + group * 32
        if poison == _ZERO and scale > _ZERO:
            store_rounded(place, whole_lanes(a / splat(scale), splat(_MOST), splat(_ROUND)))
            store_rounded(place + 16, whole_lanes(b / splat(scale), splat(_MOST), splat(_ROUND)))
        else:
            store_rounded(place, splat(_ZERO))
            store_rounded(place + 16, splat(_ZERO))
            scale = poison
        store_f32(scales + group * 4, scale)
        store_sums(place, sums + group * 32)


@kernel
def _enter_quantize(
    run: int, pool: int, function: int, tasks: int, x: Any, values: Any, scales: Any, sums: Any,
    share: int,
) -> None:  # fmt: skip
    begin(run, pool, function, tasks, words((
        address_of(x), address_of(values), address_of(scales), address_of(sums), scales.size, share,
    )))  # fmt: skip


@kernel
def _rows(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    blocks, values, scales, sums = (
        load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    )  # fmt: skip
    columns, count, out = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72)
    share, batch = load_i64(p + 80), load_i64(p + 88)
    room = prepared_room(variant)
    row = task * share
    end = min(row + share, rows)
    wide = tile_columns(variant)
    while row < end:
        height = min(batch, end - row)
        first = weight + row * stride
        prepare(variant, first, height * blocks, room)
        column = 0
        while column < count:
            left = count - column
            v, d = values + column * columns, scales + column * (columns // GROUP) * 4
            s, o = sums + column * columns, out + (column * rows + row) * 4
            for r in range(0, height, tile_rows(variant)):
                numbers = room + r * blocks * scale_count(variant) * 4
                if left >= wide:
                    integer_tile(
                        variant, first + r * stride, stride, height - 1 - r, numbers,
                        height * stride, blocks, v, d, s, columns, wide - 1, o + r * 4, rows * 4,
                    )  # fmt: skip
                else:
                    integer_tile(
                        narrow(variant, 1), first + r * stride, stride, height - 1 - r, numbers,
                        height * stride, blocks, v, d, s, columns, 0, o + r * 4, rows * 4,
                    )  # fmt: skip
            column += wide if left >= wide else 1
        row += height


@kernel
def _enter(
    run: int, pool: int, function: int, tasks: int, weight: Any, values: Any, scales: Any,
    sums: Any, out: Any, row_bytes: int, blocks: int, share: int, batch: int,
) -> None:  # fmt: skip
    count, rows = out.shape
    begin(run, pool, function, tasks, words((
        address_of(weight), row_bytes, rows, blocks, address_of(values), address_of(scales),
        address_of(sums), values.shape[1], count, address_of(out), share, batch,
    )))  # fmt: skip


_SMALL, _COUNTS = types.Array(types.int8, 2, "C"), types.Array(types.int32, 2, "C")


@cache
def _entry_quantize() -> Callable[..., None]:
    return compiled_entry(_enter_quantize, MATRIX, _SMALL, MATRIX, _COUNTS, WORD)


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(_enter, BYTES, _SMALL, MATRIX, _COUNTS, MATRIX, *[WORD] * 4)


@cache
def _quantizer() -> int:
    return compiled_address(_quantize, Variant(setup.current().level))


@cache
def _coded(encoding: str) -> int:
    level = setup.current().level
    return compiled_address(_rows, Variant(level, encoding, *_TILE[level]))


def takes_integers(encoding: str, columns: int) -> bool:
    """Return whether rows of so many columns in this encoding have integer products."""
    if encoding not in INTEGERS or columns % GROUP:
        return False
    geometry = block(encoding)
    return 4 * geometry.scales * (columns // geometry.elements) <= PREPARED


def quantize_rows(x: npt.NDArray[np.float32]) -> QuantizedRows:
    """Round vectors to eight bits per element, with a scale for each block of 32.

    The scale is the block's largest magnitude / 127; a value is x / scale, rounded to the nearest
    integer, ties to even.

    Parameters
    ----------
    x : float32 [C, K], C-contiguous
        K a multiple of 32.

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
    float_matrix(x, x.shape, "x")
    count, columns = x.shape
    found = QuantizedRows(
        np.empty((count, columns), np.int8),
        np.empty((count, columns // GROUP), np.float32),
        np.empty((count, columns // 4), np.int32),
    )
    share = _SHARE // GROUP
    tasks = -(-found.scales.size // share)
    submit(_entry_quantize(), _quantizer(), tasks, x, found.values, found.scales, found.sums, share)
    return found


def product_q8(
    weight: npt.NDArray[np.uint8],
    encoding: str,
    rows: int,
    columns: int,
    x: QuantizedRows,
    out: npt.NDArray[np.float32],
) -> None:
    """Multiply each row of `weight` with each quantised vector.

    The bits of ``out[c, r]`` depend on row r and vector c alone.

    Parameters
    ----------
    weight : uint8 [rows * row_bytes] or [rows, row_bytes]
        Stored bytes, C-contiguous, at any address, never written.
    encoding : str
        One of `larql.kernels.integers.INTEGERS`: the block encodings.
    rows, columns : int
        Logical shape; `columns` is the contracted axis.
    x : QuantizedRows
        C vectors of `columns` elements.
    out : float32 [C, rows]
        C-contiguous; overwritten.

    Raises
    ------
    ValueError
        When an array's shape, type or layout is not as above, or the encoding has no integers.
    """
    geometry = block(encoding)
    if encoding not in INTEGERS:
        raise ValueError(f"the encoding {encoding!r} has no integer products")
    row_bytes = geometry.row_bytes(columns)
    weight = flat_bytes(weight, rows * row_bytes)
    count = x.values.shape[0]
    if x.values.shape != (count, columns):
        raise ValueError(f"x must have {columns} columns, found {x.values.shape[1]}")
    if out.shape != (count, rows):
        refuse(("out", out, (count, rows)))
    if count == 0 or rows == 0:
        return
    blocks = columns // geometry.elements
    if not takes_integers(encoding, columns):
        raise ValueError(f"rows of {columns} columns are too long for integer products")
    share = share_rows(rows, row_bytes, threads())
    try:
        submit(
            _entry(), _coded(encoding), -(-rows // share), weight, x.values, x.scales, x.sums, out,
            row_bytes, blocks, share, batch_rows(row_bytes, blocks * geometry.scales),
        )  # fmt: skip
    except TypeError:
        refuse(("out", out, (count, rows)))
