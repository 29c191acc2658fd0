"""Routers: scores, the choice of experts, and the sum of what they give.

One position is one task, so nothing depends on how many are routed together. The definition, for
logits l of E experts. Softmax: m = largest l, p = exp(l - m), total = p added in 16 lanes, the lane
tree; s = p / total. Sigmoid: s = sigmoid(l). Ranks are s, or l where that orders the same, plus the
correction. Groups are kept, then experts chosen, by the highest rank and then the lowest number.
Weights: s of the chosen; over their sum, in the order of the selection from zero, plus eps; times
the scale; times the expert's own factor. With sinks, the last logits, which are not ranked:
g = -softplus(-l) of the chosen, in their order, and then of the sinks; m = largest g,
p = exp(g - m), total = p added in that order from zero; p / total in place of s / sum.
Outputs: fma(y_j, w_j, sum) in the order of the selection, from zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address, float_matrix
from larql.kernels.jit import Variant, compiled_address, device, kernel
from larql.kernels.math import exp, sigmoid, softplus
from larql.kernels.memory import (
    load,
    load_f32,
    load_i64,
    load_part,
    store,
    store_f32,
    store_i64,
    store_part,
)
from larql.kernels.rounding import Empty
from larql.kernels.threads import launch
from larql.kernels.vector import first_lane, fma, lane_sum, select, splat

__all__ = ["Choice", "Selection", "add_chosen", "choose", "clamped_gate", "scale_rows"]

_ZERO = np.float32(0)
_LEAST = np.float32(-np.inf)
_SHARE = 4096


@dataclass(frozen=True)
class Selection:
    """How experts are chosen; see the module.

    Attributes
    ----------
    top : int
    score : {"softmax", "sigmoid"}
    ranks_by_logits : bool
    renormalise : bool
    eps, scale : float
        Rounded to float32.
    groups, kept : int
        0 groups: experts are chosen from all.
    group_score : {"max", "top2_sum"}
    sinks : int
        Logits behind those of the experts.
    """

    top: int
    score: Literal["softmax", "sigmoid"]
    ranks_by_logits: bool
    renormalise: bool
    eps: float
    scale: float
    groups: int = 0
    kept: int = 0
    group_score: Literal["max", "top2_sum"] = "max"
    sinks: int = 0


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen for T positions.

    Attributes
    ----------
    scores, ranks : float32 ``[T, E]``
        Softmax or sigmoid of all logits, and what experts are chosen by.
    chosen : int64 ``[T, top]``
    weights : float32 ``[T, top]``
    broken : int64 ``[T]``
        1 where a rank is not finite, and nothing else is said.
    shared : float32 ``[sinks, T]``
        Weights of the sinks.
    """

    scores: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.float32]
    chosen: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    broken: npt.NDArray[np.int64]
    shared: npt.NDArray[np.float32]


@device
def _softmax(l: int, s: int, count: int) -> None:  # noqa: E741
    """Write the softmax of `count` numbers at `l` to `s`."""
    largest = load_f32(l)
    for e in range(1, count):
        value = load_f32(l + e * 4)
        largest = value if largest < value else largest
    total = splat(_ZERO)
    at = 0
    while at + 16 <= count:
        power = exp(load(l + at * 4) - splat(largest))
        store(s + at * 4, power)
        total = total + power
        at += 16
    if at < count:
        store_part(s + at * 4, exp(load_part(l + at * 4, count - at) - splat(largest)), count - at)
        total = total + load_part(s + at * 4, count - at)
    whole = splat(lane_sum(total))
    at = 0
    while at + 16 <= count:
        store(s + at * 4, load(s + at * 4) / whole)
        at += 16
    if at < count:
        store_part(s + at * 4, load_part(s + at * 4, count - at) / whole, count - at)


@device
def _sigmoid(l: int, s: int, count: int) -> None:  # noqa: E741
    """Write the sigmoid of `count` numbers at `l` to `s`."""
    at = 0
    while at + 16 <= count:
        store(s + at * 4, sigmoid(load(l + at * 4)))
        at += 16
    if at < count:
        store_part(s + at * 4, sigmoid(load_part(l + at * 4, count - at)), count - at)


@device
def _take_best(r: int, count: int) -> int:
    """Return the number of the largest of `count` numbers, the first of equals; and close it."""
    best = 0
    most = load_f32(r)
    for e in range(1, count):
        value = load_f32(r + e * 4)
        if most < value:
            best, most = e, value
    store_f32(r + best * 4, _LEAST)
    return best


@device
def _logarithm_of_sigmoid(value: Any) -> Any:
    return _ZERO - first_lane(softplus(splat(_ZERO - value)))


@device
def _share_out(
    l: int,  # noqa: E741
    count: int,
    chosen: int,
    weights: int,
    top: int,
    beside: int,
    step: int,
    sinks: int,
) -> Any:
    """Write exp(g - m) of the chosen and of the sinks, and return the sum of all."""
    largest = _LEAST
    for j in range(top):
        value = _logarithm_of_sigmoid(load_f32(l + load_i64(chosen + j * 8) * 4))
        largest = value if largest < value else largest
        store_f32(weights + j * 4, value)
    for j in range(sinks):
        value = _logarithm_of_sigmoid(load_f32(l + (count + j) * 4))
        largest = value if largest < value else largest
        store_f32(beside + j * step, value)
    total = _ZERO
    for j in range(top + sinks):
        place = weights + j * 4 if j < top else beside + (j - top) * step
        value = first_lane(exp(splat(load_f32(place) - largest)))
        total = total + value
        store_f32(place, value)
    return total


@kernel
def _choose(variant: Any, p: int, task: int, worker: int) -> None:
    count, top = load_i64(p + 8), load_i64(p + 16)
    sinks, beside, tokens = load_i64(p + 152), load_i64(p + 160) + task * 4, load_i64(p + 168)
    l = load_i64(p) + task * (count + sinks) * 4  # noqa: E741
    ranks = load_i64(p + 24) + task * count * 4
    chosen, weights = load_i64(p + 32) + task * top * 8, load_i64(p + 40) + task * top * 4
    broken, room = load_i64(p + 48) + task * 8, load_i64(p + 56) + task * load_i64(p + 64)
    correction, factors = load_i64(p + 72), load_i64(p + 80)
    sigmoids, by_logits, renormalise = load_i64(p + 88), load_i64(p + 96), load_i64(p + 104)
    eps, scale = load_f32(p + 112), load_f32(p + 120)
    groups, kept, sums = load_i64(p + 128), load_i64(p + 136), load_i64(p + 144)
    s = load_i64(p + 176) + task * count * 4
    still, group_ranks = room, room + count * 4

    finite = True
    for e in range(count + sinks):
        value = load_f32(l + e * 4)
        finite = finite and value - value == _ZERO
    if finite:
        if sigmoids > 0:
            _sigmoid(l, s, count)
        else:
            _softmax(l, s, count)
    for e in range(count):
        value = load_f32(l + e * 4)
        if finite and by_logits == 0:
            value = load_f32(s + e * 4)
            if correction > 0:
                value = value + load_f32(correction + e * 4)
                finite = finite and value - value == _ZERO
        store_f32(ranks + e * 4, value)
        store_f32(still + e * 4, value)
    if not finite:
        store_i64(broken, 1)
        for j in range(top):
            store_i64(chosen + j * 8, 0)
            store_f32(weights + j * 4, _ZERO)
        for j in range(sinks):
            store_f32(beside + j * tokens * 4, _ZERO)
        for e in range(count):
            store_f32(s + e * 4, _ZERO)
        return
    store_i64(broken, 0)
    if groups > 0:
        size = count // groups
        for g in range(groups):
            first, second = _LEAST, _LEAST
            for e in range(g * size, (g + 1) * size):
                value = load_f32(ranks + e * 4)
                if first < value:
                    first, second = value, first
                elif second < value:
                    second = value
            store_f32(group_ranks + g * 4, first + second if sums > 0 else first)
            for e in range(g * size, (g + 1) * size):
                store_f32(still + e * 4, _LEAST)
        for _ in range(kept):
            g = _take_best(group_ranks, groups)
            for e in range(g * size, (g + 1) * size):
                store_f32(still + e * 4, load_f32(ranks + e * 4))
    total = _ZERO
    for j in range(top):
        e = _take_best(still, count)
        store_i64(chosen + j * 8, e)
        weight = load_f32(s + e * 4)
        total = total + weight
        store_f32(weights + j * 4, weight)
    total = total + eps
    if sinks > 0:
        total = _share_out(l, count, chosen, weights, top, beside, tokens * 4, sinks)
        for j in range(sinks):
            place = beside + j * tokens * 4
            store_f32(place, load_f32(place) / total * scale)
    for j in range(top):
        weight = load_f32(weights + j * 4)
        if renormalise > 0:
            weight = weight / total
        weight = weight * scale
        if factors > 0:
            weight = weight * load_f32(factors + load_i64(chosen + j * 8) * 4)
        store_f32(weights + j * 4, weight)


@kernel
def _add_chosen(variant: Any, p: int, task: int, worker: int) -> None:
    y, places, weights, out = load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    width, top, broken = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48) + task * 8
    places, weights, out = places + task * top * 8, weights + task * top * 4, out + task * width * 4
    poison = splat(_ZERO)  # zero, or NaN where a sum is not finite
    at = 0
    while at < width:
        n = min(16, width - at)
        total = splat(_ZERO)
        for j in range(top):
            row = y + load_i64(places + j * 8) * width * 4 + at * 4
            factor = splat(load_f32(weights + j * 4))
            if n == 16:
                total = fma(load(row), factor, total)
            else:
                total = fma(load_part(row, n), factor, total)
        poison = poison + (total - total)
        if n == 16:
            store(out + at * 4, total)
        else:
            store_part(out + at * 4, total, n)
        at += 16
    store_i64(broken, 0 if lane_sum(poison) == _ZERO else 1)


@kernel
def _scale_rows(variant: Any, p: int, task: int, worker: int) -> None:
    factor, width = splat(load_f32(load_i64(p + 8) + task * 4)), load_i64(p + 16)
    x = load_i64(p) + task * width * 4
    at = 0
    while at + 16 <= width:
        store(x + at * 4, load(x + at * 4) * factor)
        at += 16
    if at < width:
        store_part(x + at * 4, load_part(x + at * 4, width - at) * factor, width - at)


@device
def _at_most(value: Any, limit: Any) -> Any:
    return select(splat(limit) < value, splat(limit), value)


@device
def _at_least(value: Any, limit: Any) -> Any:
    return select(value < splat(limit), splat(limit), value)


@kernel
def _clamped_gate(variant: Any, p: int, task: int, worker: int) -> None:
    g, up, size = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    limit, slope, more = load_f32(p + 24), load_f32(p + 32), load_f32(p + 40)
    at = task * _SHARE
    end = min(at + _SHARE, size)
    while at < end:
        n = min(16, end - at)
        a, b = load_part(g + at * 4, n), load_part(up + at * 4, n)
        a = _at_most(a, limit)
        b = _at_least(_at_most(b, limit), -limit)
        value = a * sigmoid(a * splat(slope)) * (b + splat(more))
        store_part(up + at * 4, value, n)
        at += 16


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


def _word(value: float) -> int:
    """Return a float32's bits, where a kernel loads a float32 from a word."""
    return int(np.float32(value).view(np.uint32))


def _run(function: Any, words: tuple[int, ...], tasks: int, *kept: object) -> None:
    launch(_compiled(function), np.array(words, np.int64), tasks, *kept)


def choose(
    logits: npt.NDArray[np.float32],
    selection: Selection,
    correction: npt.NDArray[np.float32] | None,
    factors: npt.NDArray[np.float32] | None,
    empty: Empty = np.empty,
) -> Choice:
    """Choose experts for each position.

    Parameters
    ----------
    logits : float32 ``[T, E + sinks]``, C-contiguous
    selection : Selection
    correction, factors : float32 ``[E]`` or None
        Added for choosing; multiplied with the weights.
    empty : function
        (shape, dtype) -> C-contiguous array with any content; it makes what is as wide as the
        population.

    Returns
    -------
    Choice

    Raises
    ------
    ValueError
        When the arrays or numbers do not fit.
    """
    count, columns = logits.shape
    experts = columns - selection.sinks
    groups, kept = selection.groups, selection.kept
    within = experts if groups == 0 else experts // groups * kept
    if not 1 <= selection.top <= within or (groups and (experts % groups or kept > groups)):
        raise ValueError(f"cannot choose {selection.top} of {experts} in {kept} of {groups} groups")
    choice = Choice(
        empty((count, experts), np.float32),
        empty((count, experts), np.float32),
        np.empty((count, selection.top), np.int64),
        np.empty((count, selection.top), np.float32),
        np.empty(count, np.int64),
        np.empty((selection.sinks, count), np.float32),
    )
    room = empty((count, experts + max(groups, 1)), np.float32)
    optional = [
        0 if array is None else float_matrix(array, (experts,), name)
        for array, name in ((correction, "correction"), (factors, "factors"))
    ]
    words = (
        float_matrix(logits, (count, columns), "logits"), experts, selection.top,
        address(choice.ranks), address(choice.chosen), address(choice.weights),
        address(choice.broken), address(room), room.shape[1] * 4, *optional,
        int(selection.score == "sigmoid"), int(selection.ranks_by_logits),
        int(selection.renormalise), _word(selection.eps), _word(selection.scale), groups, kept,
        int(selection.group_score == "top2_sum"), selection.sinks, address(choice.shared), count,
        address(choice.scores),
    )  # fmt: skip
    _run(_choose, words, count, logits, choice, room, correction, factors)
    return choice


def add_chosen(
    y: npt.NDArray[np.float32],
    places: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> npt.NDArray[np.int64]:
    """Write to `out` the weighted sums of rows of `y`.

    What is not finite in a row stays so in its sum, whatever the weight.

    Parameters
    ----------
    y : float32 ``[N, H]``
    places : int64 ``[T, top]``
        Rows of `y`, in the order in which they are added.
    weights : float32 ``[T, top]``
    out : float32 ``[T, H]``

    Returns
    -------
    int64 ``[T]``
        1 for each sum that is not finite, else 0.

    Raises
    ------
    ValueError
        When the arrays do not fit, or a row is outside of `y`.
    """
    (rows, width), (count, top) = y.shape, places.shape
    if places.dtype != np.int64 or not places.flags.c_contiguous:
        raise ValueError("places must be contiguous int64")
    if places.size and (places.min() < 0 or places.max() >= rows):
        raise ValueError(f"places must be from 0 to {rows - 1}")
    broken = np.empty(count, np.int64)
    words = (
        float_matrix(y, (rows, width), "y"), address(places),
        float_matrix(weights, (count, top), "weights"), float_matrix(out, (count, width), "out"),
        width, top, address(broken),
    )  # fmt: skip
    _run(_add_chosen, words, count, y, places, weights, out, broken)
    return broken


def scale_rows(x: npt.NDArray[np.float32], factors: npt.NDArray[np.float32]) -> None:
    """Multiply each row of `x` (float32 ``[T, H]``) by its factor (``[T]``) in place.

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    count, width = x.shape
    words = (
        float_matrix(x, (count, width), "x"), float_matrix(factors, (count,), "factors"), width
    )  # fmt: skip
    _run(_scale_rows, words, count, x, factors)


def clamped_gate(
    gate: npt.NDArray[np.float32],
    up: npt.NDArray[np.float32],
    *,
    limit: float,
    slope: float,
    offset: float,
) -> None:
    """Replace `up` by g sigmoid(slope g) (u + offset), g cut above and u on both sides at `limit`.

    Parameters
    ----------
    gate, up : float32 ``[T, F]``, C-contiguous

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    words = (
        float_matrix(gate, gate.shape, "gate"), float_matrix(up, gate.shape, "up"), up.size,
        _word(limit), _word(slope), _word(offset),
    )  # fmt: skip
    _run(_clamped_gate, words, -(-up.size // _SHARE), gate, up)
