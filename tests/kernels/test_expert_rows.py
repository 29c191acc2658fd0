"""What surrounds the products of chosen experts: biases, rows in turn, rounding once, flags."""

from __future__ import annotations

import numpy as np
import pytest

from larql.kernels.expert_rows import add_rows_of, in_turn
from larql.kernels.finite import any_set, broken_rows
from larql.kernels.rounding import gather_rounded, quantize_rows
from tests.kernels.same import normal, same


@pytest.mark.parametrize(("width", "first"), [(37, 0), (5, 32), (16, 16)])
def test_biases_are_those_of_the_chosen(width: int, first: int) -> None:
    x, table, chosen = normal(1, 6, width), normal(2, 4, 37), np.array([3, 0, 0, 2, 1, 3])
    expected = x + table[chosen, first : first + width]
    add_rows_of(x, table, chosen, first)
    assert same(x, expected)


def test_biases_that_do_not_fit_are_refused() -> None:
    x, table = normal(1, 2, 8), normal(2, 4, 9)
    for first, chosen in ((2, np.zeros(2, np.int64)), (-1, np.zeros(2, np.int64)),
                          (0, np.zeros(3, np.int64)), (0, np.zeros(2, np.int32))):  # fmt: skip
        with pytest.raises(ValueError, match=r"cannot add|chosen must be"):
            add_rows_of(x, table, chosen, first)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [1, 16, 37])
def test_rows_in_turn_come_apart(width: int) -> None:
    fused = normal(1, 3, 2 * width)
    first, second = np.empty((3, width), np.float32), np.empty((3, width), np.float32)
    in_turn(fused, first, second)
    assert same(first, np.ascontiguousarray(fused[:, 0::2]))
    assert same(second, np.ascontiguousarray(fused[:, 1::2]))
    with pytest.raises(ValueError, match="second"):
        in_turn(fused, first, second[:2])


@pytest.mark.parametrize("count", [1, 5, 6, 16, 21])
def test_rows_that_were_rounded_once_are_rows_rounded_again(count: int) -> None:
    """The layout changes with their number, the bits do not."""
    x = normal(3, 9, 96)
    x[4, 40] = np.nan
    x[5] = 0
    rows = (np.arange(count) * 5 + 4) % 9
    found, expected = gather_rounded(quantize_rows(x, apart=True), rows), quantize_rows(x[rows])
    assert (found.count, found.columns, found.width) == (count, 96, expected.width)
    for name in ("values", "terms", "sums"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name


def test_rounded_rows_that_are_not_there_are_refused() -> None:
    x = quantize_rows(normal(1, 7, 32), apart=True)
    for rows in ([7], [-1]):
        with pytest.raises(ValueError, match="rows must be from 0 to 6"):
            gather_rounded(x, np.array(rows))
    with pytest.raises(ValueError, match="must have width 1"):
        gather_rounded(quantize_rows(normal(1, 7, 32)), np.array([0]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 36])
def test_rows_with_what_is_not_finite_are_told(value: float, at: int) -> None:
    x = normal(1, 4, 37)
    x[0, 3] = np.finfo(np.float32).max
    x[2, at] = value
    assert broken_rows(x).tolist() == [0, 0, 1, 0]


def test_one_word_of_many_is_enough() -> None:
    none = [np.zeros(3, np.int64), np.zeros(1, np.int64), np.zeros(5, np.int64)]
    assert any_set(none).tolist() == [0]
    for number, array in enumerate(none):
        for place in range(len(array)):
            some = [a.copy() for a in none]
            some[number][place] = 1
            assert any_set(some).tolist() == [1]
