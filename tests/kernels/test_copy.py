"""Copies are of bits, and are made again by a recorded program."""

from __future__ import annotations

import numpy as np
import pytest

from larql.kernels.copy import copy
from larql.kernels.program import recorded


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 16384, 16385, 40000])
def test_all_bits_are_copied(size: int) -> None:
    bits = np.random.default_rng(size).integers(0, 2**32, size, dtype=np.uint32)
    target = np.zeros(size + 1, np.float32)
    copy(bits.view(np.float32), target[:size])
    assert (target[:size].view(np.uint32) == bits).all()
    assert target[size] == 0


def test_a_recorded_copy_is_made_when_the_program_runs() -> None:
    source, target = np.zeros((2, 5), np.float32), np.zeros((2, 5), np.float32)
    with recorded(0) as program:
        copy(source, target)
    for value in (1.0, -0.0):
        source[:] = value
        program().run(0)
        assert target.tobytes() == source.tobytes()


def test_arrays_that_do_not_fit() -> None:
    good = np.zeros((4, 4), np.float32)
    for wrong in (good[:2], good.T[::2], good.astype(np.float64)):
        with pytest.raises(ValueError):
            copy(good, wrong)
