"""A pool of threads that share the tasks of one kernel call.

Callers put a job in one slot and work on it themselves; workers join as they come. A caller waits
only for tasks that somebody has begun, so a worker that the system keeps off its core delays
nobody. Which thread runs a task never matters to its result.

The slot's ticket is one word: generation in the high half, next task in the low half. A task is
claimed by advancing the ticket it was read from, so a claim can only succeed for the job whose
description was read in between; while a description is written the ticket is closed (odd
generation). Idle workers spin for a while, then sleep on the generation.
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
_TICKET, _DONE, _FUNCTION, _PARAMETERS, _TASKS, _SLEEPERS, _STOP = 0, 128, 256, 264, 272, 384, 512
_SPIN, _CALL_NUMBER, _SPLIT = 520, 528, 536
_SLOT_BYTES = 640
_CLOSED = 0xFFFFFFFF
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE, private to the process
_FUTEX_CALL = {"x86_64": 202, "amd64": 202, "aarch64": 98, "riscv64": 98}
_SPINS = 12000  # some hundred microseconds: the pause between two steps of decoding
_PATIENCE = 4000  # how often a caller looks for begun tasks before it lends its core


@device
def _claim(variant: Any, slot: int, worker: int) -> int:
    """Work on the slot's job until no task is left; return the generation that was seen."""
    while True:
        ticket = atomic_load(slot + _TICKET)
        task = ticket & _CLOSED
        if task >= load_i64(slot + _TASKS):
            seen: int = ticket >> 32
            return seen
        function, parameters = load_i64(slot + _FUNCTION), load_i64(slot + _PARAMETERS)
        # Neighbouring tasks in one claim: memory is read in long runs, and the last claims are
        # single tasks, so that threads finish together even on busy cores.
        count = max(1, (load_i64(slot + _TASKS) - task) // load_i64(slot + _SPLIT))
        if swap_if(slot + _TICKET, ticket, ticket + count):
            for index in range(task, task + count):
                call_kernel(function, parameters, index, worker)
            atomic_add(slot + _DONE, count)


@kernel
def _work(variant: Any, slot: int, worker: int, unused: int) -> None:
    """Live as a worker thread until the slot is stopped."""
    seen = 0
    while atomic_load(slot + _STOP) == 0:
        spins = load_i64(slot + _SPIN)
        while spins > 0 and atomic_load(slot + _TICKET) >> 32 == seen:
            relax(variant)
            spins -= 1
        if atomic_load(slot + _TICKET) >> 32 == seen:
            atomic_add(slot + _SLEEPERS, 1)
            futex(load_i64(slot + _CALL_NUMBER), slot + _TICKET + 4, _WAIT, seen)
            atomic_add(slot + _SLEEPERS, -1)
        else:
            seen = _claim(variant, slot, worker)


@kernel
def _run(variant: Any, job: int, unused: int, unused_too: int) -> None:
    """Run the job (slot, function, parameters, tasks); alone where the slot is 0."""
    slot, function = load_i64(job), load_i64(job + 8)
    parameters, tasks = load_i64(job + 16), load_i64(job + 24)
    if slot == 0:
        for task in range(tasks):
            call_kernel(function, parameters, task, 0)
        return
    generation = atomic_load(slot + _TICKET) >> 32
    atomic_store(slot + _TICKET, ((generation + 1) << 32) | _CLOSED)
    store_i64(slot + _FUNCTION, function)
    store_i64(slot + _PARAMETERS, parameters)
    store_i64(slot + _TASKS, tasks)
    atomic_store(slot + _DONE, 0)
    atomic_store(slot + _TICKET, (generation + 2) << 32)
    if atomic_load(slot + _SLEEPERS) > 0:
        futex(load_i64(slot + _CALL_NUMBER), slot + _TICKET + 4, _WAKE, 0x7FFFFFFF)
    _claim(variant, slot, 0)
    spins = 0
    while atomic_load(slot + _DONE) < tasks:
        relax(variant)
        spins += 1
        if spins > _PATIENCE:
            yield_core()


@kernel
def _wake(variant: Any, slot: int, unused: int, unused_too: int) -> None:
    """Publish an empty job, so that workers look at the stop word."""
    generation = atomic_load(slot + _TICKET) >> 32
    atomic_store(slot + _TICKET, ((generation + 2) << 32) | _CLOSED)
    futex(load_i64(slot + _CALL_NUMBER), slot + _TICKET + 4, _WAKE, 0x7FFFFFFF)


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
        words = np.zeros(_SLOT_BYTES // 8 + 16, np.int64)
        self._memory = words
        self.slot = -(-int(words.ctypes.data) // 128) * 128
        base = (self.slot - int(words.ctypes.data)) // 8
        self._stop: npt.NDArray[np.int64] = words[base + _STOP // 8 :][:1]
        # With more threads than cores a spinning worker keeps a working one from running.
        words[base + _SPIN // 8] = _SPINS if threads <= setup.usable_cores() else 0
        words[base + _SPLIT // 8] = 2 * threads
        words[base + _CALL_NUMBER // 8] = _FUTEX_CALL[platform.machine().lower()]
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
