"""Rows of an embedding, decoded exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import flat_bytes, refuse
from larql.kernels.encodings import block
from larql.kernels.jit import (
    BYTES,
    MATRIX,
    REAL,
    WORD,
    Variant,
    compiled_address,
    compiled_entry,
    kernel,
    types,
)
from larql.kernels.memory import (
    address_of,
    call_kernel,
    load,
    load_f32,
    load_i64,
    load_part,
    store,
    store_part,
    words,
)
from larql.kernels.product import expander
from larql.kernels.threads import begin, scratch, submit
from larql.kernels.vector import splat

__all__ = ["gather"]


@kernel
def _gather(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, columns, ids = load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    out = load_i64(p + 32) + task * columns * 4
    decoded = load_i64(p + 56) + worker * load_i64(p + 64)
    factor, together = splat(load_f32(p + 40)), load_i64(p + 72)
    row = load_i64(ids + task * 8)
    lane = row % together
    call_kernel(load_i64(p + 48), weight + (row - lane) * stride, decoded, columns)
    decoded += lane * (columns + 16) * 4
    whole = columns // 16 * 16
    for at in range(0, whole, 16):
        store(out + at * 4, load(decoded + at * 4) * factor)
    if whole < columns:
        rest = columns - whole
        store_part(out + whole * 4, load_part(decoded + whole * 4, rest) * factor, rest)


@kernel
def _enter(
    run: int, pool: int, function: int, tasks: int, weight: Any, ids: Any, out: Any, row_bytes: int,
    scale: float, reader: int, place: int, slot: int, together: int,
) -> None:  # fmt: skip
    begin(run, pool, function, tasks, words((
        address_of(weight), row_bytes, out.shape[1], address_of(ids), address_of(out),
        np.float32(scale), reader, place, slot, together,
    )))  # fmt: skip


@cache
def _entry() -> Callable[..., None]:
    ids = types.Array(types.int64, 1, "C", readonly=True)
    return compiled_entry(_enter, BYTES, ids, MATRIX, WORD, REAL, WORD, WORD, WORD, WORD)


@cache
def _compiled() -> int:
    return compiled_address(_gather, Variant(setup.current().level))


def gather(
    weight: npt.NDArray[np.uint8],
    encoding: str,
    rows: int,
    columns: int,
    ids: npt.NDArray[np.int64],
    scale: float,
    out: npt.NDArray[np.float32],
) -> None:
    """Write the rows named by `ids`, times `scale`, to `out`.

    Parameters
    ----------
    weight : uint8 [rows * row_bytes] or [rows, row_bytes]
        Stored bytes, C-contiguous, at any address, never written.
    encoding : str
        Key of `larql.kernels.encodings.BLOCKS`.
    rows, columns : int
        Logical shape; `rows` a multiple of `Block.together`.
    ids : int64 [T], C-contiguous
    scale : float
        Rounded to float32; 1 leaves the decoded values as they are.
    out : float32 [T, columns], C-contiguous

    Raises
    ------
    ValueError
        When the arrays do not fit, an id is not a row, or the encoding is unknown.
    """
    geometry = block(encoding)
    geometry.check_rows(encoding, rows)
    row_bytes = geometry.row_bytes(columns)
    weight = flat_bytes(weight, rows * row_bytes)
    if ids.dtype != np.int64 or ids.ndim != 1 or not ids.flags.c_contiguous:
        raise ValueError(f"ids must be a contiguous int64 vector, found {ids.dtype} {ids.shape}")
    count = ids.size
    if out.shape != (count, columns):
        refuse(("out", out, (count, columns)))
    if count == 0 or columns == 0:
        return
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= rows:
        raise ValueError(f"ids must be 0..{rows - 1}, found {least if least < 0 else most}")
    together = geometry.together
    place, slot = scratch(together * (-(-columns // 16) + 1) * 64)
    try:
        submit(
            _entry(), _compiled(), count, weight, ids, out, row_bytes, scale, expander(encoding),
            place, slot, together,
        )  # fmt: skip
    except TypeError:
        refuse(("out", out, (count, columns)))
