"""One block of keys for a tile of tokens and the query heads that share a key head.

It is code of its own, called by address, so that it is compiled once for all that use it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from larql.kernels import setup
from larql.kernels.jit import Variant, compiled_address, device, kernel
from larql.kernels.memory import call_kernel, fetch_lines, load_f32, load_i64, words
from larql.kernels.outer import outer_product
from larql.kernels.shape import tile_columns
from larql.kernels.softmax import BLOCK, lean, weigh
from larql.kernels.stored import stored_bytes
from larql.kernels.vector import LANES

__all__ = ["block_rows", "block_rows_address", "first_seen"]

# Rows and, in groups of 16, columns of a tile: as many sums as there are registers for.
_TILES = {"avx512": (6, 4), "avx2": (6, 1), "portable": (6, 1)}


@device
def first_seen(position: int, window: int) -> int:
    """Return the first position that a query at `position` sees."""
    return max(0, position - window + 1) if window > 0 else 0


@device
def _low(position: int, window: int, first: int) -> int:
    """Return the first key that is seen of the block that begins at `first`."""
    return max(0, first_seen(position, window) - first)


@device
def _high(position: int, first: int) -> int:
    return min(BLOCK, position + 1 - first)


@kernel
def _block(variant: Any, p: int, job: int, unused: int) -> None:
    """Compute one block for tokens × grouped heads; row r's (m, l, o) go to partial + r * step."""
    work, head, first_token = load_i64(job), load_i64(job + 8), load_i64(job + 16)
    tokens, b = load_i64(job + 24), load_i64(job + 32)
    partial, step = load_i64(job + 40), load_i64(job + 48)
    keys, values = load_i64(p + 8), load_i64(p + 16)
    heads, kv_heads, dims = load_i64(p + 48), load_i64(p + 56), load_i64(p + 64)
    padded, blocks = load_i64(p + 80), load_i64(p + 88)
    start, window = load_i64(p + 96), load_i64(p + 104)
    scale, cap = load_f32(p + 112), load_f32(p + 120)
    mixes, profiled, profiles = load_i64(p + 176), load_i64(p + 184), load_i64(p + 192)
    extent, stride = load_i64(p + 200), load_i64(p + 208) * 4
    size = stored_bytes(variant)
    place = b % blocks * kv_heads + head
    keys += place * dims * BLOCK * size
    values += place * BLOCK * padded * size
    group = heads // kv_heads
    rows = tokens * group
    score = work + rows * dims * 4
    first = b * BLOCK
    low, high = (
        _low(start + first_token, window, first),
        _high(start + first_token + tokens - 1, first),
    )
    written = min(BLOCK, start + load_i64(p + 40) - first)
    # Whole vectors of keys that some query sees.
    begin, end = low // LANES * LANES, (high + LANES - 1) // LANES * LANES
    # Up to 64 dims are one stream, which hardware prefetching follows; more are read in pieces.
    # So are keys, where tiles are narrower than a block.
    pieces = padded > BLOCK or tile_columns(variant) * LANES < BLOCK
    # Only what has been written: a page that never was is looked up in vain for each line.
    ahead = 0
    if pieces:
        if written == BLOCK:
            ahead = values - keys
        else:
            fetch_lines(values + low * padded * size, (written - low) * padded * size)
    outer_product(
        variant, work, dims * 4, rows, keys + begin * size, BLOCK * size, dims, end - begin,
        ahead, score + begin * 4, BLOCK * 4,
    )  # fmt: skip
    whole = True
    for t in range(tokens):
        position = start + first_token + t
        low, high = _low(position, window, first), _high(position, first)
        whole = whole and low == 0 and high == BLOCK
        if low < high:
            for r in range(t * group, (t + 1) * group):
                factor = scale
                if mixes != 0:
                    row = (first_token + t) * heads + head * group + r - t * group
                    # Profiles run from the farthest distance to none, a block of zeros before.
                    at = BLOCK + extent - 1 - position + first
                    lean(
                        score + r * BLOCK * 4, scale, mixes + row * profiled * 4,
                        profiles + at * 4, profiled if at > 0 else 0, stride,
                    )  # fmt: skip
                    factor = np.float32(1)
                weigh(score + r * BLOCK * 4, low, high, factor, cap, partial + r * step)
    following = values
    if head + 1 < kv_heads or (
        first + BLOCK < start + load_i64(p + 40) and b % blocks + 1 < blocks
    ):
        following = keys + dims * BLOCK * size
    share = tokens if whole else 1
    t = 0
    while t < tokens:  # a range whose step is no constant could raise
        position = start + first_token + t
        low, high = _low(position, window, first), _high(position, first)
        if low < high:
            r = t * group
            outer_product(
                variant, score + (r * BLOCK + low) * 4, BLOCK * 4, share * group,
                values + low * padded * size, padded * size, high - low, padded,
                following - values if pieces else 0, partial + r * step + 64, step,
            )  # fmt: skip
        t += share


@device
def block_rows(
    p: int, work: int, head: int, first_token: int, tokens: int, b: int, partial: int, step: int
) -> None:
    """Compute block `b`; `p` is attention's parameters, whose word 21 is this code's address.

    Work begins with the queries, float32 [tokens, heads that share the key head, dims].
    """
    job = words((work, head, first_token, tokens, b, partial, step))
    call_kernel(load_i64(p + 168), p, job, 0)


@cache
def block_rows_address(encoding: str) -> int:
    """Return the address of the code for keys and values in a stored form, 'f32' or 'f16'."""
    level = setup.current().level
    return compiled_address(_block, Variant(level, encoding, *_TILES[level]))
