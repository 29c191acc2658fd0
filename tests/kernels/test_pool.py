"""The pool runs every task once, for any number of threads and callers."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from larql.kernels import setup
from larql.kernels.atomic import atomic_add, atomic_load, relax
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import load_i64, store_i64
from larql.kernels.threads import launch, scratch, set_threads, threads


@kernel
def _count(variant: Any, p: int, task: int, worker: int) -> None:
    place = load_i64(p) + task * 8
    store_i64(place, load_i64(place) + 1)
    store_i64(load_i64(p + 8) + task * 8, worker)


@kernel
def _hold(variant: Any, p: int, task: int, worker: int) -> None:
    """Count; the first task waits for so many others, or gives up."""
    others, patience = load_i64(p + 8), load_i64(p + 16)
    if task == 0:
        while atomic_load(load_i64(p)) < others and patience > 0:
            relax(variant)
            patience -= 1
        store_i64(load_i64(p) + 8, patience)
    else:
        atomic_add(load_i64(p), 1)


@pytest.fixture(autouse=True)
def _restore_threads() -> Any:
    before = threads()
    yield
    set_threads(before)


class Counter:
    """Tasks that count themselves."""

    def __init__(self, tasks: int) -> None:
        self.counts = np.zeros(tasks + 1, np.int64)
        self.workers = np.zeros(tasks + 1, np.int64)
        self.function = compiled_address(_count, Variant(setup.current().level))
        self.parameters = np.array([a.ctypes.data for a in (self.counts, self.workers)])

    def run(self, tasks: int) -> None:
        launch(self.function, self.parameters, tasks)


@pytest.mark.parametrize("count", [1, 2, 3, 16, 64])
def test_every_task_runs_once(count: int) -> None:
    set_threads(count)
    counter = Counter(200)
    for _ in range(20):
        counter.run(200)
    assert (counter.counts[:200] == 20).all()
    assert counter.counts[200] == 0
    assert counter.workers.min() >= 0 and counter.workers.max() < count


@pytest.mark.parametrize("count", [2, 3, 20])
@pytest.mark.parametrize("tasks", [2, 3, 5, 17, 19, 40])
def test_few_tasks_run_once(count: int, tasks: int) -> None:
    set_threads(count)
    counter = Counter(tasks)
    for _ in range(50):
        counter.run(tasks)
    assert counter.counts.tolist() == [50] * tasks + [0]


def test_a_thread_that_is_kept_leaves_the_rest_to_others() -> None:
    set_threads(2)
    found = np.zeros(2, np.int64)
    function = compiled_address(_hold, Variant(setup.current().level))
    # Claims are a quarter of half the tasks and one; what is beside the first one can be done.
    others = 800 - 101
    parameters = np.array([found.ctypes.data, others, 1 << 30])
    launch(function, parameters, 800)
    assert found[0] == 799
    assert found[1] > 0


def test_workers_sleep_and_wake() -> None:
    set_threads(3)
    counter = Counter(50)
    counter.run(50)
    time.sleep(0.05)  # long enough for them to stop spinning
    start = time.process_time()
    time.sleep(0.1)
    assert time.process_time() - start < 0.05
    counter.run(50)
    assert (counter.counts[:50] == 2).all()


def test_callers_in_several_threads() -> None:
    set_threads(4)
    counters = [Counter(37) for _ in range(5)]

    def call(counter: Counter) -> None:
        for _ in range(300):
            counter.run(37)

    callers = [threading.Thread(target=call, args=(counter,)) for counter in counters]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((counter.counts[:37] == 300).all() for counter in counters)


def test_a_forked_child_computes_too() -> None:
    set_threads(3)
    counter = Counter(40)
    counter.run(40)
    child = os.fork()
    if child == 0:
        counter.run(40)
        whole = (counter.counts[:40] == 2).all() and threading.active_count() == 3
        os._exit(0 if whole else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_scratch_is_separate_for_each_worker() -> None:
    set_threads(5)
    address, stride = scratch(1000)
    assert address % 64 == 0 and stride % 64 == 0 and stride >= 1000


def test_thread_counts_out_of_range() -> None:
    for wrong in (0, 65):
        with pytest.raises(ValueError, match=f"found {wrong}"):
            set_threads(wrong)
