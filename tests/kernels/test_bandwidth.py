"""Reading memory: every byte counts once, at any size and thread count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.kernels.bandwidth import UNIT, read_through
from larql.kernels.threads import set_threads, threads


def naive(data: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    words = data.view("<u4").reshape(-1, 16).astype(np.uint64)
    return (words.sum(axis=0) % (1 << 32)).astype(np.uint32).view(np.int32)


@given(units=st.integers(1, 3000), seed=st.integers(0, 9), count=st.sampled_from((1, 2, 5)))
def test_it_reads_every_byte_once(units: int, seed: int, count: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, units * UNIT, np.uint8)
    before = threads()
    try:
        set_threads(count)
        np.testing.assert_array_equal(read_through(data), naive(data))
    finally:
        set_threads(before)


def test_it_reads_from_any_address() -> None:
    data = np.random.default_rng(0).integers(0, 256, 9 * UNIT + 3, np.uint8)[3:]
    np.testing.assert_array_equal(read_through(data), naive(data.copy()))


@pytest.mark.parametrize(
    "data",
    [
        np.zeros(0, np.uint8),
        np.zeros(UNIT + 1, np.uint8),
        np.zeros(UNIT, np.int8),
        np.zeros((1, UNIT), np.uint8),
        np.zeros(2 * UNIT, np.uint8)[::2],
    ],
    ids=["empty", "odd size", "other type", "two axes", "strided"],
)
def test_it_refuses_what_it_cannot_read(data: np.ndarray) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="data must be contiguous uint8"):
        read_through(data)
