"""log(sum(exp)) against its naive twin, at the edges, and across threads."""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from larql.kernels import likelihood
from larql.kernels.likelihood import log_sum_exp, logarithm
from larql.kernels.threads import set_threads, threads


def naive(row: np.ndarray) -> float:  # type: ignore[type-arg]
    values = [float(v) for v in row]
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(v - largest) for v in values))


@given(
    rows=npst.arrays(
        np.float32,
        npst.array_shapes(min_dims=2, max_dims=2, max_side=37),
        elements=st.floats(-3e4, 3e4, width=32),
    )
)
def test_it_is_the_sum(rows: np.ndarray) -> None:  # type: ignore[type-arg]
    found = log_sum_exp(rows)
    for value, row in zip(found, rows, strict=True):
        assert math.isclose(value, naive(row), rel_tol=1e-15, abs_tol=1e-13)


def test_edges() -> None:
    rows = np.array(
        [[1, np.inf, 0], [1, np.nan, 2], [-np.inf] * 3, [1, -np.inf, 3e38], [-745, 0, -800]],
        np.float32,
    )
    found = log_sum_exp(rows)
    assert found[0] == np.inf
    assert np.isnan(found[1])
    assert found[2] == -np.inf
    assert found[3] == np.float32(3e38)
    assert found[4] == 0.0


def test_a_wide_row_of_equal_logits_is_exact() -> None:
    assert log_sum_exp(np.zeros((1, 262144), np.float32))[0] == math.log(262144)


def test_threads_change_no_bit() -> None:
    rows = np.random.default_rng(1).normal(size=(7, 1003)).astype(np.float32) * 20
    before = threads()
    try:
        found = []
        for count in (1, 2, 3, 16):
            set_threads(count)
            found.append(log_sum_exp(rows).tobytes())
    finally:
        set_threads(before)
    assert len(set(found)) == 1
    assert log_sum_exp(rows[3:4]).tobytes() == np.frombuffer(found[0], np.float64)[3:4].tobytes()


def test_shapes_that_do_not_fit() -> None:
    for wrong in (np.zeros(3, np.float32), np.zeros((2, 0), np.float32), np.zeros((2, 2))):
        with pytest.raises(ValueError):
            log_sum_exp(wrong)


@given(st.floats(min_value=5e-324, allow_infinity=False))
@example(1.0)
@example(5e-324)
@example(1.0 + 2.0**-52)
@example(1.7976931348623157e308)
def test_logarithms_are_correctly_rounded(value: float) -> None:
    assert logarithm(np.array([value]))[0] == float(Context(prec=60).ln(Decimal(value)))


def test_a_logarithm_too_near_the_middle_is_decided_by_decimal_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With so much slack every result is too near.
    monkeypatch.setattr(likelihood, "_SLACK", 1 << 150)
    for value in (1.5, 7.25, 1e300):
        expected = float(Context(prec=60).ln(Decimal(value)))
        assert logarithm(np.array([value]))[0] == expected


def test_logarithms_at_the_edges() -> None:
    found = logarithm(np.array([0.0, math.inf, math.nan, 1.0]))
    assert found[0] == -math.inf and found[1] == math.inf and math.isnan(found[2]) and found[3] == 0
    assert len(logarithm(np.empty(0))) == 0
