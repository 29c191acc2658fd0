"""A pool of threads that share the tasks of one kernel call.

Callers put a job in one slot and work on it themselves; workers join as they come. A caller waits
only for tasks that somebody has begun, so a worker that the system keeps off its core delays
nobody. Which thread runs a task never matters to its result.

A job's tasks are divided into spans, one for each thread. A thread takes the tasks of its own span
in order, so that it reads memory in one long run; then what is left of the others'. It claims a
quarter of what is left at once, because a claim empties the processor's pipeline, and in the end
single tasks, so that threads finish together even on busy cores.

A span's ticket is one word: the job's number in the high half, the next task in the low half. A
task is claimed by advancing the ticket it was read from, so a claim can only succeed for the job
whose description was read in between. Who claims the last task closes the ticket, and so all are
closed while the next description is written. Idle workers spin for a while, then sleep on the
number of the job.
"""

from __future__ import annotations

import platform
import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.atomic import (
    atomic_add,
    atomic_load,
    atomic_release,
    atomic_store,
    futex,
    relax,
    swap_if,
    yield_core,
)
from larql.kernels.jit import Variant, compiled_address, device, kernel, native
from larql.kernels.memory import call_kernel, load_i64, store_i64

__all__ = ["Pool", "runner"]

# Byte offsets in the slot; words that different threads write are on cache lines of their own.
_NUMBER, _DONE, _FUNCTION, _PARAMETERS, _SLEEPERS, _STOP = 0, 128, 256, 264, 384, 512
_SPIN, _CALL_NUMBER, _SPANS, _TICKETS = 520, 528, 536, 640
_LINE = 128  # of a ticket and its end; processors fetch lines in pairs
_MOST_SPANS = 16  # opening one costs the caller a cache line
_CLOSED = 0xFFFFFFFF
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE, private to the process
_FUTEX_CALL = {"x86_64": 202, "amd64": 202, "aarch64": 98, "riscv64": 98}
_SPINS = 20000  # some hundred microseconds: the pause between two steps of decoding
_PATIENCE = 4000  # how often a caller looks for begun tasks before it lends its core


@device
def _claim(variant: Any, slot: int, worker: int) -> None:
    """Work on the slot's job until no task is left."""
    spans = load_i64(slot + _SPANS)
    done, span = 0, worker
    while span >= spans:
        span -= spans
    for _ in range(spans):
        place = slot + _TICKETS + span * _LINE
        span = span + 1 if span + 1 < spans else 0
        ticket = atomic_load(place)
        while ticket & _CLOSED != _CLOSED:
            function, parameters = load_i64(slot + _FUNCTION), load_i64(slot + _PARAMETERS)
            task = ticket & _CLOSED
            left = load_i64(place + 8) - task
            count = left // 4 + 1
            if swap_if(place, ticket, ticket + count if count < left else ticket | _CLOSED):
                for index in range(task, task + count):
                    call_kernel(function, parameters, index, worker)
                done += count
            ticket = atomic_load(place)
    if done > 0:  # until this is added, the job remains in the slot
        atomic_add(slot + _DONE, done)


@kernel
def _work(variant: Any, slot: int, worker: int, unused: int) -> None:
    """Live as a worker thread until the slot is stopped."""
    seen = 0
    while atomic_load(slot + _STOP) == 0:
        spins = load_i64(slot + _SPIN)
        while spins > 0 and atomic_load(slot + _NUMBER) == seen:
            relax(variant)
            spins -= 1
        number = atomic_load(slot + _NUMBER)
        if number == seen:
            atomic_add(slot + _SLEEPERS, 1)
            futex(load_i64(slot + _CALL_NUMBER), slot + _NUMBER, _WAIT, seen)
            atomic_add(slot + _SLEEPERS, -1)
        else:
            seen = number
            _claim(variant, slot, worker)


@device
def _publish(slot: int) -> None:
    """Tell workers that there is something new."""
    atomic_store(slot + _NUMBER, load_i64(slot + _NUMBER) + 1)
    if atomic_load(slot + _SLEEPERS) > 0:
        futex(load_i64(slot + _CALL_NUMBER), slot + _NUMBER, _WAKE, 0x7FFFFFFF)


@kernel
def _run(variant: Any, job: int, unused: int, unused_too: int) -> None:
    """Run the job (slot, function, parameters, tasks); alone where the slot is 0."""
    slot, function = load_i64(job), load_i64(job + 8)
    parameters, tasks = load_i64(job + 16), load_i64(job + 24)
    if slot == 0:
        for task in range(tasks):
            call_kernel(function, parameters, task, 0)
        return
    store_i64(slot + _FUNCTION, function)
    store_i64(slot + _PARAMETERS, parameters)
    store_i64(slot + _DONE, 0)
    spans = load_i64(slot + _SPANS)
    share = tasks // spans
    longer = tasks - share * spans
    opened = (load_i64(slot + _NUMBER) + 1) << 32
    first, place = 0, slot + _TICKETS
    for span in range(spans):
        end = first + share + (1 if span >= spans - longer else 0)
        if first < end:
            store_i64(place + 8, end)
            atomic_release(place, opened | first)
        first, place = end, place + _LINE
    _publish(slot)
    _claim(variant, slot, 0)
    spins = 0
    while atomic_load(slot + _DONE) < tasks:
        relax(variant)
        spins += 1
        if spins > _PATIENCE:
            yield_core()


@kernel
def _wake(variant: Any, slot: int, unused: int, unused_too: int) -> None:
    """Have workers look at the stop word."""
    _publish(slot)


@cache
def _addresses() -> tuple[int, int, int]:
    variant = Variant(setup.current().level)
    run, work, wake = (compiled_address(f, variant) for f in (_run, _work, _wake))
    return run, work, wake


def runner() -> int:
    """Return the address of the kernel that runs a job."""
    return _addresses()[0]


class Pool:
    """Worker threads for calls on `threads` threads, the caller being one of them.

    Attributes
    ----------
    slot : int
        Address of the job slot.
    free : threading.Lock
        Held while a job is in the slot.
    """

    def __init__(self, threads: int) -> None:
        _, work, _ = _addresses()
        spans = min(threads, _MOST_SPANS)
        words = np.zeros((_TICKETS + spans * _LINE) // 8 + 16, np.int64)
        self._memory = words
        self.slot = -(-int(words.ctypes.data) // 128) * 128
        base = (self.slot - int(words.ctypes.data)) // 8
        self._stop: npt.NDArray[np.int64] = words[base + _STOP // 8 :][:1]
        # With more threads than cores a spinning worker keeps a working one from running.
        words[base + _SPIN // 8] = _SPINS if threads <= setup.usable_cores() else 0
        words[base + _SPANS // 8] = spans
        words[base + _CALL_NUMBER // 8] = _FUTEX_CALL[platform.machine().lower()]
        first = base + _TICKETS // 8
        words[first : first + spans * _LINE // 8 : _LINE // 8] = _CLOSED
        self.free = threading.Lock()
        call = native(work)
        self._threads = [
            threading.Thread(target=call, args=(None, self.slot, w, 0), daemon=True)
            for w in range(1, threads)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the workers; the pool must be idle."""
        self._stop[0] = 1
        native(_addresses()[2])(None, self.slot, 0, 0)
        for thread in self._threads:
            thread.join()
