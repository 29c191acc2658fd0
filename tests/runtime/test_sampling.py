"""Choosing tokens: ties, order, distribution, and what ends a text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from larql.errors import UsageError
from larql.format.container import Container
from larql.runtime.generate import generate
from larql.runtime.run import RunOptions, open_run
from larql.runtime.sampling import Sampler, Sampling, greedy, top_tokens

ROWS = npst.arrays(np.float32, st.integers(1, 40), elements=st.floats(-50, 50, width=32))


@given(row=ROWS, count=st.integers(1, 45))
def test_top_tokens_are_a_stable_sort(row: np.ndarray, count: int) -> None:  # type: ignore[type-arg]
    expected = sorted(range(len(row)), key=lambda i: (-row[i], i))[:count]
    assert [token for token, _ in top_tokens(row, count)] == expected
    assert greedy(row) == expected[0]


def test_nan_is_last_in_the_list_and_no_token() -> None:
    row = np.array([1, np.nan, 3], np.float32)
    assert [token for token, _ in top_tokens(row, 3)] == [2, 0, 1]
    for sampler in (Sampler(Sampling()), Sampler(Sampling(temperature=1.0))):
        with pytest.raises(UsageError, match="token 1 is not a number"):
            sampler.choose(row)


def test_draws_follow_the_distribution() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(Sampling(temperature=1.0, seed=3))
    counts = np.bincount([sampler.choose(row) for _ in range(20000)], minlength=4) / 20000
    assert np.abs(counts - [0.5, 0.3, 0.15, 0.05]).max() < 0.015


def test_temperature_sharpens_and_top_p_cuts() -> None:
    row = np.log(np.array([0.15, 0.5, 0.05, 0.3], np.float32))
    cut = Sampler(Sampling(temperature=1.0, top_p=0.7, seed=1))
    counts = np.bincount([cut.choose(row) for _ in range(5000)], minlength=4) / 5000
    assert np.abs(counts - [0, 0.625, 0, 0.375]).max() < 0.03
    cold = Sampler(Sampling(temperature=0.05, seed=1))
    assert {cold.choose(row) for _ in range(200)} == {1}
    single = Sampler(Sampling(temperature=5.0, top_p=1e-9, seed=1))
    assert {single.choose(row) for _ in range(200)} == {1}


def test_the_same_seed_draws_the_same() -> None:
    row = np.zeros(100, np.float32)
    drawn = [
        [Sampler(Sampling(1.0, 1.0, seed)).choose(row) for _ in range(5)] for seed in (7, 7, 8)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((-1.0, 1.0, 0), "--temperature"),
        ((float("nan"), 1.0, 0), "--temperature"),
        ((1.0, 0.0, 0), "--top-p"),
        ((1.0, 1.1, 0), "--top-p"),
        ((1.0, 1.0, -1), "--seed"),
    ],
)
def test_settings_out_of_range(arguments: tuple[float, float, int], option: str) -> None:
    with pytest.raises(UsageError, match=option):
        Sampling(*arguments)


def test_generation_stops_at_an_end_token_and_yields_it(containers: dict[str, Container]) -> None:
    run = open_run(containers["llama"], RunOptions(backend="reference"))

    def made(ends: tuple[int, ...], count: int) -> list[int]:
        session = run.session(40)
        row = session.step([1, 2, 3])
        return list(generate(run, session, row, count, Sampler(Sampling()), ends))

    free = made((), 8)
    assert len(free) == 8
    first = free.index(free[4])
    assert made((free[4],), 8) == free[: first + 1]
    assert made((), 0) == []


def test_nothing_is_drawn_from_infinite_logits() -> None:
    rows = ([np.inf, 0.0], [-np.inf, -np.inf])
    for row in rows:
        sampler = Sampler(Sampling(temperature=1.0))
        with pytest.raises(UsageError, match="no token can be drawn"):
            sampler.choose(np.array(row, np.float32))
    assert Sampler(Sampling()).choose(np.array(rows[0], np.float32)) == 0
