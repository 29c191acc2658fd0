"""Recurrent states of linear attention, position after position.

The state of a head is a matrix S [keys, values]. For each position, with q, k, v of the head:

    delta rule: S <- decay * S, then S <- S + k (x) (beta * (v - k.S)), then out = q.S
    sum:        S <- decay * S + k (x) (beta * v), then out = q.S + skip * v

Each column of S is a recurrence of its own, so columns are what runs side by side: sixteen to a
vector, and stored together key after key, so that they stay in the first-level cache. A product
with S is four chains of fused multiply-adds, chain i over keys i, i + 4, …, ascending, from zero,
keys behind the last four in chain 0; then (0 + 1) + (2 + 3). Every position is done in order,
whatever the call's number of positions, so a long call and single steps have the same bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import Turn, float_matrix, turn_address
from larql.kernels.jit import Variant, compiled_address, device, kernel
from larql.kernels.memory import load, load_f32, load_i64, load_most, store, store_most
from larql.kernels.threads import launch
from larql.kernels.vector import LANES, fma, splat

__all__ = ["Rule", "recur"]

Float32 = npt.NDArray[np.float32]
Rule = Literal["delta", "sum"]

_ZERO = np.float32(0)


@device
def _faded(old: int, at: int, decay: int) -> Any:
    """Multiply sixteen numbers of the state by a decay, and return them."""
    s = load(old) * splat(load_f32(decay))
    store(at, s)
    return s


@device
def _fade(source: int, state: int, keys: int, decay: int, each: int, k: int) -> Any:
    """Multiply a column by its decays and return k.S; `each` is 4 where every key has its own."""
    a, b, c, d = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
    whole = keys // 4 * 4
    for i in range(0, whole, 4):
        old, at, key, rate = source + i * 64, state + i * 64, k + i * 4, decay + i * each
        a = fma(splat(load_f32(key)), _faded(old, at, rate), a)
        b = fma(splat(load_f32(key + 4)), _faded(old + 64, at + 64, rate + each), b)
        c = fma(splat(load_f32(key + 8)), _faded(old + 128, at + 128, rate + 2 * each), c)
        d = fma(splat(load_f32(key + 12)), _faded(old + 192, at + 192, rate + 3 * each), d)
    for i in range(whole, keys):
        s = _faded(source + i * 64, state + i * 64, decay + i * each)
        a = fma(splat(load_f32(k + i * 4)), s, a)
    return (a + b) + (c + d)


@device
def _changed(at: int, key: int, change: Any) -> Any:
    """Add a key times the change to sixteen numbers of the state, and return them."""
    s = fma(splat(load_f32(key)), change, load(at))
    store(at, s)
    return s


@device
def _learn(state: int, keys: int, k: int, change: Any, q: int) -> Any:
    """Add k (x) change to a column and return q.S."""
    a, b, c, d = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
    whole = keys // 4 * 4
    for i in range(0, whole, 4):
        at, key, query = state + i * 64, k + i * 4, q + i * 4
        a = fma(splat(load_f32(query)), _changed(at, key, change), a)
        b = fma(splat(load_f32(query + 4)), _changed(at + 64, key + 4, change), b)
        c = fma(splat(load_f32(query + 8)), _changed(at + 128, key + 8, change), c)
        d = fma(splat(load_f32(query + 12)), _changed(at + 192, key + 12, change), d)
    for i in range(whole, keys):
        s = _changed(state + i * 64, k + i * 4, change)
        a = fma(splat(load_f32(q + i * 4)), s, a)
    return (a + b) + (c + d)


@device
def _both(old: int, at: int, decay: Any, key: int, change: Any) -> Any:
    """Fade and change sixteen numbers of the state, and return them."""
    s = fma(splat(load_f32(key)), change, load(old) * decay)
    store(at, s)
    return s


@device
def _carry(source: int, state: int, keys: int, decay: Any, k: int, change: Any, q: int) -> Any:
    """Fade a column by one decay, add k (x) change to it and return q.S."""
    a, b, c, d = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
    whole = keys // 4 * 4
    for i in range(0, whole, 4):
        at, key, query = state + i * 64, k + i * 4, q + i * 4
        old = source + i * 64
        s = _both(old, at, decay, key, change)
        a = fma(splat(load_f32(query)), s, a)
        s = _both(old + 64, at + 64, decay, key + 4, change)
        b = fma(splat(load_f32(query + 4)), s, b)
        s = _both(old + 128, at + 128, decay, key + 8, change)
        c = fma(splat(load_f32(query + 8)), s, c)
        s = _both(old + 192, at + 192, decay, key + 12, change)
        d = fma(splat(load_f32(query + 12)), s, d)
    for i in range(whole, keys):
        s = _both(source + i * 64, state + i * 64, decay, k + i * 4, change)
        a = fma(splat(load_f32(q + i * 4)), s, a)
    return (a + b) + (c + d)


@kernel
def _recur(variant: Any, p: int, task: int, worker: int) -> None:
    """Do all positions for sixteen columns of one head's state."""
    q, k, v = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    decay, beta, skip = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40)
    state, out, tokens = load_i64(p + 48), load_i64(p + 56), load_i64(p + 64)
    key_heads, heads = load_i64(p + 72), load_i64(p + 80)
    keys, values = load_i64(p + 88), load_i64(p + 96)
    decays, delta = load_i64(p + 104), load_i64(p + 112)
    strips = (values + 15) // 16
    head, column = task // strips, task % strips * 16
    key_head, count = head * key_heads // heads, min(16, values - column)
    if load_i64(p + 128) != 0:
        key_head = head % key_heads
    turn, each = load_i64(load_i64(p + 120)), 4 if decays > 1 else 0
    half, mine = heads * strips * keys * 64, task * keys * 64
    source, place = state + turn * half + mine, state + (1 - turn) * half + mine
    for t in range(tokens):
        key = k + (t * key_heads + key_head) * keys * 4
        query = q + (t * key_heads + key_head) * keys * 4
        at = ((t * heads + head) * values + column) * 4
        value = load_most(v + at, count)
        rate = splat(load_f32(beta + (t * heads + head) * 4))
        fade = decay + (t * heads + head) * decays * 4
        if delta != 0:
            known = _fade(source, place, keys, fade, each, key)
            found = _learn(place, keys, key, (value - known) * rate, query)
        else:
            one = splat(load_f32(fade))
            found = _carry(source, place, keys, one, key, value * rate, query)
        if skip != 0:
            found = fma(splat(load_f32(skip + head * 4)), value, found)
        store_most(out + at, found, count)
        source = place


@cache
def _compiled() -> int:
    return compiled_address(_recur, Variant(setup.current().level))


def recur(
    rule: Rule,
    q: Float32,
    k: Float32,
    v: Float32,
    decay: Float32,
    beta: Float32,
    skip: Float32 | None,
    state: Float32,
    turn: Turn,
    out: Float32,
    *,
    tiled: bool = False,
) -> None:
    """Carry a recurrent state over some positions.

    Parameters
    ----------
    rule : 'delta' or 'sum'
        See the module.
    q, k : float32 [T, G, K]
        G divides H; head h uses group h // (H / G).
    v, out : float32 [T, H, V]
        Must not be the same array.
    decay : float32 [T, H], or [T, H, K] under the delta rule
        Factors of the state, one for each head or for each of its keys.
    beta : float32 [T, H]
        Factors of what is added.
    skip : float32 [H] or None
        Factors of v that are added to the output.
    state : float32 [2, H, strips, K, 16]
        Columns 16 s, 16 s + 1, … of S in strip s, zeros behind the last: as it was in one half, as
        it becomes in the other.
    turn : int64 [1]
        Which half is read.
    tiled : bool
        Head h uses group h % G.

    Raises
    ------
    ValueError
        When the arrays do not fit or the rule is unknown.
    """
    if rule not in ("delta", "sum"):
        raise ValueError(f"rule must be delta or sum, found {rule!r}")
    tokens, groups, keys = q.shape
    heads, values = v.shape[1:]
    strips = -(-values // LANES)
    if groups < 1 or heads % groups:
        raise ValueError(f"{heads} heads cannot share {groups} groups equally")
    if decay.ndim == 3 and rule == "sum":
        raise ValueError("under the rule sum, a head has one decay")
    shape = (tokens, heads, values)
    decays = keys if decay.ndim == 3 else 1
    words = (
        float_matrix(q, (tokens, groups, keys), "q"),
        float_matrix(k, (tokens, groups, keys), "k"),
        float_matrix(v, shape, "v"),
        float_matrix(decay, (tokens, heads, keys)[: decay.ndim], "decay"),
        float_matrix(beta, (tokens, heads), "beta"),
        0 if skip is None else float_matrix(skip, (heads,), "skip"),
        float_matrix(state, (2, heads, strips, keys, LANES), "state"),
        float_matrix(out, shape, "out"),
        tokens, groups, heads, keys, values, decays, int(rule == "delta"),
        turn_address(turn), int(tiled),
    )  # fmt: skip
    launch(
        _compiled(), np.array(words, np.int64), heads * strips, q, k, v, decay, beta,
        skip, state, turn, out,
    )  # fmt: skip
