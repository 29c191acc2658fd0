"""Rows of encoded weights times float32 vectors.

Weights are used as the exact float32 values that their encoding stands for; the sum is defined in
`larql.kernels.tile`. One vector is multiplied while rows are decoded in registers; for several, a
panel of rows is decoded once into scratch memory. Both add the same numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import flat_bytes, refuse
from larql.kernels.encodings import block
from larql.kernels.expand import PREPARED, expand, expand_rest, prepare, prepared_room
from larql.kernels.jit import (
    BYTES,
    MATRIX,
    WORD,
    Variant,
    compiled_address,
    compiled_entry,
    kernel,
)
from larql.kernels.memory import address_of, call_kernel, load_i64, words
from larql.kernels.shape import (
    narrow,
    scale_count,
    step_bytes,
    step_elements,
    tile_columns,
    tile_rows,
)
from larql.kernels.threads import begin, scratch, submit, threads
from larql.kernels.tile import coded_tile, plain_tile

__all__ = ["batch_rows", "expander", "product", "share_rows"]

# (rows, columns) of a register tile: sums, weights and one vector must fit the register file.
_CODED = {"avx512": (4, 1), "avx2": (4, 1), "portable": (2, 1)}
_PLAIN = {"avx512": (4, 6), "avx2": (2, 3), "portable": (1, 2)}
_PANEL_BYTES = 192 << 10  # decoded rows of a task stay in the second-level cache
_TASK_BYTES = 16 << 10
_BATCH_BYTES = 10 << 10
_TASKS_PER_THREAD = 8  # so that threads finish together on busy cores


@kernel
def _expand_row(variant: Any, source: int, target: int, columns: int) -> None:
    step, size, numbers = step_elements(variant), step_bytes(variant), scale_count(variant)
    blocks = columns // step
    room = prepared_room(variant)
    most = PREPARED // numbers if numbers > 0 else blocks
    done = 0
    while done < blocks:
        count = min(most, blocks - done)
        prepare(variant, source + done * size, count, room)
        expand(variant, source + done * size, count, room, target + done * step * 4)
        done += count
    if blocks * step < columns:
        expand_rest(
            variant, source + blocks * size, target + blocks * step * 4, columns - blocks * step
        )


@kernel
def _coded_rows(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    blocks, x, out, share = load_i64(p + 24), load_i64(p + 32), load_i64(p + 56), load_i64(p + 72)
    batch = load_i64(p + 80)
    room = prepared_room(variant)
    row = task * share
    end = min(row + share, rows)
    while row < end:
        height = min(batch, end - row)
        first = weight + row * stride
        prepare(variant, first, height * blocks, room)
        for r in range(0, height, tile_rows(variant)):
            coded_tile(
                variant, first + r * stride, stride, height - 1 - r,
                room + r * blocks * scale_count(variant) * 4, height * stride, blocks, x, 0, 0,
                out + (row + r) * 4, 0,
            )  # fmt: skip
        row += height


@kernel
def _panel(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows, columns = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    x, x_stride, count = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    out, out_stride, share = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72)
    expander, decoded = load_i64(p + 80), load_i64(p + 88) + worker * load_i64(p + 96)
    decoded_stride = load_i64(p + 104)
    first = task * share
    height = min(share, rows - first)
    for row in range(height):
        call_kernel(
            expander, weight + (first + row) * stride, decoded + row * decoded_stride, columns
        )
    wide = tile_columns(variant)
    column = 0
    while column < count:
        left = count - column
        width = wide if 2 * left > wide else (2 if left > 1 else 1)
        row = 0
        while row < height:
            w = decoded + row * decoded_stride
            v = x + column * x_stride
            o = out + column * out_stride + (first + row) * 4
            last = height - 1 - row
            if width == wide:
                plain_tile(
                    variant, w, decoded_stride, last, v, x_stride, left - 1, columns, o, out_stride
                )
            elif width == 2:
                plain_tile(
                    narrow(variant, 2), w, decoded_stride, last, v, x_stride, 1, columns, o,
                    out_stride,
                )  # fmt: skip
            else:
                plain_tile(
                    narrow(variant, 1), w, decoded_stride, last, v, x_stride, 0, columns, o,
                    out_stride,
                )  # fmt: skip
            row += tile_rows(variant)
        column += width


@kernel
def _enter(
    run: int, pool: int, function: int, tasks: int, weight: Any, x: Any, out: Any, row_bytes: int,
    amount: int, share: int, reader: int, place: int, slot: int, stride: int,
) -> None:  # fmt: skip
    count, rows = out.shape
    begin(run, pool, function, tasks, words((
        address_of(weight), row_bytes, rows, amount, address_of(x), x.shape[1] * 4, count,
        address_of(out), rows * 4, share, reader, place, slot, stride,
    )))  # fmt: skip


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(_enter, BYTES, MATRIX, MATRIX, *[WORD] * 7)


@cache
def expander(encoding: str) -> int:
    """Return the address of code that decodes one row of `encoding` to float32."""
    return compiled_address(_expand_row, Variant(setup.current().level, encoding))


@cache
def _coded(encoding: str) -> int:
    level = setup.current().level
    return compiled_address(_coded_rows, Variant(level, encoding, *_CODED[level]))


@cache
def _plain() -> int:
    level = setup.current().level
    return compiled_address(_panel, Variant(level, "", *_PLAIN[level]))


def product(
    weight: npt.NDArray[np.uint8],
    encoding: str,
    rows: int,
    columns: int,
    x: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> None:
    """Multiply each row of `weight` with each vector of `x`.

    The bits of ``out[c, r]`` depend on row r and vector c alone: not on how many of either there
    are, on the thread count or on the instruction set.

    Parameters
    ----------
    weight : uint8 [rows * row_bytes] or [rows, row_bytes]
        Stored bytes, C-contiguous, at any address, never written.
    encoding : str
        Key of `larql.kernels.encodings.BLOCKS`.
    rows, columns : int
        Logical shape; `columns` is the contracted axis.
    x : float32 [C, columns]
        C-contiguous.
    out : float32 [C, rows]
        C-contiguous; overwritten.

    Raises
    ------
    ValueError
        When an array's shape, type or layout is not as above, or the encoding is unknown.
    """
    geometry = block(encoding)
    row_bytes = geometry.row_bytes(columns)
    weight = flat_bytes(weight, rows * row_bytes)
    count = x.shape[0]
    if x.shape != (count, columns) or out.shape != (count, rows):
        refuse(("x", x, (count, columns)), ("out", out, (count, rows)))
    if count == 0 or rows == 0:
        return
    pieces = _TASKS_PER_THREAD * threads()
    numbers = geometry.scales
    direct = (
        count == 1 and columns % geometry.step == 0
        and 4 * numbers * columns <= PREPARED * geometry.step
    )  # fmt: skip
    if direct:
        share = share_rows(rows, row_bytes, threads())
        # For this kernel the reader's word holds how many rows are prepared at a time.
        function, amount = _coded(encoding), columns // geometry.step
        reader, place, slot, stride = batch_rows(row_bytes, amount * numbers), 0, 0, 0
    else:
        stride = (-(-columns // 16) * 16 + 16) * 4
        share = _rounded(min(max(4, _PANEL_BYTES // stride), -(-rows // pieces)), 4)
        function, reader, amount = _plain(), expander(encoding), columns
        place, slot = scratch(share * stride)
    try:
        submit(
            _entry(), function, -(-rows // share), weight, x, out, row_bytes, amount, share, reader,
            place, slot, stride,
        )  # fmt: skip
    except TypeError:
        refuse(("x", x, (count, columns)), ("out", out, (count, rows)))


def batch_rows(row_bytes: int, numbers: int) -> int:
    """Return how many rows are prepared at a time: as many as stay in the first-level cache."""
    rows = min(_BATCH_BYTES // max(row_bytes, 1), PREPARED // max(numbers, 1))
    return max(4, rows // 4 * 4)


def share_rows(rows: int, row_bytes: int, workers: int) -> int:
    """Return how many rows a task takes when rows are decoded in registers."""
    least = max(1, _TASK_BYTES // max(row_bytes, 1))
    return _rounded(max(least, -(-rows // (_TASKS_PER_THREAD * workers))), 8)


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
