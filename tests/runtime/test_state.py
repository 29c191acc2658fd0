"""Continuation state against a list of rows, for any sequence of advances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import UsageError
from larql.format.graph import KvRows
from larql.runtime.state import KvRegion, State


def region(window: int | None, context: int, block: int) -> KvRegion:
    spec = KvRows(0, 1, 1, 1, "full" if window is None else "window", window)
    return KvRegion(spec, context, block, np.float32)


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
    state = State([region(window, 40, 3)])
    kept = state.region(0)
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
