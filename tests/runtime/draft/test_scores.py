"""Scores of a draft against the softmaxes written out, and what many of them come to."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from larql.errors import UsageError
from larql.runtime.draft.scores import Scores, joined, read_target, score_rows
from larql.runtime.draft.summary import bootstrap_means, summarise
from tests.naive import divergence

Rows = npt.NDArray[np.float32]

LOGITS = st.sampled_from([-3e4, -2.5, -0.0, 0.0, 1.0, 1.5, 7.0])


def scored(target: Rows, draft: Rows, following: list[int]) -> Scores:
    return score_rows(read_target(target, np.array(following), "t", 0), draft, "d", 0)


@given(data=st.data(), width=st.integers(1, 40), count=st.integers(1, 3))
def test_they_are_what_the_softmaxes_say(data: st.DataObject, width: int, count: int) -> None:
    rows = npst.arrays(np.float32, (count, width), elements=LOGITS)
    target, draft = data.draw(rows), data.draw(rows)
    following = data.draw(
        st.lists(st.integers(-1, width - 1), min_size=count, max_size=count), label="following"
    )
    found = scored(target, draft, following)
    for t in range(count):
        expected = divergence.score(target[t], draft[t], following[t])
        assert found.divergence[t] == pytest.approx(expected.divergence, rel=1e-11, abs=1e-10)
        assert found.target_top[t] == expected.target_top
        assert found.draft_top[t] == expected.draft_top
        assert found.rank[t] == expected.rank
        for ours, theirs in (
            (found.target_nll[t], expected.target_nll),
            (found.draft_nll[t], expected.draft_nll),
        ):
            assert math.isnan(ours) if theirs is None else ours == pytest.approx(theirs, abs=1e-10)
    assert (scored(target, target, following).divergence == 0).all()


def test_positions_do_not_depend_on_their_neighbours() -> None:
    random = np.random.default_rng(0)
    target, draft = random.normal(size=(2, 9, 300)).astype(np.float32) * 5
    following = random.integers(0, 300, 9).tolist()
    whole = scored(target, draft, following)
    parts = [scored(target[a:b], draft[a:b], following[a:b]) for a, b in ((0, 1), (1, 4), (4, 9))]
    for field in dataclasses.fields(Scores):
        assert getattr(whole, field.name).tobytes() == getattr(joined(parts), field.name).tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_no_number_is_refused_by_position(bad: float) -> None:
    good = np.zeros((3, 20), np.float32)
    broken = good.copy()
    broken[1, 7] = bad
    with pytest.raises(UsageError, match=r"a\.npy: 1 logits of position 33 are not finite"):
        read_target(broken, np.zeros(3, np.int64), "a.npy", 32)
    target = read_target(good, np.zeros(3, np.int64), "a.npy", 32)
    with pytest.raises(UsageError, match=r"b\.npy: 1 logits of position 33"):
        score_rows(target, broken, "b.npy", 32)


def test_a_token_without_a_logit_has_no_likelihood() -> None:
    row = np.zeros((1, 4), np.float32)
    found = scored(row, row, [5])
    assert np.isnan(found.target_nll[0]) and np.isnan(found.draft_nll[0])


def make(count: int, *, known: bool = True, seed: int = 0) -> Scores:
    random = np.random.default_rng(seed)
    rank = random.integers(1, 8, count)
    nll = random.exponential(size=(2, count))
    return Scores(
        random.exponential(size=count), np.zeros(count, np.int64), (rank > 1).astype(np.int64),
        rank, *(nll if known else np.full((2, count), np.nan)),
    )  # fmt: skip


def test_a_summary_is_means_and_percentiles_of_the_positions() -> None:
    scores = make(200)
    scores.target_nll[-1] = scores.draft_nll[-1] = np.nan
    found = summarise(scores)
    assert (found.positions, found.next_token and found.next_token.positions) == (200, 199)
    assert found.divergence.value == pytest.approx(scores.divergence.mean(), rel=1e-14)
    assert found.divergence_spread.percentiles["50"] == np.median(scores.divergence)
    assert found.divergence_spread.maximum == scores.divergence.max()
    assert found.same_top.value == found.contained["1"].value == (scores.rank == 1).mean()
    assert found.contained["5"].value == (scores.rank <= 5).mean()
    assert found.contained["10"].value == 1.0
    following = found.next_token
    assert following is not None
    target, draft = scores.target_nll[:-1], scores.draft_nll[:-1]
    assert following.target_nll.value == pytest.approx(target.mean())
    assert following.nll_difference.value == pytest.approx((draft - target).mean())
    assert following.draft_perplexity.value == pytest.approx(math.exp(draft.mean()))
    assert following.perplexity_ratio.value == pytest.approx(math.exp((draft - target).mean()))
    delta = np.exp(-draft) - np.exp(-target)
    assert following.delta_p.value == pytest.approx(delta.mean())
    assert following.rms_delta_p.value == pytest.approx(math.sqrt((delta**2).mean()))
    for estimate in (found.divergence, following.rms_delta_p, following.perplexity_ratio):
        assert estimate.low < estimate.value < estimate.high


def test_without_a_next_token_nothing_is_said_of_it() -> None:
    assert summarise(make(4, known=False)).next_token is None
    one = summarise(make(1, known=False))
    assert one.divergence.low == one.divergence.value == one.divergence.high
    with pytest.raises(UsageError, match="no position"):
        summarise(make(0))


def test_unlikely_tokens_do_not_overflow() -> None:
    scores = make(2)
    scores.draft_nll[:] = 3e4
    following = summarise(scores).next_token
    assert following is not None and following.draft_perplexity.value == math.inf


def test_the_interval_holds_the_mean_that_was_drawn_from() -> None:
    random = np.random.default_rng(7)
    inside = 0
    for _ in range(100):
        (found,) = bootstrap_means([random.exponential(size=60)])
        inside += found.low <= 1.0 <= found.high
    assert 85 <= inside <= 99
    values = random.exponential(size=30)
    assert bootstrap_means([values]) == bootstrap_means([values])
    # all columns are drawn alike
    same, other = bootstrap_means([values, values])
    assert same == other
