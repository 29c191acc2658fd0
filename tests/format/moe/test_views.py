"""Views take elements and change none."""

from __future__ import annotations

import numpy as np
import pytest

from larql.errors import BindingDefect
from larql.format.moe.views import DIRECT, ColumnSlice, RowSlice, Transposed, View, apply, viewed
from larql.format.rows import RowSelection

VALUES = np.arange(24).reshape(4, 6)
VIEWS: list[tuple[View, object, str]] = [
    (DIRECT, VALUES, "direct"),
    (Transposed(), VALUES.T, "transposed"),
    (RowSlice(RowSelection.span(1, 2)), VALUES[1:3], "rows 1:3"),
    (RowSlice(RowSelection(0, 1, 2, 2)), VALUES[::2], "2 runs of 1 rows from 0, 2 apart"),
    (ColumnSlice(0, 5), VALUES[:, :5], "columns 0:5"),
]


@pytest.mark.parametrize(("view", "expected", "text"), VIEWS)
def test_elements_and_shape(view: View, expected: np.ndarray, text: str) -> None:
    found = apply(view, VALUES)
    assert found.tolist() == expected.tolist()
    assert viewed(view, (4, 6)) == expected.shape
    assert view.text == text


@pytest.mark.parametrize(
    "view",
    [
        RowSlice(RowSelection.span(3, 2)),
        RowSlice(RowSelection(0, 2, 1, 2)),
        ColumnSlice(2, 5),
        ColumnSlice(-1, 2),
        ColumnSlice(0, 0),
    ],
)
def test_beyond_the_matrix(view: View) -> None:
    with pytest.raises(BindingDefect, match="not in it"):
        viewed(view, (4, 6))
