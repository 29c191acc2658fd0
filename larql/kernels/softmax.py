"""One block of 64 keys for a group of query rows, and the merge of blocks.

The definition, for one query row: block b holds the absolute positions 64 b … 64 b + 63. A score is
one chain of fused multiply-adds over the head dimension, ascending, from zero; then times the
scale; then the soft cap. With a distance bias the scaling is one fused multiply-add of the product,
the scale and the bias, which is one chain over the profiles, ascending, from zero. Within a block:
m = largest visible score, p_j = exp(s_j - m), l = the sum of p (four vectors of 16 lanes added
pairwise, then the lane tree, invisible keys counting zero), o = one chain per output dimension over
the visible keys, ascending, from zero. Blocks are merged in ascending order: M' = max(M, m), a =
exp(M - M'), b = exp(m - M'), L = fma(L, a, l b), O = fma(O, a, o b), from M = -inf, L = O = 0.
Nothing depends on which other rows are computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from larql.kernels.jit import device
from larql.kernels.math import exp, tanh
from larql.kernels.memory import load, load_f32, store, store_f32
from larql.kernels.vector import (
    first_lane,
    fma,
    lane_maximum,
    lane_numbers,
    lane_sum,
    select,
    splat,
)

__all__ = ["BLOCK", "lean", "merge", "weigh"]

BLOCK = 64
_ZERO = np.float32(0)
_LEAST = np.float32(-np.inf)


@device
def _final(score: Any, scale: Any, cap: Any) -> Any:
    value = score * splat(scale)
    if cap > _ZERO:
        value = splat(cap) * tanh(value / splat(cap))
    return value


@device
def _visible(score: Any, at: int, low: int, high: int) -> Any:
    lane = lane_numbers() + splat(np.int32(at))
    inside = (lane < splat(np.int32(high))) & (splat(np.int32(low - 1)) < lane)
    return select(inside, score, splat(_LEAST))


@device
def lean(score: int, scale: Any, mix: int, profiles: int, count: int, stride: int) -> None:
    """Scale a row of 64 raw products and add sums of `count` rows of profiles, in place.

    Rows are `stride` bytes apart; element j of the sum of `mix[i]` times row i belongs to score j.
    """
    a, b, c, d = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
    for i in range(count):
        share, row = splat(load_f32(mix + i * 4)), profiles + i * stride
        a = fma(load(row), share, a)
        b = fma(load(row + 64), share, b)
        c = fma(load(row + 128), share, c)
        d = fma(load(row + 192), share, d)
    store(score, fma(load(score), splat(scale), a))
    store(score + 64, fma(load(score + 64), splat(scale), b))
    store(score + 128, fma(load(score + 128), splat(scale), c))
    store(score + 192, fma(load(score + 192), splat(scale), d))


@device
def weigh(score: int, low: int, high: int, scale: Any, cap: Any, result: int) -> None:
    """Turn a row of 64 raw products into weights in place; result[0:2] = largest score, sum.

    Keys low … high - 1 of the block are visible.
    """
    s0 = _visible(_final(load(score), scale, cap), 0, low, high)
    s1 = _visible(_final(load(score + 64), scale, cap), 16, low, high)
    s2 = _visible(_final(load(score + 128), scale, cap), 32, low, high)
    s3 = _visible(_final(load(score + 192), scale, cap), 48, low, high)
    top = select(s0 < s1, s1, s0)
    other = select(s2 < s3, s3, s2)
    largest = lane_maximum(select(top < other, other, top))
    p0, p1 = exp(s0 - splat(largest)), exp(s1 - splat(largest))
    p2, p3 = exp(s2 - splat(largest)), exp(s3 - splat(largest))
    store(score, p0)
    store(score + 64, p1)
    store(score + 128, p2)
    store(score + 192, p3)
    store_f32(result, largest)
    store_f32(result + 4, lane_sum((p0 + p1) + (p2 + p3)))


@device
def merge(state: int, block: int, dims: int) -> None:
    """Add a block's (m, l, o) to the running (M, L, O), each [2 + dims rounded up to 16]."""
    old, new = load_f32(state), load_f32(block)
    largest = new if old < new else old
    a = exp(splat(old - largest))
    b = exp(splat(new - largest))
    store_f32(state, largest)
    total = fma(load_f32(state + 4), first_lane(a), load_f32(block + 4) * first_lane(b))
    store_f32(state + 4, total)
    for d in range(0, dims, 16):
        at = 64 + d * 4
        store(state + at, fma(load(state + at), a, load(block + at) * b))
