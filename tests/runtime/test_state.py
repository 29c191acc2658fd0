"""Continuation state against a list of rows, for any sequence of advances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.errors import UsageError
from larql.format.graph import KvRows
from larql.kernels.ring import empty_keys, empty_values, write_rows
from larql.runtime.backends.registry import make_backend
from larql.runtime.regions import RowRegion
from larql.runtime.state import State


def spec_of(window: int | None, heads: int = 1, dims: int = 1) -> KvRows:
    return KvRows(0, heads, dims, dims, "full" if window is None else "window", window)


def region(window: int | None, context: int, block: int) -> RowRegion:
    return RowRegion(spec_of(window), context, block, np.float64)


def rows(start: int, count: int, salt: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    values = np.arange(start, start + count, dtype=np.float32) + 1000 * salt
    return values.reshape(-1, 1, 1)


@given(
    window=st.one_of(st.none(), st.integers(1, 9)),
    block=st.integers(1, 6),
    steps=st.lists(st.integers(1, 6), min_size=1, max_size=12),
)
def test_every_row_that_a_query_may_see_is_there(
    window: int | None, block: int, steps: list[int]
) -> None:
    context = sum(min(step, block) for step in steps)
    kept = region(window, context, block)
    length = 0
    for step in steps:
        count = min(step, block)
        kept.write(length, rows(length, count), -rows(length, count))
        for query in range(length, length + count):
            first = 0 if window is None else max(0, query - window + 1)
            for position in range(first, query + 1):
                slot = position % kept.capacity
                assert kept.keys[slot, 0, 0] == position
                assert kept.values[slot, 0, 0] == -position
        length += count


@given(
    window=st.one_of(st.none(), st.integers(1, 5)),
    before=st.integers(0, 12),
    after=st.integers(1, 3),
)
def test_snapshot_and_restore(window: int | None, before: int, after: int) -> None:
    kept = region(window, 40, 3)
    state = State([kept])
    for position in range(before):
        kept.write(position, rows(position, 1), rows(position, 1))
    state.length = before
    snapshot = state.snapshot()
    for position in range(before, before + after):
        kept.write(position, rows(position, 1, 7), rows(position, 1, 7))
    state.length = before + after
    state.restore(snapshot)
    assert state.length == before
    for position in kept.kept(before):
        assert kept.keys[position % kept.capacity, 0, 0] == position


def test_a_ring_is_no_larger_than_its_window_and_block() -> None:
    assert region(4, 1000, 8).capacity == 12
    assert region(4, 6, 8).capacity == 6
    assert region(None, 1000, 8).capacity == 1000


def test_truncate_refuses_what_is_gone() -> None:
    state = State([region(4, 100, 2)])
    state.length = 50
    assert state.can_truncate(48)
    assert not state.can_truncate(40)
    with pytest.raises(UsageError, match="dropped rows"):
        state.truncate(40)
    with pytest.raises(UsageError, match="truncate a state of 50 positions to 51"):
        state.truncate(51)
    state.truncate(48)
    assert state.length == 48
    state.truncate(48)


def test_a_full_state_truncates_anywhere() -> None:
    state = State([region(None, 100, 2)])
    state.length = 50
    state.truncate(0)
    assert state.length == 0


@pytest.mark.parametrize("kind", ["f32", "f16"])
@settings(deadline=None, max_examples=30)
@given(
    window=st.one_of(st.none(), st.integers(1, 90)),
    block=st.integers(1, 70),
    before=st.integers(0, 400),
    after=st.integers(1, 70),
)
def test_a_restored_region_of_blocks_is_as_it_was(
    kind: str, window: int | None, block: int, before: int, after: int
) -> None:
    """Every position that the state needs has its bits again, and no other was touched."""
    kept = make_backend("production", kv=kind).region(spec_of(window, 2, 5), 470, block)
    assert kept.keys.dtype == kept.values.dtype == {"f32": np.float32, "f16": np.float16}[kind]

    def write(first: int, count: int, seed: int) -> None:
        new = np.random.default_rng(seed).standard_normal((count, 2, 5)).astype(np.float32)
        for at in range(0, count, block):
            part = new[at : at + block]
            write_rows(part, -part, kept.keys, kept.values, first + at)

    write(0, before, 1)
    snapshot = kept.snapshot(before)
    keys, values = kept.keys.copy(), kept.values.copy()
    write(before, after, 2)
    kept.restore(snapshot)
    for position in kept.kept(before):
        at, place = position // 64 % len(keys), position % 64
        assert (kept.keys[at, :, :, place] == keys[at, :, :, place]).all()
        assert (kept.values[at, :, place] == values[at, :, place]).all()


def test_blocks_are_rounded_up_and_no_more() -> None:
    backend = make_backend("production")
    sizes = (None, 200, 9), (100, 5000, 20), (100, 5000, 29), (100, 60, 20)
    found = [backend.region(spec_of(w), context, block).capacity for w, context, block in sizes]
    assert found == [256, 128, 192, 64]


def test_half_the_bytes() -> None:
    spec = spec_of(None, 3, 20)
    full, half = (
        make_backend("production", kv=kind).region(spec, 130, 8) for kind in ("f32", "f16")
    )
    assert full.nbytes == 2 * half.nbytes == 192 * 3 * (20 + 32) * 4


def test_a_window_of_blocks_truncates_while_its_rows_are_there() -> None:
    kept = make_backend("production").region(spec_of(100), 5000, 20)
    assert kept.can_truncate(400, 372)  # needs positions from 273 on; 128 are kept
    assert kept.can_truncate(400, 371)
    assert not kept.can_truncate(400, 370)


@pytest.mark.filterwarnings("error")
def test_rows_are_rounded_to_binary16_on_request() -> None:
    kept = RowRegion(spec_of(None, 1, 3), 4, 1, np.float16)
    numbers = np.array([[[0.1, 65519.0, 65520.0]]])
    kept.write(1, numbers, -numbers)
    expected = np.array([0.0999755859375, 65504.0, np.inf])
    assert (kept.keys[1, 0] == expected).all()
    assert (kept.values[1, 0] == -expected).all()


def test_the_room_of_blocks_is_what_the_kernels_take() -> None:
    kept = make_backend("production").region(spec_of(None, 2, 20), 130, 8)
    assert kept.keys.shape == empty_keys(3, 2, 20, "f32").shape == (3, 2, 20, 64)
    assert kept.values.shape == empty_values(3, 2, 20, "f32").shape == (3, 2, 64, 32)
