"""Attention: near float64, and the same bits for any chunk, ring, thread count or company."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels.attention import attend
from larql.kernels.threads import set_threads, threads
from tests.kernels.same import normal, same
from tests.naive import kernels as naive


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 9), start=st.integers(0, 300), kv_heads=st.integers(1, 3),
    group=st.integers(1, 3), dims=st.sampled_from([1, 16, 24, 64]),
    value_dims=st.sampled_from([3, 32, 64, 128]), window=st.sampled_from([0, 1, 7, 64, 100]),
    spare=st.integers(0, 70), softcap=st.sampled_from([0.0, 3.0]), sinks=st.booleans(),
)  # fmt: skip
def test_it_is_attention(
    tokens: int, start: int, kv_heads: int, group: int, dims: int, value_dims: int, window: int,
    spare: int, softcap: float, sinks: bool,
) -> None:  # fmt: skip
    seen = start + tokens if window == 0 else min(start + tokens, window + tokens - 1)
    q = normal(1, tokens, kv_heads * group, dims)
    keys, values = (normal(2, seen + spare, kv_heads, d) for d in (dims, value_dims))
    sink = normal(3, kv_heads * group) if sinks else None
    out = np.full((tokens, kv_heads * group, value_dims), np.nan, np.float32)
    scale = dims**-0.5
    attend(q, keys, values, start, window, scale, softcap, sink, out)
    expected = naive.attend(q, keys, values, start, window, scale, softcap, sink)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)
    for t in range(tokens):
        one = np.empty((1, *out.shape[1:]), np.float32)
        attend(q[t : t + 1], keys, values, start + t, window, scale, softcap, sink, one)
        assert same(one, out[t : t + 1])


def rings(capacity: int, last: int, keys: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Rows of positions 0 … last in a ring, later ones over earlier ones; rubbish elsewhere."""
    ring = np.full((capacity, *keys.shape[1:]), np.nan, np.float32)
    for p in range(last + 1):
        ring[p % capacity] = keys[p]
    return ring


def test_ring_chunks_and_threads_change_no_bit() -> None:
    total, window = 400, 90
    keys, values, q = normal(1, total, 2, 32), normal(2, total, 2, 64), normal(3, total, 6, 32)
    whole = np.empty((total, 6, 64), np.float32)
    attend(q, keys, values, 0, window, 0.2, 0.0, None, whole)
    before = threads()
    try:
        for count, chunk, capacity in ((1, 1, 90), (2, 37, 126), (3, 64, 200), (16, 133, 222)):
            set_threads(count)
            out = np.empty_like(whole)
            for a in range(0, total, chunk):
                b = min(total, a + chunk)
                ring_keys, ring_values = (rings(capacity, b - 1, rows) for rows in (keys, values))
                attend(q[a:b], ring_keys, ring_values, a, window, 0.2, 0.0, None, out[a:b])
            assert same(out, whole)
    finally:
        set_threads(before)


def test_a_query_sees_nothing_later_and_nothing_before_its_window() -> None:
    keys, values, q = normal(1, 130, 1, 16), normal(2, 130, 1, 16), normal(3, 1, 1, 16)
    out, other = np.empty((1, 1, 16), np.float32), np.empty((1, 1, 16), np.float32)
    attend(q, keys, values, 100, 30, 0.3, 0.0, None, out)
    keys[101:], values[101:] = np.nan, np.nan
    keys[:71], values[:71] = np.nan, np.nan
    attend(q, keys, values, 100, 30, 0.3, 0.0, None, other)
    assert same(out, other)


def test_nan_is_carried() -> None:
    keys, values, q = normal(1, 70, 1, 16), normal(2, 70, 1, 16), normal(3, 1, 2, 16)
    keys[3, 0, 5] = np.nan
    out = np.empty((1, 2, 16), np.float32)
    attend(q, keys, values, 69, 0, 0.3, 0.0, None, out)
    assert np.isnan(out).all()


def test_large_scores_do_not_overflow() -> None:
    keys, values, q = normal(1, 70, 1, 16) * 1e4, normal(2, 70, 1, 16), normal(3, 1, 1, 16) * 1e4
    out = np.empty((1, 1, 16), np.float32)
    attend(q, keys, values, 69, 0, 1.0, 0.0, None, out)
    assert np.isfinite(out).all()


def test_refusals() -> None:
    q, ring, out = normal(0, 2, 4, 8), normal(0, 10, 2, 8), np.empty((2, 4, 8), np.float32)
    with pytest.raises(ValueError, match="a ring of 10 cannot hold the 11 positions"):
        attend(q, ring, ring, 9, 0, 1.0, 0.0, None, out)
    with pytest.raises(ValueError, match="cannot hold the 11 positions"):
        attend(q, ring, ring, 30, 10, 1.0, 0.0, None, out)
    with pytest.raises(ValueError, match="no multiple"):
        attend(normal(0, 2, 3, 8), ring, ring, 0, 0, 1.0, 0.0, None, out)
    with pytest.raises(ValueError, match="keys must be contiguous"):
        attend(q, ring[:, :, :4], ring, 0, 0, 1.0, 0.0, None, out)
    with pytest.raises(ValueError, match="sinks must be contiguous"):
        attend(q, ring, ring, 0, 0, 1.0, 0.0, normal(0, 3), out)
    with pytest.raises(ValueError, match="q must be contiguous"):
        attend(q.astype(float), ring, ring, 0, 0, 1.0, 0.0, None, out)  # type: ignore[arg-type]
