"""A survey of logits against its naive twin: in any rows, at any thread count, at the edges."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from larql.kernels.likelihood import logarithm
from larql.kernels.survey import Survey, survey
from larql.kernels.threads import set_threads, threads
from tests.naive.survey import survey_row

Rows = npt.NDArray[np.float32]


def surveyed(rows: Rows, columns: list[int], top: int, block: int) -> Survey:
    found = Survey.begin(np.array(columns, np.int64), rows[:, columns], top)
    for first in range(0, rows.shape[1], block):
        survey(np.ascontiguousarray(rows[:, first : first + block]), first, found)
    return found


@given(
    rows=npst.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 70)),
        # Few values, so that many are equal.
        elements=st.sampled_from([-3e4, -2.5, -0.0, 0.0, 1.0, 1.5, 7.0, 3e4]),
    ),
    top=st.integers(1, 9),
    block=st.integers(1, 80),
    data=st.data(),
)
def test_it_is_what_sorting_finds(rows: Rows, top: int, block: int, data: st.DataObject) -> None:
    width = rows.shape[1]
    columns = data.draw(st.lists(st.integers(0, width - 1), max_size=5))
    found = surveyed(rows, columns, top, block)
    assert not found.broken.any()
    sums = found.largest + logarithm(found.total)
    top_columns, top_logits = found.top()
    for t, row in enumerate(rows):
        expected = survey_row(row, columns, top)
        kept = len(expected.top)
        assert top_columns[t, :kept].tolist() == [column for column, _ in expected.top]
        assert top_logits[t, :kept].tolist() == [logit for _, logit in expected.top]
        assert (top_columns[t, kept:] == -1).all()
        assert found.before[t].tolist() == expected.before
        assert math.isclose(sums[t], expected.log_sum_exp, rel_tol=1e-15, abs_tol=1e-13)


def test_each_row_may_have_marks_of_its_own() -> None:
    rows = np.random.default_rng(3).integers(-9, 9, (5, 700)).astype(np.float32)
    columns = np.random.default_rng(4).integers(0, 700, (5, 3))
    found = Survey.begin(columns, np.take_along_axis(rows, columns, 1), 2)
    for first in range(0, 700, 300):
        survey(np.ascontiguousarray(rows[:, first : first + 300]), first, found)
    for t, row in enumerate(rows):
        assert found.before[t].tolist() == survey_row(row, columns[t].tolist(), 2).before


@pytest.mark.parametrize("top", [64, 300, 1000])
def test_many_of_the_largest_are_kept_in_order(top: int) -> None:
    """Rows of wide steps and what is left of them, with equals that straddle blocks."""
    rows = np.random.default_rng(5).integers(-40, 40, (2, 1000)).astype(np.float32)
    found = surveyed(rows, [0, 63, 64, 999], top, 300)
    columns, logits = found.top()
    for t, row in enumerate(rows):
        expected = survey_row(row, [0, 63, 64, 999], top)
        assert columns[t].tolist() == [column for column, _ in expected.top]
        assert logits[t].tolist() == [logit for _, logit in expected.top]
        assert found.before[t].tolist() == expected.before


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 36, 70, 146])
def test_what_is_no_number_is_counted_and_stays_in_its_row(bad: float, at: int) -> None:
    rows = np.random.default_rng(1).normal(size=(3, 147)).astype(np.float32)
    rows[1, at] = bad
    found = surveyed(rows, [3], 4, 130)
    assert found.broken.tolist() == [0, 1, 0]
    alone = surveyed(rows[2:], [3], 4, 130)
    assert found.total[2] == alone.total[0]
    assert found.before[2, 0] == alone.before[0, 0]


def test_threads_and_neighbours_change_no_bit() -> None:
    rows = np.random.default_rng(2).normal(size=(7, 3001)).astype(np.float32) * 20
    before = threads()
    try:
        seen = set()
        for count in (1, 2, 3, 16):
            set_threads(count)
            found = surveyed(rows, [5, 2999], 5, 1024)
            arrays = (getattr(found, field.name) for field in dataclasses.fields(found))
            seen.add(b"".join(array.tobytes() for array in arrays))
            alone = surveyed(rows[4:5], [5, 2999], 5, 1024)
            assert alone.total[0] == found.total[4]
    finally:
        set_threads(before)
    assert len(seen) == 1


def test_blocks_that_do_not_fit() -> None:
    found = Survey.begin(np.array([0]), np.zeros((2, 1), np.float32), 1)
    for wrong in (np.zeros((3, 4), np.float32), np.zeros((2, 0), np.float32), np.zeros((2, 4))):
        with pytest.raises(ValueError):
            survey(wrong, 0, found)  # type: ignore[arg-type]
