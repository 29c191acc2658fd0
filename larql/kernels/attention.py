"""Softmax attention of new queries over a ring of blocks of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.attention_block import block_rows, block_rows_address, first_seen
from larql.kernels.check import EMPTY, refuse
from larql.kernels.jit import (
    BYTES,
    CUBE,
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
from larql.kernels.math import exp
from larql.kernels.memory import (
    address_of,
    load,
    load_f32,
    load_i64,
    store,
    store_f32,
    store_part,
    words,
)
from larql.kernels.ring import Stored, form, raw_bytes
from larql.kernels.softmax import BLOCK, merge
from larql.kernels.threads import (
    begin,
    depends_on_position,
    scratch,
    shared_scratch,
    submit,
    threads,
)
from larql.kernels.vector import LANES, first_lane, fma, splat

__all__ = ["Distances", "attend", "padded_profiles"]

_ROWS = 48  # query rows of a task: they share what is fetched of each block
_ZERO = np.float32(0)
_LEAST = np.float32(-np.inf)
_START = 12  # the word that holds the first query's position
_SPLIT_ROWS = 16  # so few query rows are split over key blocks


@device
def _pack(p: int, head: int, first_token: int, tokens: int, work: int) -> None:
    heads, kv_heads, dims = load_i64(p + 48), load_i64(p + 56), load_i64(p + 64)
    group = heads // kv_heads
    size = group * dims
    for t in range(tokens):
        source = load_i64(p) + ((first_token + t) * heads + head * group) * dims * 4
        for i in range(size):
            store_f32(work + (t * size + i) * 4, load_f32(source + i * 4))


@device
def _clear(state: int, padded: int) -> None:
    store_f32(state, _LEAST)
    store_f32(state + 4, _ZERO)
    for d in range(0, padded, 16):
        store(state + 64 + d * 4, splat(_ZERO))


@device
def _finish(p: int, state: int, token: int, head: int) -> None:
    """Add the head's sink, if any, divide, and write one output row."""
    sinks, heads, value_dims = load_i64(p + 32), load_i64(p + 48), load_i64(p + 72)
    largest, total = load_f32(state), load_f32(state + 4)
    factor = np.float32(1)
    if sinks != 0:
        sink = load_f32(sinks + head * 4)
        top = sink if largest < sink else largest
        factor = first_lane(exp(splat(largest - top)))
        total = fma(total, factor, first_lane(exp(splat(sink - top))))
    out = load_i64(p + 24) + (token * heads + head) * value_dims * 4
    whole = value_dims // 16 * 16
    for d in range(0, whole, 16):
        store(out + d * 4, load(state + 64 + d * 4) * splat(factor) / splat(total))
    if whole < value_dims:
        value = load(state + 64 + whole * 4) * splat(factor) / splat(total)
        store_part(out + whole * 4, value, value_dims - whole)


@kernel
def _attend_tokens(variant: Any, p: int, task: int, worker: int) -> None:
    """Compute a tile of tokens of one key head over all its blocks."""
    tokens, heads, kv_heads = load_i64(p + 40), load_i64(p + 48), load_i64(p + 56)
    padded = load_i64(p + 80)
    start, window, share = load_i64(p + 96), load_i64(p + 104), load_i64(p + 128)
    head = task % kv_heads
    first_token = task // kv_heads * share
    count = min(share, tokens - first_token)
    group = heads // kv_heads
    rows = count * group
    step = 64 + padded * 4
    states = load_i64(p + 144) + worker * load_i64(p + 152)
    partial = states + rows * step
    work = partial + rows * step
    _pack(p, head, first_token, count, work)
    for r in range(rows):
        _clear(states + r * step, padded)
    low = first_seen(start + first_token, window) // BLOCK
    high = (start + first_token + count - 1) // BLOCK
    for b in range(low, high + 1):
        block_rows(p, work, head, first_token, count, b, partial, step)
        for r in range(rows):
            position = start + first_token + r // group
            if position >= b * BLOCK and first_seen(position, window) < (b + 1) * BLOCK:
                merge(states + r * step, partial + r * step, padded)
    for r in range(rows):
        _finish(p, states + r * step, first_token + r // group, head * group + r % group)


@kernel
def _attend_blocks(variant: Any, p: int, task: int, worker: int) -> None:
    """Compute some blocks for all tokens, in the order of memory; `_join` merges them."""
    tokens, heads, kv_heads = load_i64(p + 40), load_i64(p + 48), load_i64(p + 56)
    padded, start, window = load_i64(p + 80), load_i64(p + 96), load_i64(p + 104)
    step = 64 + padded * 4
    rows = tokens * (heads // kv_heads)
    low = first_seen(start, window) // BLOCK
    pieces = ((start + tokens - 1) // BLOCK + 1 - low) * kv_heads
    tasks = load_i64(p + 136)
    work = load_i64(p + 144) + worker * load_i64(p + 152)
    for piece in range(pieces * task // tasks, pieces * (task + 1) // tasks):
        head = piece % kv_heads
        _pack(p, head, 0, tokens, work)
        place = load_i64(p + 160) + piece * rows * step
        block_rows(p, work, head, 0, tokens, low + piece // kv_heads, place, step)


@kernel
def _join(variant: Any, p: int, task: int, worker: int) -> None:
    """Merge the blocks of one query row (task = token * heads + head)."""
    tokens, heads, kv_heads = load_i64(p + 40), load_i64(p + 48), load_i64(p + 56)
    padded, start, window = load_i64(p + 80), load_i64(p + 96), load_i64(p + 104)
    step = 64 + padded * 4
    group = heads // kv_heads
    rows = tokens * group
    token, head = task // heads, task % heads
    position = start + token
    low = first_seen(start, window) // BLOCK
    state = load_i64(p + 144) + worker * load_i64(p + 152)
    _clear(state, padded)
    for b in range(first_seen(position, window) // BLOCK, position // BLOCK + 1):
        place = load_i64(p + 160) + ((b - low) * kv_heads + head // group) * rows * step
        merge(state, place + (token * group + head % group) * step, padded)
    _finish(p, state, token, head)


@kernel
def _enter(
    run: int, pool: int, function: int, tasks: int, q: Any, keys: Any, values: Any, sinks: Any,
    out: Any, partial: Any, blocks: int, kv_heads: int, padded: int, first: int, window: int,
    scale: float, cap: float, share: int, pieces: int, place: int, slot: int, block: int,
    mixes: Any, profiles: Any,
) -> None:  # fmt: skip
    tokens, heads, dims = q.shape
    begin(run, pool, function, tasks, words((
        address_of(q), address_of(keys), address_of(values), address_of(out),
        address_of(sinks) if sinks.size else 0, tokens, heads, kv_heads, dims, out.shape[2], padded,
        blocks, first, window, np.float32(scale), np.float32(cap), share, pieces, place, slot,
        address_of(partial), block, address_of(mixes) if mixes.size else 0, mixes.shape[2],
        address_of(profiles), profiles.shape[1] - 2 * BLOCK, profiles.shape[1],
    )))  # fmt: skip


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(
        _enter, CUBE, BYTES, BYTES, READ_VECTOR, CUBE, BYTES, *[WORD] * 5, REAL, REAL, *[WORD] * 5,
        CUBE, MATRIX,
    )  # fmt: skip


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


@dataclass(frozen=True, eq=False)
class Distances:
    """What is added to scores by the distance of a key: sum over i of mixes[..., i] * profiles[i].

    Attributes
    ----------
    mixes : float32 [T, H, P]
    profiles : float32 [P, 64 + extent + 64]
        From `padded_profiles`.
    """

    mixes: npt.NDArray[np.float32]
    profiles: npt.NDArray[np.float32]


def padded_profiles(profiles: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return profiles [P, extent] in descending distance, with a block of zeros on both sides."""
    turned = np.pad(profiles[:, ::-1], ((0, 0), (BLOCK, BLOCK)))
    return np.ascontiguousarray(turned, np.float32)


_NO_DISTANCES = Distances(np.empty((0, 0, 0), np.float32), np.empty((0, 2 * BLOCK), np.float32))


def attend(
    q: npt.NDArray[np.float32],
    keys: Stored,
    values: Stored,
    start: int,
    window: int,
    scale: float,
    softcap: float,
    sinks: npt.NDArray[np.float32] | None,
    out: npt.NDArray[np.float32],
    distances: Distances | None = None,
) -> None:
    """Attend from T new positions to the visible positions of a ring.

    The definition is in `larql.kernels.softmax`; an output row's bits depend on its query, the
    keys and values that it sees and the scalars alone.

    Parameters
    ----------
    q : float32 [T, H, Dk]
        Query t is at absolute position start + t.
    keys : float32 or float16 [blocks, KVH, Dk, 64]
        As `larql.kernels.ring.write_rows` leaves them, the new positions included; head h uses key
        head h // (H / KVH). float16 is widened exactly.
    values : of the same type [blocks, KVH, 64, Dv rounded up to 16]
    start : int
        Absolute position of the first query.
    window : int
        A query at p sees max(0, p - window + 1) … p; 0 sees everything before it.
    scale : float
        Factor of the scores.
    softcap : float
        Scores become softcap * tanh(score / softcap); 0 leaves them.
    sinks : float32 [H] or None
        Logit per head that joins the denominator alone.
    out : float32 [T, H, Dv]
        Overwritten. All arrays are C-contiguous.
    distances : Distances or None
        Added to the scaled scores, before the cap.

    Raises
    ------
    ValueError
        When the arrays do not fit, or the ring is too small for what the queries see.
    """
    tokens, heads, dims = q.shape
    blocks, kv_heads = keys.shape[:2]
    value_dims = out.shape[2]
    padded = -(-value_dims // LANES) * LANES
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"{heads} query heads are no multiple of {kv_heads} key heads")
    seen = start + tokens if window == 0 else min(start + tokens, window + tokens - 1)
    if start < 0 or window < 0 or seen > blocks * BLOCK:
        raise ValueError(
            f"a ring of {blocks * BLOCK} cannot hold the {seen} positions that queries "
            f"{start}..{start + tokens - 1} with window {window} see"
        )
    shapes = (
        ("q", q, (tokens, heads, dims)),
        ("sinks", EMPTY if sinks is None else sinks, (0,) if sinks is None else (heads,)),
        ("out", out, (tokens, heads, value_dims)),
    )
    kept = (keys.shape, values.shape)
    if kept != ((blocks, kv_heads, dims, BLOCK), (blocks, kv_heads, BLOCK, padded)):
        raise ValueError(
            f"keys {keys.shape} and values {values.shape} do not fit queries {q.shape} and "
            f"outputs {out.shape}"
        )
    near = distances or _NO_DISTANCES
    if distances is not None:
        count, width = len(near.profiles), near.profiles.shape[-1]
        fitting = (tokens, heads, count), (count, max(width, 2 * BLOCK + 1))
        if (near.mixes.shape, near.profiles.shape) != fitting:
            refuse(
                ("mixes", near.mixes, fitting[0]),
                ("profiles", near.profiles, fitting[1]),
            )
    if any(array.shape != shape for _, array, shape in shapes):
        refuse(*shapes)
    kind = form(keys, values)
    if tokens == 0 or heads == 0:
        return
    group = heads // kv_heads
    step = 64 + padded * 4
    pieces = 4 * threads()
    # Whatever they see, so that so many positions have the same calls wherever they are.
    split = tokens == 1 or tokens * group <= _SPLIT_ROWS
    share = tokens if split else max(1, min(_ROWS // group, -(-tokens * kv_heads // pieces)))
    rows = share * group
    place, slot = scratch(2 * rows * step + 4 * rows * (dims + BLOCK))
    most = (window + tokens - 2) // BLOCK + 2 if window else blocks
    partial = shared_scratch(kv_heads * most * rows * step if split else 0)
    operands = (
        q, raw_bytes(keys), raw_bytes(values), shapes[1][1], out, partial, blocks, kv_heads, padded,
        start, window, scale, softcap, share, pieces, place, slot, block_rows_address(kind),
        near.mixes, near.profiles,
    )  # fmt: skip
    try:
        if split:
            submit(_entry(), _compiled(_attend_blocks), pieces, *operands)
            depends_on_position(_START)
            submit(_entry(), _compiled(_join), tokens * heads, *operands)
        else:
            tiles = kv_heads * -(-tokens // share)
            submit(_entry(), _compiled(_attend_tokens), tiles, *operands)
        depends_on_position(_START)
    except TypeError:
        refuse(*shapes)
