"""Convolutions, decays and recurrent states against their twins, and however they are cut."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.format.graph import ConvolutionRows, Recurrent
from larql.kernels.activation import activate, elementary
from larql.kernels.convolution import NONE, Convolved, convolve
from larql.kernels.forgetting import forget
from larql.kernels.norm import layer_norm, rms_norm
from larql.kernels.recurrence import Rule, recur
from larql.kernels.threads import set_threads, threads
from larql.kernels.vector import LANES
from larql.runtime.whole_regions import StripRegion, WholeRegion
from tests.kernels.same import normal, same
from tests.naive import kernels as plain
from tests.naive import recurrence as naive

F32 = np.ndarray  # type: ignore[type-arg]


def turn() -> np.ndarray:  # type: ignore[type-arg]
    return np.zeros(1, np.int64)


def some(wanted: bool, seed: int, *shape: int) -> F32 | None:
    return normal(seed, *shape) if wanted else None


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=4), taps=st.integers(1, 5),
    channels=st.sampled_from([1, 15, 16, 33, 90]), gates=st.tuples(*[st.booleans()] * 3),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_a_convolution_goes_on_where_the_last_call_ended(
    counts: list[int], taps: int, channels: int, gates: tuple[bool, bool, bool], seed: int
) -> None:
    total = sum(counts)
    x, weight = normal(seed, total, channels), normal(seed + 1, taps, channels)
    bias = some(gates[0], seed + 2, channels)
    before, after = some(gates[1], seed + 3, total, channels), some(gates[2], 4, total, channels)
    region = WholeRegion.plain(ConvolutionRows(0, "ffn", channels, taps - 1), np.float32)
    region.write(normal(seed + 5, taps - 1, channels))
    expected, kept = naive.convolve(x, region.read(), weight, bias, before, after)
    out, first = np.empty_like(x), 0
    for count in counts:
        piece = slice(first, first + count)
        part = Convolved(
            x[piece], region.halves, region.turn, weight, out[piece], bias,
            None if before is None else before[piece], None if after is None else after[piece],
        )  # fmt: skip
        old = region.read()
        convolve([part], NONE)
        assert same(region.read(), old)
        region.settle()
        first += count
    assert same(out, expected)
    assert same(region.read(), np.ascontiguousarray(kept))


def test_several_convolutions_in_one_call_and_their_activation() -> None:
    outs: dict[str, list[F32]] = {}
    for kind in (NONE, "silu"):
        parts = [
            Convolved(
                normal(c, 5, c), np.zeros((2, 2, c), np.float32), turn(), normal(9, 3, c),
                np.empty((5, c), np.float32),
            )
            for c in (40, 7, 100)
        ]  # fmt: skip
        convolve(parts, kind)
        outs[kind] = [part.out for part in parts]
    for plainly, activated in zip(outs[NONE], outs["silu"], strict=True):
        expected = np.empty_like(plainly)
        activate(plainly, "silu", expected)
        assert same(activated, expected)


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 5), width=st.sampled_from([1, 16, 21, 64]), seed=st.integers(0, 99))
def test_steps_and_decays(rows: int, width: int, seed: int) -> None:
    x, bias, rate = normal(seed, rows, width) * 5, normal(1, width), normal(2, width)
    steps, decays = np.empty_like(x), np.empty_like(x)
    forget(x, bias, rate, (0.25, 2.0), steps, decays)
    expected = np.empty_like(x)
    elementary(x + bias, "softplus", expected)
    expected = np.clip(expected, np.float32(0.25), np.float32(2))
    assert same(steps, expected)
    pace = np.empty_like(rate)
    elementary(rate, "exp", pace)
    elementary(-pace * expected, "exp", expected)
    assert same(decays, expected)
    assert np.allclose(decays, np.exp(-np.exp(rate.astype(float)) * steps), rtol=1e-6)
    elementary(x + bias, "softplus", expected)
    elementary(-pace * expected, "exp", expected)
    found = np.empty_like(x)
    forget(x, bias, -pace, (0.0, math.inf), None, found, negated=True)
    assert same(found, expected)
    forget(x, bias, rate, (0.0, math.inf), None, x)
    assert same(x, expected)


@settings(deadline=None, max_examples=40)
@given(
    form=st.sampled_from(["heads", "channels", "sum"]),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3), groups=st.integers(1, 2),
    each=st.integers(1, 3), keys=st.sampled_from([1, 3, 8, 13]),
    values=st.sampled_from([1, 16, 20, 33]), seed=st.integers(0, 999), tiled=st.booleans(),
)  # fmt: skip
def test_a_recurrence_is_the_same_in_any_pieces(
    form: str,
    counts: list[int],
    groups: int,
    each: int,
    keys: int,
    values: int,
    seed: int,
    tiled: bool,
) -> None:
    rule: Rule = "sum" if form == "sum" else "delta"
    total, heads = sum(counts), groups * each
    q, k = normal(seed, total, groups, keys), normal(seed + 1, total, groups, keys) * 0.3
    v, beta = normal(seed + 2, total, heads, values), np.abs(normal(seed + 3, total, heads))
    shape = (total, heads, keys) if form == "channels" else (total, heads)
    decay = np.random.default_rng(seed).uniform(0.3, 1, shape).astype(np.float32)
    skip = some(form == "sum", seed + 4, heads)
    region = StripRegion(Recurrent(0, heads, keys, values), LANES)
    region.write(normal(seed + 5, heads, keys, values))
    expected, state = naive.recur(rule, q, k, v, decay, beta, skip, region.read(), tiled)
    out, first = np.empty_like(v), 0
    for count in counts:
        p = slice(first, first + count)
        old = region.read()
        recur(
            rule, q[p], k[p], v[p], decay[p], beta[p], skip, region.halves, region.turn, out[p],
            tiled=tiled,
        )  # fmt: skip
        assert same(region.read(), old)
        region.settle()
        first += count
    assert same(out, expected)
    assert same(region.read(), state)
    # what stands behind the last column stays zero, so that no number there ever overflows
    wide = region.halves.swapaxes(2, 3).reshape(2, heads, keys, -1)
    assert not wide[..., values:].any()


def test_threads_change_nothing() -> None:
    before, found = threads(), set()
    q, v, beta = normal(0, 5, 2, 9), normal(1, 5, 4, 40), np.abs(normal(2, 5, 4))
    x = normal(3, 5, 300)
    try:
        for count in (1, 2, 5):
            set_threads(count)
            state, out = np.zeros((2, 4, 3, 9, 16), np.float32), np.empty_like(v)
            recur("delta", q, q, v, beta / 9, beta, None, state, turn(), out)
            rows, y = np.zeros((2, 3, 300), np.float32), np.empty_like(x)
            convolve([Convolved(x, rows, turn(), normal(4, 4, 300), y)], "silu")
            decays = np.empty_like(x)
            forget(x, x[0], x[1], (0.0, 9.0), None, decays)
            found.add(b"".join(a.tobytes() for a in (state, out, rows, y, decays)))
    finally:
        set_threads(before)
    assert len(found) == 1


def test_rows_take_turns_with_the_parts_of_a_longer_weight() -> None:
    x, weight = normal(0, 6, 20), normal(1, 60)
    out = np.empty_like(x)
    rms_norm(x, weight, 1.0, 1e-5, out)
    for part in range(3):
        expected = plain.rms_norm(x[part::3], weight[part * 20 : part * 20 + 20], 1.0, 1e-5)
        assert same(np.ascontiguousarray(out[part::3]), expected)
    refused: list[tuple[Callable[..., None], int]] = [(rms_norm, 50), (rms_norm, 80)]
    for norm, size in refused:
        with pytest.raises(ValueError, match="weight must be"):
            norm(x, normal(0, size), 0.0, 1e-5, out)
    with pytest.raises(ValueError, match="weight must be"):
        layer_norm(x, weight, None, 0.0, 1e-5, out)


def test_what_does_not_fit_is_refused() -> None:
    x, rows, weight, t = normal(0, 3, 8), normal(1, 2, 2, 8), normal(2, 3, 8), turn()
    out = np.empty_like(x)
    for part in (
        Convolved(x, rows[0], t, weight, out),
        Convolved(x, rows, t + 2, weight, out),
        Convolved(x, rows, t.astype(np.int32), weight, out),  # type: ignore[arg-type]
        Convolved(x, rows, t, weight[:, :7], out),
        Convolved(x, rows, t, weight, out[:2]),
        Convolved(x, rows, t, weight, out, x[0, :7]),
        Convolved(x, rows, t, weight, out, None, x[:2]),
        Convolved(x, rows, t, weight, out, None, None, x.T),
        Convolved(x, rows, t, weight[:0], out),
        Convolved(x.astype(float), rows, t, weight, out),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=r"must be contiguous|at least one tap|turn must be"):
            convolve([part], NONE)
    with pytest.raises(ValueError, match="activation must be one of"):
        convolve([Convolved(x, rows, t, weight, out)], "cube")
    with pytest.raises(ValueError, match="bias must be contiguous"):
        forget(x, x[0, :7], x[0], (0.0, 1.0), None, out)
    with pytest.raises(ValueError, match="decays must be contiguous"):
        forget(x, x[0], x[0], (0.0, 1.0), None, out[:2])
    q, v, head = normal(3, 2, 2, 5), normal(4, 2, 4, 6), normal(5, 2, 4)
    state, made = np.zeros((2, 4, 1, 5, 16), np.float32), np.empty_like(v)
    recur("delta", q, q, v, head, head, None, state, t, made)
    for rule, queries, keys, values, decay, kept, message in (
        ("delta", q[:, :1].copy(), q, v, head, state, "k must be contiguous"),
        ("delta", normal(3, 2, 3, 5), q, v, head, state, "cannot share 3 groups"),
        ("delta", q, q, v[:, :2], head, state, "v must be contiguous"),
        ("delta", q, q, v, head[:, :3].copy(), state, "decay must be"),
        ("delta", q, q, v, normal(1, 2, 4, 4), state, "decay must be"),
        ("sum", q, q, v, normal(1, 2, 4, 5), state, "one decay"),
        ("delta", q, q, v, head, state[:1], "state must be"),
        ("mean", q, q, v, head, state, "rule must be delta or sum"),
    ):
        with pytest.raises(ValueError, match=message):
            recur(rule, queries, keys, values, decay, head, None, kept, t, made)  # type: ignore[arg-type]
