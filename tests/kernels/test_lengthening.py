"""Rows that grow with the logarithm of their position."""

from __future__ import annotations

import numpy as np
import pytest

from larql.kernels.lengthening import lengthen
from larql.kernels.program import recorded
from tests.kernels.same import same


@pytest.mark.parametrize(("floor", "rate"), [(1, 0.1), (3, 0.7), (1000, 2.0)])
def test_the_factor_is_the_formula_s(floor: int, rate: float) -> None:
    positions = np.arange(2500)
    x = np.ones((len(positions), 2, 9), np.float32)
    lengthen(x, 0, floor, rate)
    expected = 1.0 + rate * np.log(np.maximum((positions + 1) / floor, 1.0))
    np.testing.assert_allclose(x, np.broadcast_to(expected[:, None, None], x.shape), rtol=6e-8)
    assert (x[:floor] == 1.0).all()


def test_a_recorded_step_moves_with_its_position() -> None:
    x, again = np.ones((1, 5), np.float32), np.ones((1, 5), np.float32)
    with recorded(3) as program:
        lengthen(x, 3, 2, 0.5)
    program().run(40)
    lengthen(again, 40, 2, 0.5)
    assert same(x, again)


def test_a_floor_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="floor must be at least 1"):
        lengthen(np.ones((1, 2), np.float32), 0, 0, 0.5)
