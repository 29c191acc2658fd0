"""Routers and sums of experts against plain NumPy: ties, groups, corrections, broken numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels.routing import (
    Choice,
    Selection,
    add_chosen,
    choose,
    clamped_gate,
    scale_rows,
)
from tests.kernels.same import normal, same

Float32 = npt.NDArray[np.float32]
PLAIN = Selection(2, "softmax", True, True, 0.0, 1.0)


def naive(
    logits: Float32, s: Selection, correction: Float32 | None, factors: Float32 | None
) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Choose for one position: sorted lists and float64."""
    wide = logits.astype(np.float64)
    if s.score == "softmax":
        scores = np.exp(wide - wide.max()) / np.exp(wide - wide.max()).sum()
    else:
        scores = 1.0 / (1.0 + np.exp(-wide))
    ranks = wide if s.ranks_by_logits else scores
    if correction is not None:
        ranks = ranks + correction
    allowed = list(range(len(ranks)))
    if s.groups:
        size = len(ranks) // s.groups
        best = []
        for g in range(s.groups):
            members = sorted(ranks[g * size : (g + 1) * size], reverse=True)
            best.append((-sum(members[: 2 if s.group_score == "top2_sum" else 1]), g))
        kept = {g for _, g in sorted(best)[: s.kept]}
        allowed = [e for e in allowed if e // size in kept]
    chosen = sorted(allowed, key=lambda e: (-ranks[e], e))[: s.top]
    weights = scores[chosen]
    if s.renormalise:
        weights = weights / (weights.sum() + s.eps)
    weights = weights * s.scale
    return chosen, weights if factors is None else weights * factors[chosen]


def check(choice: Choice, logits: Float32, s: Selection, *more: Float32 | None) -> None:
    assert not choice.broken.any()
    for t, row in enumerate(logits):
        chosen, weights = naive(row, s, *more)
        assert choice.chosen[t].tolist() == chosen
        np.testing.assert_allclose(choice.weights[t], weights, rtol=3e-6, atol=1e-30)


@pytest.mark.parametrize("experts", [2, 16, 19, 48])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalise", [True, False])
def test_experts_are_chosen_and_weighted(experts: int, score: str, renormalise: bool) -> None:
    selection = dataclasses.replace(
        PLAIN,
        score=score,
        ranks_by_logits=score == "softmax",
        renormalise=renormalise,
        scale=2.5,
        eps=1e-3,
    )
    logits, factors = normal(experts, 7, experts), normal(1, experts)
    found = choose(logits, selection, None, factors)
    check(found, logits, selection, None, factors)
    if score == "softmax":
        assert same(found.ranks, logits)


@pytest.mark.parametrize("group_score", ["max", "top2_sum"])
def test_groups_and_a_correction_that_only_chooses(group_score: str) -> None:
    selection = Selection(5, "sigmoid", False, True, 1e-20, 1.5, 6, 2, group_score)  # type: ignore[arg-type]
    logits, correction = normal(2, 40, 24), normal(3, 24)
    found = choose(logits, selection, correction, None)
    check(found, logits, selection, correction, None)
    plain = choose(logits, dataclasses.replace(selection, groups=0), correction, None)
    assert (plain.chosen != found.chosen).any()
    assert (choose(logits, selection, None, None).chosen != found.chosen).any()


def test_equal_ranks_go_by_number() -> None:
    logits = np.array([[1, 3, 3, 0, 3, 3]], np.float32)
    selection = dataclasses.replace(PLAIN, top=3)
    assert choose(logits, selection, None, None).chosen.tolist() == [[1, 2, 4]]
    grouped = dataclasses.replace(selection, top=2, groups=3, kept=1)
    assert choose(np.zeros((1, 6), np.float32), grouped, None, None).chosen.tolist() == [[0, 1]]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 40))
def test_a_position_does_not_hang_on_others(seed: int, count: int, experts: int) -> None:
    logits = normal(seed, count, experts) * np.float32(5)
    selection = dataclasses.replace(PLAIN, top=1 + seed % experts)
    whole = choose(logits, selection, None, None)
    for t in range(count):
        one = choose(logits[t : t + 1].copy(), selection, None, None)
        assert one.chosen[0].tolist() == whole.chosen[t].tolist()
        assert same(one.weights[0], whole.weights[t])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number_is_told(value: float) -> None:
    logits = normal(4, 3, 20)
    logits[1, 17] = value
    assert choose(logits, PLAIN, None, None).broken.tolist() == [0, 1, 0]
    ranked = dataclasses.replace(PLAIN, ranks_by_logits=False)
    correction = np.zeros(20, np.float32)
    correction[3] = value
    assert choose(normal(4, 2, 20), ranked, correction, None).broken.tolist() == [1, 1]


def test_outputs_are_added_in_the_order_of_the_choice() -> None:
    y, weights = normal(5, 12, 37), normal(6, 4, 3)
    places = np.random.default_rng(7).permutation(12).reshape(4, 3)
    out = np.empty((4, 37), np.float32)
    add_chosen(y, places, weights, out)
    for t in range(4):
        total = np.zeros(37)
        for place, weight in zip(places[t], weights[t], strict=True):
            # One rounding for product and sum: exact in float64 for float32 factors and a sum.
            total = (y[place].astype(np.float64) * float(weight) + total).astype(np.float32)
        np.testing.assert_array_max_ulp(out[t], total.astype(np.float32), 1)
    again = np.empty((1, 37), np.float32)
    add_chosen(y, places[2:3].copy(), weights[2:3].copy(), again)
    assert same(again[0], out[2])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 16, 36])
@pytest.mark.parametrize("weight", [0.5, 0.0])
def test_a_sum_that_is_not_finite_is_told(value: float, at: int, weight: float) -> None:
    """Whatever the weight: nothing times zero is lost."""
    y, weights = normal(5, 12, 37), normal(6, 4, 3)
    places, out = np.arange(12).reshape(4, 3), np.empty((4, 37), np.float32)
    assert add_chosen(y, places, weights, out).tolist() == [0, 0, 0, 0]
    y[7, at], weights[2, 1] = value, weight
    assert add_chosen(y, places, weights, out).tolist() == [0, 0, 1, 0]
    y[7, at], weights[2] = 1, np.finfo(np.float32).max
    y[6:9, at] = 3
    assert add_chosen(y, places, weights, out).tolist() == [0, 0, 1, 0]


def test_rows_are_scaled_and_gates_are_cut() -> None:
    x, factors = normal(8, 3, 21), normal(9, 3)
    expected = x * factors[:, None]
    scale_rows(x, factors)
    assert same(x, expected)
    g, u = normal(10, 5, 1000) * np.float32(4), normal(11, 5, 1000) * np.float32(4)
    a, b = np.minimum(g, 3.0).astype(np.float64), np.clip(u, -3.0, 3.0).astype(np.float64)
    wanted = a / (1.0 + np.exp(-1.7 * a)) * (b + 1.0)
    clamped_gate(g, u, limit=3.0, slope=1.7, offset=1.0)
    np.testing.assert_allclose(u, wanted, rtol=2e-5, atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    logits = normal(12, 2, 8)
    for selection in (
        dataclasses.replace(PLAIN, top=9),
        dataclasses.replace(PLAIN, top=3, groups=4, kept=1),
        dataclasses.replace(PLAIN, groups=3, kept=1),
    ):
        with pytest.raises(ValueError, match="cannot choose"):
            choose(logits, selection, None, None)
    with pytest.raises(ValueError, match="correction"):
        choose(logits, PLAIN, normal(1, 7), None)
    out = np.empty((1, 8), np.float32)
    with pytest.raises(ValueError, match="places must be from 0 to 1"):
        add_chosen(logits, np.array([[0, 2]]), normal(1, 1, 2), out)
    with pytest.raises(ValueError, match="factors"):
        scale_rows(logits, normal(1, 3))


def test_a_sink_that_is_no_number_breaks_the_choice() -> None:
    logits = normal(3, 3, 6)
    logits[1, 5] = np.inf
    select = Selection(2, "sigmoid", False, True, 0.0, 1.0, sinks=2)
    choice = choose(logits, select, None, None)
    assert choice.broken.tolist() == [0, 1, 0]
    assert (choice.weights[1] == 0).all() and (choice.shared[:, 1] == 0).all()


@pytest.mark.parametrize("low", [0.0, -120.0])
def test_sinks_take_their_share(low: float) -> None:
    """Also where every sigmoid is too small for a number."""
    generator = np.random.default_rng(3)
    logits = (generator.standard_normal((7, 22)) + low).astype(np.float32)
    correction = generator.standard_normal(19).astype(np.float32)
    select = Selection(4, "sigmoid", False, True, 0.0, 1.3, sinks=3)
    choice = choose(logits, select, correction, None)
    assert choice.ranks.shape == (7, 19) and choice.shared.shape == (3, 7)
    for t, row in enumerate(logits.astype(np.float64)):
        ranks = 1.0 / (1.0 + np.exp(-row[:19])) + correction
        chosen = np.lexsort((np.arange(19), -ranks))[:4]
        assert choice.chosen[t].tolist() == chosen.tolist()
        joined = -np.logaddexp(0.0, -np.append(row[chosen], row[19:]))
        powers = np.exp(joined - joined.max())
        expected = powers / powers.sum() * 1.3
        found = np.append(choice.weights[t], choice.shared[:, t])
        np.testing.assert_allclose(found, expected, rtol=2e-5)
