"""Attention: near float64, and the same bits for any chunk, ring, thread count or company."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels.attention import Distances, attend, padded_profiles
from larql.kernels.ring import Stored, empty_keys, empty_values, write_rows
from larql.kernels.threads import set_threads, threads
from tests.kernels.same import normal, same
from tests.naive import kernels as naive

Rows = npt.NDArray[np.float32]
KINDS = ("f32", "f16")


def ring(
    keys: Rows, values: Rows, kind: str = "f32", blocks: int = 0, rubbish: float = np.nan
) -> tuple[Stored, Stored]:
    """Rows of positions 0, 1 … in a ring, later ones over earlier ones; rubbish elsewhere."""
    blocks = blocks or -(-len(keys) // 64)
    heads = keys.shape[1]
    kept = (
        empty_keys(blocks, heads, keys.shape[2], kind),
        empty_values(blocks, heads, values.shape[2], kind),
    )
    for part in kept:
        part[:] = rubbish
    for at in range(0, len(keys), 64):
        write_rows(keys[at : at + 64], values[at : at + 64], *kept, at)
    return kept


def rounded(rows: Rows, kind: str) -> Rows:
    """What is kept of rows, as float32."""
    with np.errstate(over="ignore"):
        return rows.astype(np.float16).astype(np.float32) if kind == "f16" else rows


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.integers(1, 9), start=st.integers(0, 300), kv_heads=st.integers(1, 3),
    group=st.integers(1, 8), dims=st.sampled_from([1, 16, 24, 33, 64]),
    value_dims=st.sampled_from([3, 32, 64, 72, 128]), window=st.sampled_from([0, 1, 7, 64, 100]),
    spare=st.integers(0, 2), softcap=st.sampled_from([0.0, 3.0]), sinks=st.booleans(),
    kind=st.sampled_from(KINDS),
)  # fmt: skip
def test_it_is_attention(
    tokens: int, start: int, kv_heads: int, group: int, dims: int, value_dims: int, window: int,
    spare: int, softcap: float, sinks: bool, kind: str,
) -> None:  # fmt: skip
    total = start + tokens
    seen = total if window == 0 else min(total, window + tokens - 1)
    q = normal(1, tokens, kv_heads * group, dims)
    keys, values = (normal(2, total, kv_heads, d) for d in (dims, value_dims))
    sink = normal(3, kv_heads * group) if sinks else None
    out = np.full((tokens, kv_heads * group, value_dims), np.nan, np.float32)
    scale = dims**-0.5
    kept = ring(keys, values, kind, -(-seen // 64) + spare)
    attend(q, *kept, start, window, scale, softcap, sink, out)
    keys, values = rounded(keys, kind), rounded(values, kind)
    expected = naive.attend(q, keys, values, start, window, scale, softcap, sink)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)
    for t in range(tokens):
        one = np.empty((1, *out.shape[1:]), np.float32)
        attend(q[t : t + 1], *kept, start + t, window, scale, softcap, sink, one)
        assert same(one, out[t : t + 1])


@pytest.mark.parametrize("kind", KINDS)
def test_ring_chunks_and_threads_change_no_bit(kind: str) -> None:
    total, window = 400, 90
    keys, values, q = normal(1, total, 2, 32), normal(2, total, 2, 64), normal(3, total, 6, 32)
    whole = np.empty((total, 6, 64), np.float32)
    attend(q, *ring(keys, values, kind), 0, window, 0.2, 0.0, None, whole)
    before = threads()
    try:
        for count, chunk, blocks in ((1, 1, 2), (2, 37, 2), (3, 64, 3), (16, 133, 4)):
            set_threads(count)
            out = np.empty_like(whole)
            for a in range(0, total, chunk):
                b = min(total, a + chunk)
                kept = ring(keys[:b], values[:b], kind, blocks)
                attend(q[a:b], *kept, a, window, 0.2, 0.0, None, out[a:b])
            assert same(out, whole)
    finally:
        set_threads(before)


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 20), total=st.integers(20, 200), group=st.integers(1, 8),
    window=st.sampled_from([0, 1, 50]), places=st.lists(st.integers(0, 3999), max_size=4),
    odd=st.sampled_from([np.nan, np.inf, -np.inf, 7e4, -7e4, 1e-7, 3e38]), among_keys=st.booleans(),
)  # fmt: skip
def test_halves_compute_as_their_values(
    tokens: int,
    total: int,
    group: int,
    window: int,
    places: list[int],
    odd: float,
    among_keys: bool,
) -> None:
    """Keys and values as binary16 give the bits of the same numbers kept as float32."""
    keys, values, q = normal(1, total, 1, 20), normal(2, total, 1, 20), normal(3, tokens, group, 20)
    for place in places:
        (keys if among_keys else values).reshape(-1)[place % keys.size] = odd
    found = []
    for kind, rows in (
        ("f16", (keys, values)),
        ("f32", (rounded(keys, "f16"), rounded(values, "f16"))),
    ):
        out = np.empty((tokens, group, 20), np.float32)
        attend(q, *ring(*rows, kind), total - tokens, window, 0.3, 0.0, None, out)
        found.append(out)
    assert same(*found)


def all_halves() -> npt.NDArray[np.float16]:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def test_every_half_is_read_exactly_as_value() -> None:
    """With a window of one the output is the value: its weight is exp(0) = 1."""
    halves = all_halves().astype(np.float32).reshape(-1, 1, 16)
    keys, q = normal(1, len(halves), 1, 4), normal(2, len(halves), 1, 4)
    out = np.empty(halves.shape, np.float32)
    attend(q, *ring(keys, halves, "f16"), 0, 1, 1.0, 0.0, None, out)
    with np.errstate(invalid="ignore"):
        assert same(out, halves + np.float32(0))  # a sum from zero: -0 becomes 0


def test_every_half_is_read_exactly_as_key() -> None:
    """The query is chosen so that every key's score is between 1 and 2 in size: no bit is lost."""
    halves = all_halves().astype(np.float32)
    fine = np.isfinite(halves) & (halves != 0)
    power = np.frexp(np.where(fine, halves, 1))[1]
    q = np.ldexp(np.float32(1), 1 - power).astype(np.float32).reshape(-1, 1, 1)
    ones, sink = np.ones((len(halves), 1, 1), np.float32), np.zeros(1, np.float32)
    keys = halves.reshape(-1, 1, 1)
    found = []
    for kind in KINDS:
        out = np.empty_like(ones)
        attend(q, *ring(keys, ones, kind), 0, 1, 1.0, 0.0, sink, out)
        found.append(out)
    assert same(*found)
    # With a sink of 0 the output is a sigmoid of the score.
    expected = 1 / (1 + np.exp(-(q[fine] * keys[fine]).astype(float)))
    np.testing.assert_allclose(found[0][fine], expected, rtol=1e-6)
    assert np.isnan(found[0][np.isnan(halves)]).all()


def test_a_query_sees_nothing_later_and_nothing_before_its_window() -> None:
    keys, values, q = normal(1, 130, 1, 16), normal(2, 130, 1, 16), normal(3, 1, 1, 16)
    out, other = np.empty((1, 1, 16), np.float32), np.empty((1, 1, 16), np.float32)
    attend(q, *ring(keys, values), 100, 30, 0.3, 0.0, None, out)
    keys[101:], values[101:] = np.nan, np.nan
    keys[:71], values[:71] = np.nan, np.nan
    attend(q, *ring(keys, values), 100, 30, 0.3, 0.0, None, other)
    assert same(out, other)


@pytest.mark.parametrize("start", [100, 130])
def test_each_query_of_several_sees_its_own_window(start: int) -> None:
    """A value that is not a number reaches those that see it, and those behind not at all."""
    keys, values, q = normal(1, 140, 1, 16), normal(2, 140, 1, 16), normal(3, 10, 3, 16)
    out, other = np.empty((10, 3, 16), np.float32), np.empty((10, 3, 16), np.float32)
    attend(q, *ring(keys, values), start, 80, 0.3, 0.0, None, out)
    values[start - 79 + 4] = np.nan
    attend(q, *ring(keys, values), start, 80, 0.3, 0.0, None, other)
    assert np.isnan(other[:5]).all()
    assert same(other[5:], out[5:])


def test_what_pads_values_is_never_seen() -> None:
    keys, values, q = normal(1, 70, 1, 16), normal(2, 70, 1, 5), normal(3, 9, 2, 16)
    out, other = np.empty((9, 2, 5), np.float32), np.empty((9, 2, 5), np.float32)
    kept = ring(keys, values)
    attend(q, *kept, 61, 0, 0.3, 0.0, None, out)
    assert (kept[1][0, :, :, 5:] == 0).all()
    kept[1][:, :, :, 5:] = np.nan
    attend(q, *kept, 61, 0, 0.3, 0.0, None, other)
    assert same(out, other)


def test_nan_is_carried() -> None:
    keys, values, q = normal(1, 70, 1, 16), normal(2, 70, 1, 16), normal(3, 1, 2, 16)
    keys[3, 0, 5] = np.nan
    out = np.empty((1, 2, 16), np.float32)
    attend(q, *ring(keys, values), 69, 0, 0.3, 0.0, None, out)
    assert np.isnan(out).all()


def test_large_scores_do_not_overflow() -> None:
    keys, values, q = normal(1, 70, 1, 16) * 1e4, normal(2, 70, 1, 16), normal(3, 1, 1, 16) * 1e4
    out = np.empty((1, 1, 16), np.float32)
    attend(q, *ring(keys, values), 69, 0, 1.0, 0.0, None, out)
    assert np.isfinite(out).all()


def test_refusals() -> None:
    q, out = normal(0, 2, 4, 8), np.empty((2, 4, 8), np.float32)
    keys, values = ring(normal(0, 10, 2, 8), normal(0, 10, 2, 8))
    with pytest.raises(ValueError, match="a ring of 64 cannot hold the 65 positions"):
        attend(q, keys, values, 63, 0, 1.0, 0.0, None, out)
    with pytest.raises(ValueError, match="cannot hold the 65 positions"):
        attend(q, keys, values, 90, 64, 1.0, 0.0, None, out)
    for start, window in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match=r"cannot hold the .* window"):
            attend(q, keys, values, start, window, 1.0, 0.0, None, out)
    with pytest.raises(ValueError, match="no multiple"):
        attend(normal(0, 2, 3, 8), keys, values, 0, 0, 1.0, 0.0, None, out)
    for bad_keys, bad_values in (
        (keys[:, :, :4], values),
        (keys, values[:, :, :, :8]),
        (keys, np.zeros((2, 2, 64, 16), np.float32)),
        (keys, np.zeros((1, 1, 64, 16), np.float32)),
        (keys, np.zeros((1, 2, 64, 32), np.float32)),
    ):
        with pytest.raises(ValueError, match="do not fit queries"):
            attend(q, bad_keys, bad_values, 0, 0, 1.0, 0.0, None, out)
    with pytest.raises(ValueError, match="keys and values must be contiguous and both"):
        attend(q, keys.astype(np.float16), values, 0, 0, 1.0, 0.0, None, out)
    with pytest.raises(ValueError, match="keys and values must be contiguous and both"):
        attend(q, np.zeros((1, 2, 64, 8), "f4").swapaxes(2, 3), values, 0, 0, 1.0, 0.0, None, out)
    with pytest.raises(ValueError, match="sinks must be contiguous"):
        attend(q, keys, values, 0, 0, 1.0, 0.0, normal(0, 3), out)
    with pytest.raises(ValueError, match="q must be contiguous"):
        attend(q.astype(float), keys, values, 0, 0, 1.0, 0.0, None, out)  # type: ignore[arg-type]


@pytest.mark.parametrize(("extent", "window"), [(1, 0), (9, 0), (30, 30), (100, 0), (200, 7)])
def test_scores_lean_on_the_distance(extent: int, window: int) -> None:
    """A bias of each head's own up to the extent, the same however queries are cut."""
    total, first, heads = 170, 60, 4
    keys, values = normal(1, total, 2, 16), normal(2, total, 2, 24)
    q, mixes, profiles = (
        normal(3, total, heads, 16),
        normal(4, total, heads, 3),
        normal(5, 3, extent),
    )
    kept, padded = ring(keys, values, "f32"), padded_profiles(profiles)
    count = total - first
    out = np.empty((count, heads, 24), np.float32)
    near = Distances(mixes[first:].copy(), padded)
    attend(q[first:].copy(), *kept, first, window, 0.3, 2.0, None, out, near)
    for t in range(count):
        position = first + t
        seen = np.arange(max(0, position - window + 1) if window else 0, position + 1)
        distance = position - seen
        for head in range(heads):
            score = keys[seen, head // 2].astype(float) @ q[position, head].astype(float) * 0.3
            added = mixes[position, head].astype(float) @ profiles.astype(float)
            score += np.where(distance < extent, added[np.minimum(distance, extent - 1)], 0.0)
            weight = np.exp(2.0 * np.tanh(score / 2.0))
            expected = weight @ values[seen, head // 2].astype(float) / weight.sum()
            np.testing.assert_allclose(out[t, head], expected, rtol=3e-5, atol=3e-6)
        one = np.empty((1, heads, 24), np.float32)
        single = Distances(mixes[position : position + 1].copy(), padded)
        attend(
            q[position : position + 1].copy(), *kept, position, window, 0.3, 2.0, None, one, single
        )
        assert same(one, out[t : t + 1])


def test_distances_that_do_not_fit_are_refused() -> None:
    kept = ring(normal(1, 4, 1, 16), normal(2, 4, 1, 16), "f32")
    out, q = np.empty((4, 1, 16), np.float32), normal(3, 4, 1, 16)
    near = Distances(normal(4, 4, 1, 2), padded_profiles(normal(5, 3, 9)))
    with pytest.raises(ValueError, match="mixes must be"):
        attend(q, *kept, 0, 0, 1.0, 0.0, None, out, near)
