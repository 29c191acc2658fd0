"""Products of each attention head with its own rows of a stored matrix.

Latent attention keeps one row for each position, from which every head makes its keys and values
by a matrix of its own. Instead of making them, a query is carried over to the rows (`absorb`), and
what it mixes of them is made a value afterwards (`raise_heads`). A matrix is decoded row by row,
once for a tile of tokens, and never as a whole.
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
from larql.kernels.jit import (
    BYTES,
    CUBE,
    MATRIX,
    WORD,
    Variant,
    compiled_address,
    compiled_entry,
    device,
    kernel,
)
from larql.kernels.memory import (
    address_of,
    call_kernel,
    load,
    load_f32,
    load_i64,
    load_part,
    store,
    store_f32,
    store_part,
    words,
)
from larql.kernels.product import expander
from larql.kernels.threads import begin, scratch, submit
from larql.kernels.vector import fma, lane_sum, splat

__all__ = ["absorb", "join", "raise_heads"]

_TILE = 16  # tokens that share a decoded row
_ZERO = np.float32(0)


@device
def _copy(source: int, target: int, size: int) -> None:
    whole = size // 16 * 16
    for d in range(0, whole, 16):
        store(target + d * 4, load(source + d * 4))
    if whole < size:
        store_part(target + whole * 4, load_part(source + whole * 4, size - whole), size - whole)


@kernel
def _absorb(variant: Any, p: int, task: int, worker: int) -> None:
    """Make the queries of one head and a tile of tokens."""
    q, tails, weight, out = load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    tokens, heads, dims, tail = (
        load_i64(p + 32), load_i64(p + 40), load_i64(p + 48), load_i64(p + 56)
    )  # fmt: skip
    width, stride, reader = load_i64(p + 64), load_i64(p + 72), load_i64(p + 80)
    decoded = load_i64(p + 88) + worker * load_i64(p + 96)
    padded = -(-width // 16) * 16
    sums = decoded + padded * 4
    head, first = task % heads, task // heads * _TILE
    count = min(_TILE, tokens - first)
    for d in range(0, count * padded, 16):
        store(sums + d * 4, splat(_ZERO))
    for i in range(dims):
        call_kernel(reader, weight + (head * dims + i) * stride, decoded, width)
        for t in range(count):
            factor = splat(load_f32(q + (((first + t) * heads + head) * dims + i) * 4))
            for d in range(0, padded, 16):
                at = sums + (t * padded + d) * 4
                store(at, fma(load(decoded + d * 4), factor, load(at)))
    for t in range(count):
        row = (first + t) * heads + head
        target = out + row * (width + tail) * 4
        _copy(sums + t * padded * 4, target, width)
        _copy(tails + row * tail * 4, target + width * 4, tail)


@kernel
def _raise(variant: Any, p: int, task: int, worker: int) -> None:
    """Make the values of one head and a tile of tokens."""
    x, weight, out = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    tokens, heads, width, dims = (
        load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    )  # fmt: skip
    stride, reader = load_i64(p + 56), load_i64(p + 64)
    decoded = load_i64(p + 72) + worker * load_i64(p + 80)
    head, first = task % heads, task // heads * _TILE
    whole = width // 16 * 16
    for j in range(dims):
        call_kernel(reader, weight + (head * dims + j) * stride, decoded, width)
        for t in range(first, min(first + _TILE, tokens)):
            row = t * heads + head
            source = x + row * width * 4
            lanes = splat(_ZERO)
            for d in range(0, whole, 16):
                lanes = fma(load(decoded + d * 4), load(source + d * 4), lanes)
            if whole < width:
                rest = width - whole
                number = load_part(source + whole * 4, rest)
                lanes = fma(load_part(decoded + whole * 4, rest), number, lanes)
            store_f32(out + (row * dims + j) * 4, lane_sum(lanes))


@kernel
def _join(variant: Any, p: int, task: int, worker: int) -> None:
    """Write one row: a row of the first array, then one of the second."""
    left, right = load_i64(p + 24), load_i64(p + 32)
    target = load_i64(p + 16) + task * (left + right) * 4
    _copy(load_i64(p) + task * left * 4, target, left)
    _copy(load_i64(p + 8) + task * right * 4, target + left * 4, right)


@kernel
def _enter_absorb(
    run: int, pool: int, function: int, tasks: int, q: Any, tails: Any, weight: Any, out: Any,
    width: int, stride: int, reader: int, place: int, slot: int,
) -> None:  # fmt: skip
    tokens, heads, dims = q.shape
    begin(run, pool, function, tasks, words((
        address_of(q), address_of(tails), address_of(weight), address_of(out), tokens, heads, dims,
        tails.shape[2], width, stride, reader, place, slot,
    )))  # fmt: skip


@kernel
def _enter_raise(
    run: int, pool: int, function: int, tasks: int, x: Any, weight: Any, out: Any, stride: int,
    reader: int, place: int, slot: int,
) -> None:  # fmt: skip
    tokens, heads, width = x.shape
    begin(run, pool, function, tasks, words((
        address_of(x), address_of(weight), address_of(out), tokens, heads, width, out.shape[2],
        stride, reader, place, slot,
    )))  # fmt: skip


@kernel
def _enter_join(
    run: int, pool: int, function: int, tasks: int, first: Any, second: Any, out: Any
) -> None:
    begin(run, pool, function, tasks, words((
        address_of(first), address_of(second), address_of(out), first.shape[1], second.shape[1],
    )))  # fmt: skip


@cache
def _entry_absorb() -> Callable[..., None]:
    return compiled_entry(_enter_absorb, CUBE, CUBE, BYTES, CUBE, *[WORD] * 5)


@cache
def _entry_raise() -> Callable[..., None]:
    return compiled_entry(_enter_raise, CUBE, BYTES, CUBE, *[WORD] * 4)


@cache
def _entry_join() -> Callable[..., None]:
    return compiled_entry(_enter_join, MATRIX, MATRIX, MATRIX)


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


def _row_bytes(encoding: str, width: int) -> int:
    geometry = block(encoding)
    if geometry.together > 1:
        raise ValueError(
            f"rows of a head are read one by one, and those of {encoding} lie together"
        )
    return geometry.row_bytes(width)


def absorb(
    q: npt.NDArray[np.float32],
    tails: npt.NDArray[np.float32],
    weight: npt.NDArray[np.uint8],
    encoding: str,
    width: int,
    out: npt.NDArray[np.float32],
) -> None:
    """Write each head's query times its rows of a matrix, followed by its tail.

    An element is one chain of fused multiply-adds over the query, ascending, from zero.

    Parameters
    ----------
    q : float32 [T, H, N], C-contiguous
    tails : float32 [T, H, R], C-contiguous
        Copied behind the products.
    weight : uint8, the stored bytes of a matrix [H * N, width]
        Head h has rows h N … h N + N - 1.
    encoding : str
        Key of `larql.kernels.encodings.BLOCKS`.
    width : int
    out : float32 [T, H, width + R], C-contiguous

    Raises
    ------
    ValueError
        When the arrays do not fit, or the encoding is unknown.
    """
    tokens, heads, dims = q.shape
    stride = _row_bytes(encoding, width)
    weight = flat_bytes(weight, heads * dims * stride)
    tail = tails.shape[2]
    shapes = (
        ("q", q, (tokens, heads, dims)),
        ("tails", tails, (tokens, heads, tail)),
        ("out", out, (tokens, heads, width + tail)),
    )
    if any(array.shape != shape for _, array, shape in shapes):
        refuse(*shapes)
    padded = -(-width // 16) * 16
    place, slot = scratch((1 + _TILE) * padded * 4)
    try:
        submit(
            _entry_absorb(), _compiled(_absorb), heads * -(-tokens // _TILE), q, tails, weight,
            out, width, stride, expander(encoding), place, slot,
        )  # fmt: skip
    except TypeError:
        refuse(*shapes)


def raise_heads(
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.uint8],
    encoding: str,
    out: npt.NDArray[np.float32],
) -> None:
    """Write each head's rows of a matrix times its vector.

    An element is the sum of sixteen chains of fused multiply-adds, added as a tree.

    Parameters
    ----------
    x : float32 [T, H, K], C-contiguous
    weight : uint8, the stored bytes of a matrix [H * M, K]
        Head h has rows h M … h M + M - 1.
    encoding : str
        Key of `larql.kernels.encodings.BLOCKS`.
    out : float32 [T, H, M], C-contiguous

    Raises
    ------
    ValueError
        When the arrays do not fit, or the encoding is unknown.
    """
    tokens, heads, width = x.shape
    dims = out.shape[2]
    stride = _row_bytes(encoding, width)
    weight = flat_bytes(weight, heads * dims * stride)
    shapes = (("x", x, (tokens, heads, width)), ("out", out, (tokens, heads, dims)))
    if any(array.shape != shape for _, array, shape in shapes):
        refuse(*shapes)
    place, slot = scratch(-(-width // 16) * 64)
    try:
        submit(
            _entry_raise(), _compiled(_raise), heads * -(-tokens // _TILE), x, weight, out, stride,
            expander(encoding), place, slot,
        )  # fmt: skip
    except TypeError:
        refuse(*shapes)


def join(
    first: npt.NDArray[np.float32],
    second: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> None:
    """Write rows of `first` ([T, N]) and of `second` ([T, R]) side by side to `out` ([T, N + R]).

    Raises
    ------
    ValueError
        When the arrays do not fit; all are float32 and C-contiguous.
    """
    rows = len(first)
    shapes = (
        ("first", first, first.shape),
        ("second", second, (rows, *second.shape[1:])),
        ("out", out, (rows, first.shape[-1] + second.shape[-1])),
    )
    if any(array.shape != shape for _, array, shape in shapes):
        refuse(*shapes)
    try:
        submit(_entry_join(), _compiled(_join), rows, first, second, out)
    except TypeError:
        refuse(*shapes)
