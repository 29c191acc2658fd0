"""Verdicts at single checkpoints, and ties."""

from __future__ import annotations

import numpy as np
import pytest

from larql.runtime.observe.sites import WriteSite
from larql.runtime.parity.blocks import compare_locked, compare_propagated
from larql.runtime.parity.recorder import Seen
from larql.runtime.parity.verdict import (
    EXACT,
    FLOAT32,
    Checkpoint,
    Tolerance,
    Verdict,
    compare_choice,
    compare_rows,
    weakest,
)
from larql.runtime.taps import Routing

SITES = (WriteSite(None, "embed"), WriteSite(0, "ffn"), WriteSite(1, "ffn"))


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def compared(a: np.ndarray, b: np.ndarray, tolerance: Tolerance = FLOAT32) -> Checkpoint:
    return compare_rows("0.ffn", "down", a, b, tolerance)


def test_the_order_of_verdicts() -> None:
    assert weakest([Verdict.TIE_EQUIVALENT, Verdict.EXACT]) is Verdict.TIE_EQUIVALENT
    assert weakest(Verdict) is Verdict.NUMERIC_MISMATCH
    assert weakest([]) is None


def test_equal_bits_are_exact_where_they_are_asserted_and_observed_elsewhere() -> None:
    a = rows([1.0, -2.0])
    assert compared(a, a.copy(), EXACT).verdict is Verdict.EXACT
    assert compared(a, a.copy()).verdict is Verdict.OBSERVED_EXACT
    zeros = rows([0.0, 1.0]), rows([-0.0, 1.0])
    assert compared(*zeros, EXACT).verdict is Verdict.NUMERIC_MISMATCH
    assert compared(*zeros).verdict is Verdict.EQUIVALENT


def test_errors_are_relative_to_the_baseline_s_largest_value_of_the_same_position() -> None:
    a, b = rows([1000.0, 1.0], [1.0, 0.5]), rows([1000.0, 1.0], [1.0, 0.5004])
    found = compared(a, b)
    assert found.error == pytest.approx(4e-4, rel=1e-3)
    assert (found.verdict, found.position) == (Verdict.NUMERIC_MISMATCH, 1)
    assert compared(b, a).error == pytest.approx(4e-4, rel=1e-3)
    # Not relative to what is compared with it, or a value far too large would look small.
    assert compared(rows([1.0]), rows([5.0])).error == 4.0


def test_there_is_a_floor_below_which_nothing_is_relative() -> None:
    assert compared(rows([0.0]), rows([1e-12])).verdict is Verdict.EQUIVALENT
    assert compared(rows([0.0]), rows([1e-8])).verdict is Verdict.NUMERIC_MISMATCH


def test_what_is_not_finite_is_never_equivalent() -> None:
    for broken in (np.nan, np.inf):
        found = compared(rows([1.0, 2.0]), rows([1.0, broken]))
        assert (found.verdict, found.error) == (Verdict.NUMERIC_MISMATCH, None)
    assert compared(rows([np.nan]), rows([np.nan])).blank == "not finite"
    assert compared(rows([0.0]), rows([0.0])).blank == "all zero"
    assert compared(rows([1.0]), rows([np.nan])).blank is None
    assert compared(rows([1.0, 2.0]), rows([1.0])).verdict is Verdict.NUMERIC_MISMATCH


def routing(scores: list[float], chosen: list[int]) -> Routing:
    return Routing(
        np.array([scores], np.float32),
        np.array([chosen], np.int64),
        np.full((1, len(chosen)), 0.5, np.float32),
    )


def test_a_choice_between_scores_that_rounding_confuses_is_a_tie() -> None:
    ours = routing([1.0, 0.50001, 0.5, 0.1], [0, 1])
    theirs = routing([1.0, 0.5, 0.50001, 0.1], [0, 2])
    found, other = compare_choice("0.ffn", ours, theirs, FLOAT32)
    assert found.verdict is Verdict.TIE_EQUIVALENT
    assert other.tolist() == [True]
    # With the bits asserted there is no such excuse, nor where the scores are the same.
    assert compare_choice("0.ffn", ours, theirs, EXACT)[0].verdict is Verdict.NUMERIC_MISMATCH
    same = routing([1.0, 0.50001, 0.5, 0.1], [0, 2])
    assert compare_choice("0.ffn", ours, same, FLOAT32)[0].verdict is Verdict.NUMERIC_MISMATCH
    far = routing([1.0, 0.1, 0.5, 0.1], [0, 2])
    assert compare_choice("0.ffn", ours, far, FLOAT32)[0].verdict is Verdict.NUMERIC_MISMATCH


def test_another_order_needs_the_same_excuse() -> None:
    ours = routing([0.50001, 0.5, 0.1], [0, 1])
    near = routing([0.5, 0.50001, 0.1], [1, 0])
    found, other = compare_choice("0.ffn", ours, near, FLOAT32)
    assert (found.verdict, other.tolist()) == (Verdict.TIE_EQUIVALENT, [False])
    wrong = routing([0.50001, 0.5, 0.1], [1, 0])
    assert compare_choice("0.ffn", ours, wrong, FLOAT32)[0].verdict is Verdict.NUMERIC_MISMATCH


def seen(carriers: np.ndarray, choice: Routing) -> Seen:
    stages = tuple({"output": carriers[w]} for w in (1, 2))
    return Seen(carriers, stages, (choice, None), ({}, {}))


def test_what_follows_a_tie_is_not_compared() -> None:
    near = [1.0, 0.50001, 0.5]
    scores, chosen = np.array([near] * 3, np.float32), np.array([[0, 1]] * 3)
    ours = Routing(scores, chosen, np.full((3, 2), 0.5, np.float32))
    scores, chosen = scores.copy(), chosen.copy()
    scores[1], chosen[1] = [1.0, 0.5, 0.50001], [0, 2]
    theirs = Routing(scores, chosen, ours.weights)
    a = np.ones((3, 3, 4), np.float32)
    b = a.copy()
    b[1, 1], b[2, 1:] = 2.0, 3.0
    embed, first, second = compare_locked(SITES, seen(a, ours), seen(b, theirs), FLOAT32)
    assert (embed.verdict, first.verdict) == (Verdict.OBSERVED_EXACT, Verdict.TIE_EQUIVALENT)
    # On identical input the next layer has nothing to do with the tie before it.
    assert second.verdict is Verdict.NUMERIC_MISMATCH
    found = compare_propagated(SITES, seen(a, ours), seen(b, theirs), FLOAT32)
    assert found.verdict is Verdict.TIE_EQUIVALENT
    assert found.tied.tolist() == [False, True, True]
