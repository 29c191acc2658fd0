"""Keys and values of new positions written to where attention reads them.

Position p stands in block p / 64 mod the number of blocks, at place p mod 64. Keys of a block and
head are stored with the positions side by side, ``[dims, 64]``: sixteen of them are one vector.
Values are stored with the dimensions side by side, ``[64, dims]``, zeros up to a whole vector. So
attention streams both, in the order of memory, and never transposes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.jit import (
    BYTES,
    CUBE,
    WORD,
    Variant,
    compiled_address,
    compiled_entry,
    device,
    kernel,
)
from larql.kernels.memory import address_of, load, load_i64, load_part, words
from larql.kernels.softmax import BLOCK
from larql.kernels.stored import scatter_stored, store_stored, stored_bytes
from larql.kernels.threads import begin, depends_on_position, submit
from larql.kernels.vector import LANES

__all__ = ["FORMS", "Stored", "empty_keys", "empty_values", "form", "raw_bytes", "write_rows"]

Stored = npt.NDArray[Any]
FORMS = {"f32": np.float32, "f16": np.float16}
_START = 9  # the word that holds the first row's position


def empty_keys(count: int, heads: int, dims: int, kind: str) -> Stored:
    """Return room for the keys of `count` blocks, ``[count, heads, dims, 64]``."""
    return np.zeros((count, heads, dims, BLOCK), FORMS[kind])


def empty_values(count: int, heads: int, dims: int, kind: str) -> Stored:
    """Return room for the values of `count` blocks, ``[count, heads, 64, dims, rounded up]``."""
    return np.zeros((count, heads, BLOCK, -(-dims // LANES) * LANES), FORMS[kind])


def form(keys: Stored, values: Stored) -> str:
    """Return the stored form of keys and values, 'f32' or 'f16'.

    Raises
    ------
    ValueError
        When they are not stored alike, or not contiguous.
    """
    found = [name for name, kind in FORMS.items() if keys.dtype == values.dtype == kind]
    if not found or not keys.flags.c_contiguous or not values.flags.c_contiguous:
        raise ValueError(
            f"keys and values must be contiguous and both float32 or both float16, found "
            f"{keys.dtype} and {values.dtype}"
        )
    return found[0]


def raw_bytes(array: Stored) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


@device
def _part(row: int, d: int, dims: int) -> Any:
    """Return sixteen numbers of a row from `d` on, zeros behind its end."""
    return load(row + d * 4) if d + 16 <= dims else load_part(row + d * 4, dims - d)


@kernel
def _write(variant: Any, p: int, task: int, worker: int) -> None:
    """Write the rows of 64 positions."""
    new_keys, new_values = load_i64(p), load_i64(p + 8)
    keys, values = load_i64(p + 16), load_i64(p + 24)
    count, heads, dims = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    value_dims, blocks, start = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72)
    size = stored_bytes(variant)
    padded = -(-value_dims // 16) * 16
    first, end = task * BLOCK, min(count, (task + 1) * BLOCK)
    for head in range(heads):
        # Positions inside: what they write to lies on the same cache lines.
        for d in range(0, dims, 16):
            for t in range(first, end):
                block, place = (start + t) // BLOCK % blocks, (start + t) % BLOCK
                at = ((block * heads + head) * dims + d) * BLOCK + place
                row = new_keys + (t * heads + head) * dims * 4
                scatter_stored(
                    variant, keys + at * size, BLOCK * size, _part(row, d, dims), min(16, dims - d)
                )
        for t in range(first, end):
            block, place = (start + t) // BLOCK % blocks, (start + t) % BLOCK
            at = ((block * heads + head) * BLOCK + place) * padded
            row = new_values + (t * heads + head) * value_dims * 4
            for d in range(0, value_dims, 16):
                store_stored(variant, values + (at + d) * size, _part(row, d, value_dims))


@kernel
def _enter(
    run: int, pool: int, function: int, tasks: int, new_keys: Any, new_values: Any, keys: Any,
    values: Any, blocks: int, start: int,
) -> None:  # fmt: skip
    count, heads, dims = new_keys.shape
    begin(run, pool, function, tasks, words((
        address_of(new_keys), address_of(new_values), address_of(keys), address_of(values),
        count, heads, dims, new_values.shape[2], blocks, start,
    )))  # fmt: skip


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(_enter, CUBE, CUBE, BYTES, BYTES, WORD, WORD)


@cache
def _compiled(kind: str) -> int:
    return compiled_address(_write, Variant(setup.current().level, kind))


def write_rows(
    new_keys: npt.NDArray[np.float32],
    new_values: npt.NDArray[np.float32],
    keys: Stored,
    values: Stored,
    start: int,
) -> None:
    """Write keys and values of positions ``start, start + 1, …`` to where attention reads them.

    Parameters
    ----------
    new_keys : float32 [T, heads, Dk], C-contiguous
    new_values : float32 [T, heads, Dv], C-contiguous
    keys : [blocks, heads, Dk, 64], C-contiguous
        From `empty_keys`; changed in place. float16 is rounded to: to nearest, ties to even.
    values : [blocks, heads, 64, Dv rounded up to 16], C-contiguous
        From `empty_values`; of the same type.
    start : int
        Absolute position of the first row.

    Raises
    ------
    ValueError
        When the arrays do not fit, or there is room for fewer rows than are written.
    """
    count, heads, dims = new_keys.shape
    value_dims, blocks = new_values.shape[2], len(keys)
    padded = -(-value_dims // LANES) * LANES
    fits = (
        new_values.shape[:2] == (count, heads)
        and keys.shape == (blocks, heads, dims, BLOCK)
        and values.shape == (blocks, heads, BLOCK, padded)
    )
    if not fits or count > blocks * BLOCK or start < 0:
        raise ValueError(
            f"keys {new_keys.shape} and values {new_values.shape} at position {start} do not fit "
            f"room of {keys.shape} and {values.shape}"
        )
    kind = form(keys, values)
    try:
        submit(
            _entry(), _compiled(kind), -(-count // BLOCK), new_keys, new_values, raw_bytes(keys),
            raw_bytes(values), blocks, start,
        )  # fmt: skip
    except TypeError:
        raise ValueError("new keys and values must be contiguous float32") from None
    depends_on_position(_START)
