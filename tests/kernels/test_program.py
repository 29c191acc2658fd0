"""A recorded call is the same call: same bits, at other positions, for any number of calls."""

from __future__ import annotations

import numpy as np
import pytest

from larql.kernels.attention import attend
from larql.kernels.elementwise import add_row, scale
from larql.kernels.program import recorded
from larql.kernels.ring import empty_keys, empty_values, write_rows
from larql.kernels.rope import inverse_frequencies, rotation_table
from larql.kernels.threads import set_threads, threads


def floats(*shape: int, seed: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_nothing_happens_until_the_program_runs() -> None:
    x = floats(3, 5)
    before = x.copy()
    with recorded(0) as made:
        scale(x, 2.0)
    assert (x == before).all()
    made().run(0)
    assert (x == 2 * before).all()
    made().run(0)
    assert (x == 4 * before).all()


def test_more_calls_than_fit_at_first() -> None:
    x = np.ones((1, 4), np.float32)
    row = np.ones(4, np.float32)
    with recorded(0) as made:
        for _ in range(300):
            add_row(x, row)
    made().run(0)
    assert (x == 301).all()


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_a_step_of_attention_moves_with_the_position(kind: str) -> None:
    frequencies = inverse_frequencies(10000.0, 8)
    keys, values = empty_keys(1, 2, 8, kind), empty_values(1, 2, 8, kind)
    direct_keys, direct_values = keys.copy(), values.copy()
    row, q = floats(1, 2, 8, seed=1), floats(1, 4, 8, seed=2)
    cos, sin = np.empty((1, 4), np.float32), np.empty((1, 4), np.float32)
    out = np.empty((1, 4, 8), np.float32)
    with recorded(3) as made:
        rotation_table(frequencies, 3, 1, cos, sin)
        write_rows(row, row, keys, values, 3)
        attend(q, keys, values, 3, 0, 0.3, 0.0, None, out)
    for position in (3, 4, 9, 5):
        row[:] = floats(1, 2, 8, seed=position)
        made().run(position)
        direct_cos, direct_sin, direct = np.empty_like(cos), np.empty_like(sin), np.empty_like(out)
        rotation_table(frequencies, position, 1, direct_cos, direct_sin)
        write_rows(row, row, direct_keys, direct_values, position)
        attend(q, direct_keys, direct_values, position, 0, 0.3, 0.0, None, direct)
        assert keys.tobytes() == direct_keys.tobytes()
        assert values.tobytes() == direct_values.tobytes()
        assert out.tobytes() == direct.tobytes()
        assert (cos.tobytes(), sin.tobytes()) == (direct_cos.tobytes(), direct_sin.tobytes())


def test_a_program_fits_its_thread_count_only() -> None:
    before = threads()
    x = floats(2, 3)
    try:
        set_threads(2)
        with recorded(0) as made:
            scale(x, 1.0)
        assert made().fits()
        set_threads(3)
        assert not made().fits()
    finally:
        set_threads(before)


def test_recordings_do_not_nest_and_end_with_an_error() -> None:
    with pytest.raises(RuntimeError, match="active already"), recorded(0), recorded(0):
        pass
    x = floats(1, 3)
    with pytest.raises(KeyboardInterrupt), recorded(0):
        raise KeyboardInterrupt
    expected = 2 * x
    scale(x, 2.0)
    assert (x == expected).all()


def test_adding_a_row() -> None:
    for width in (1, 16, 19):
        x, row = floats(3, width), floats(width, seed=4)
        expected = x + row
        add_row(x, row)
        assert (x == expected).all()
    with pytest.raises(ValueError, match="row"):
        add_row(floats(2, 3), floats(2))
