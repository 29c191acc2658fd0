"""The difference of logits under a softmax against its naive twin."""

from __future__ import annotations

import numpy as np
import pytest

from larql.kernels.divergence import weighted_difference
from larql.kernels.threads import set_threads, threads
from tests.naive import divergence


def rows(count: int, width: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(count, width)) * 9).astype(np.float32)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 31, 48, 1000])
def test_it_is_what_adding_terms_gives(width: int) -> None:
    x, y = rows(5, width), rows(5, width, 1)
    x[0, 0] = 3e4  # all others are beyond what exp can tell from nothing
    found = weighted_difference(x, y, x.max(axis=1).astype(np.float64))
    for t in range(5):
        expected = divergence.weighted_difference(x[t], y[t])
        assert found[t] == pytest.approx(expected, rel=1e-12, abs=1e-10)
    assert (weighted_difference(x, x, x.max(axis=1).astype(np.float64)) == 0).all()


def test_threads_and_neighbours_change_no_bit() -> None:
    x, y = rows(7, 3001), rows(7, 3001, 1)
    largest = x.max(axis=1).astype(np.float64)
    before = threads()
    try:
        seen = set()
        for count in (1, 2, 3, 16):
            set_threads(count)
            seen.add(weighted_difference(x, y, largest).tobytes())
            alone = weighted_difference(x[4:5], y[4:5], largest[4:5])
            assert alone[0] == weighted_difference(x, y, largest)[4]
    finally:
        set_threads(before)
    assert len(seen) == 1


def test_arrays_that_do_not_fit() -> None:
    x = rows(2, 8)
    for y, largest in (
        (rows(3, 8), np.zeros(2)),
        (rows(2, 7), np.zeros(2)),
        (rows(2, 8), np.zeros(3)),
        (rows(2, 16)[:, ::2], np.zeros(2)),
    ):
        with pytest.raises(ValueError):
            weighted_difference(x, y, largest)
