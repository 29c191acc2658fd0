"""Reused memory: apart until a restart, on cache lines, and of no consequence for numbers."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from larql.format.container import Container
from larql.runtime.backends.workspace import Workspace
from larql.runtime.run import RunOptions, open_run

SHAPES = st.lists(
    st.tuples(st.tuples(st.integers(0, 9), st.integers(0, 9)), st.sampled_from(["f4", "i1", "i4"])),
    max_size=6,
)


@given(rounds=st.lists(SHAPES, max_size=4))
def test_arrays_are_apart_aligned_and_as_asked_for(
    rounds: list[list[tuple[tuple[int, int], str]]],
) -> None:
    memory = Workspace()
    for wanted in rounds:
        memory.restart()
        made = [memory.take(shape, kind) for shape, kind in wanted]
        for number, (array, (shape, kind)) in enumerate(zip(made, wanted, strict=True)):
            assert array.shape == shape and array.dtype == kind and array.flags.c_contiguous
            assert array.size == 0 or array.ctypes.data % 64 == 0
            array[...] = number
        for number, array in enumerate(made):
            assert (array == number).all()


def test_a_restart_gives_the_same_memory_again() -> None:
    memory = Workspace()
    first = memory.take((512, 100)).ctypes.data
    memory.restart()
    assert memory.take((512, 100)).ctypes.data == first


def test_sessions_of_several_threads_do_not_share_it(containers: dict[str, Container]) -> None:
    run = open_run(containers["llama"], RunOptions(threads=2))
    tokens = [[(7 * i + seed) % 100 for i in range(40)] for seed in range(4)]

    def stepped(ids: list[int]) -> list[bytes]:
        session = run.session(60)
        rows = [session.step(ids)] + [session.step([token]) for token in ids[:12]]
        return [row.tobytes() for row in rows]

    expected = [stepped(ids) for ids in tokens]
    found: dict[int, list[bytes]] = {}

    def work(index: int) -> None:
        found[index] = stepped(tokens[index])

    for _ in range(8):
        workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [found[index] for index in range(4)] == expected
    assert np.isfinite(np.frombuffer(expected[0][0], np.float32)).all()
