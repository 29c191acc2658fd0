"""One block of keys for a tile of tokens and the query heads that share a key head.

It is code of its own, called by address, so that it is compiled once for all that use it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from larql.kernels import setup
from larql.kernels.jit import Variant, compiled_address, device, kernel
from larql.kernels.memory import call_kernel, load_f32, load_i64, words
from larql.kernels.outer import WIDTH, outer_tile
from larql.kernels.shape import narrow_rows
from larql.kernels.softmax import BLOCK, copy_values, tiles, transpose_keys, weigh

__all__ = ["block_rows", "block_rows_address", "first_seen"]

_TILE = {"avx512": 6, "avx2": 1, "portable": 1}


@device
def first_seen(position: int, window: int) -> int:
    """Return the first position that a query at `position` sees."""
    return max(0, position - window + 1) if window > 0 else 0


@kernel
def _rows(variant: Any, p: int, job: int, unused: int) -> None:
    """Compute one block for tokens × grouped heads; row r's (m, l, o) go to partial + r * step."""
    work, head, first_token = load_i64(job), load_i64(job + 8), load_i64(job + 16)
    tokens, b = load_i64(job + 24), load_i64(job + 32)
    partial, partial_step = load_i64(job + 40), load_i64(job + 48)
    keys, values = load_i64(p + 8), load_i64(p + 16)
    heads, kv_heads, dims = load_i64(p + 48), load_i64(p + 56), load_i64(p + 64)
    value_dims, padded, capacity = load_i64(p + 72), load_i64(p + 80), load_i64(p + 88)
    start, window = load_i64(p + 96), load_i64(p + 104)
    scale, cap = load_f32(p + 112), load_f32(p + 120)
    group = heads // kv_heads
    rows = tokens * group
    queries = work
    transposed = queries + rows * dims * 4
    score = transposed + BLOCK * dims * 4
    copied = score + rows * BLOCK * 4
    first = b * BLOCK
    head_keys, key_stride = keys + head * dims * 4, kv_heads * dims * 4
    head_values, stride = values + head * value_dims * 4, kv_heads * value_dims * 4
    for part in range(0, BLOCK, 16):
        transpose_keys(head_keys, key_stride, capacity, first, dims, transposed, part)
    tiles(variant, queries, dims * 4, rows, transposed, BLOCK * 4, dims, score, BLOCK * 4)
    row = first % capacity
    source = head_values + row * stride
    if value_dims != padded or row + BLOCK > capacity:
        copy_values(head_values, stride, capacity, first, value_dims, copied, padded)
        source, stride = copied, padded * 4
    full = True
    for r in range(rows):
        position = start + first_token + r // group
        low = max(0, first_seen(position, window) - first)
        high = min(BLOCK, position + 1 - first)
        full = full and low == 0 and high == BLOCK
        if low < high:
            weigh(score + r * BLOCK * 4, low, high, scale, cap, partial + r * partial_step)
    for d in range(0, padded, WIDTH):
        if full:
            tiles(
                variant, score, BLOCK * 4, rows, source + d * 4, stride, BLOCK,
                partial + 64 + d * 4, partial_step,
            )  # fmt: skip
        else:
            for r in range(rows):
                position = start + first_token + r // group
                low = max(0, first_seen(position, window) - first)
                high = min(BLOCK, position + 1 - first)
                if low < high:
                    outer_tile(
                        narrow_rows(variant, 1), score + (r * BLOCK + low) * 4, 0, 0,
                        source + low * stride + d * 4, stride, high - low,
                        partial + r * partial_step + 64 + d * 4, 0,
                    )  # fmt: skip


@device
def block_rows(
    p: int, work: int, head: int, first_token: int, tokens: int, b: int, partial: int, step: int
) -> None:
    """Compute block `b`; `p` is attention's parameters, whose word 21 is this code's address."""
    job = words((work, head, first_token, tokens, b, partial, step))
    call_kernel(load_i64(p + 168), p, job, 0)


@cache
def block_rows_address() -> int:
    """Return the address of the code that computes a block."""
    level = setup.current().level
    return compiled_address(_rows, Variant(level, "", _TILE[level]))
