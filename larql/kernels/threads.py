"""Run the tasks of a kernel on several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.jit import compiled_entry, device, kernel, types
from larql.kernels.memory import address_of, call_kernel, words
from larql.kernels.pool import Pool, runner

__all__ = [
    "PARAMETERS",
    "Recording",
    "begin",
    "depends_on_position",
    "launch",
    "recording",
    "scratch",
    "set_threads",
    "shared_scratch",
    "submit",
    "threads",
]


PARAMETERS = 80  # words that a recording keeps of a call; no kernel reads more


class _Machine:
    """The thread count and pool of the process: a setting of the machine, like a core count."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool: Pool | None = None
        self.changing = threading.Lock()

    def ready(self) -> Pool:
        """Return a pool of the current size, starting its threads if need be."""
        with self.changing:
            if self.pool is None:
                self.pool = Pool(self.count)
            return self.pool

    def resize(self, count: int) -> None:
        """Let later calls use `count` threads."""
        with self.changing:
            pool, self.pool, self.count = self.pool, None, count
            if pool is not None:
                with pool.free:
                    pool.close()

    def forget(self) -> None:
        """Drop the pool in a forked child, which has none of its threads."""
        self.pool = None
        self.changing = threading.Lock()


_MACHINE = _Machine(setup.current().threads)
os.register_at_fork(after_in_child=_MACHINE.forget)


class Recording:
    """Kernel calls that are written down instead of being made.

    Parameters
    ----------
    recorder : int
        Address of the kernel that writes a job down.
    head, job : int
        Words before the first job, and of each job.

    Attributes
    ----------
    memory : int64 [n]
        The jobs; word 0 counts them.
    kept : list
        Arrays that the jobs read and write.
    marked : list of int
        Indices of words in `memory` that advance with the position of the stream.
    """

    def __init__(self, recorder: int, head: int, job: int) -> None:
        self.recorder = recorder
        self.memory = np.zeros(head + 64 * job, np.int64)
        self.kept: list[object] = []
        self.marked: list[int] = []
        self.scratch = np.empty(0, np.uint8)
        self.shared = np.empty(0, np.uint8)
        self._head, self._job = head, job

    def take(self, entry: Callable[..., None], function: int, tasks: int, operands: Any) -> None:
        """Write one call down."""
        needed = self._head + (int(self.memory[0]) + 1) * self._job
        if needed > len(self.memory):
            self.memory = np.concatenate([self.memory, np.zeros_like(self.memory)])
        self.kept.append(operands)
        entry(self.recorder, int(self.memory.ctypes.data), function, tasks, *operands)

    def mark(self, word: int) -> None:
        """State that a word of the last call advances with the position."""
        self.marked.append(self._head + (int(self.memory[0]) - 1) * self._job + 2 + word)


class _Caller(threading.local):
    """Scratch memory of one calling Python thread, and what it is recording."""

    def __init__(self) -> None:
        self.scratch = np.empty(0, np.uint8)
        self.shared = np.empty(0, np.uint8)
        self.recording: Recording | None = None


_CALLER = _Caller()


@contextmanager
def recording(into: Recording) -> Iterator[None]:
    """Write this Python thread's kernel calls down instead of making them."""
    if _CALLER.recording is not None:
        raise RuntimeError("a recording is active already")
    _CALLER.recording = into
    try:
        yield
    finally:
        _CALLER.recording = None


def depends_on_position(*words: int) -> None:
    """State that words of the last kernel call advance with the position of the stream."""
    if _CALLER.recording is not None:
        for word in words:
            _CALLER.recording.mark(word)


def set_threads(count: int) -> None:
    """Set how many threads later kernel calls use; results do not depend on it.

    Raises
    ------
    ValueError
        When `count` is not 1..64.
    """
    if not 1 <= count <= setup.MAX_THREADS:
        raise ValueError(f"threads must be 1..{setup.MAX_THREADS}, found {count}")
    if count != _MACHINE.count:
        _MACHINE.resize(count)


def threads() -> int:
    """Return the thread count of kernel calls."""
    return _MACHINE.count


def scratch(size: int) -> tuple[int, int]:
    """Return (address, stride) of `size` bytes of scratch memory for each worker.

    It belongs to the calling Python thread and is valid until its next call of this function.
    Worker w uses ``address + w * stride``; addresses are multiples of 64.
    """
    stride = -(-size // 4096) * 4096 + 64
    # Another Python thread may set more threads before this one's call is made. Pages that no
    # worker touches take no memory.
    needed = stride * setup.MAX_THREADS + 64
    owner = _CALLER.recording or _CALLER
    if owner.scratch.nbytes < needed:
        owner.scratch = np.empty(needed, np.uint8)
        if _CALLER.recording is not None:
            _CALLER.recording.kept.append(owner.scratch)
    address = int(owner.scratch.ctypes.data)
    return -(-address // 64) * 64, stride


def shared_scratch(size: int) -> npt.NDArray[np.uint8]:
    """Return at least `size` bytes of scratch memory that all workers of some calls share.

    It belongs to the calling Python thread and is valid until its next call of this function.
    """
    owner = _CALLER.recording or _CALLER
    if owner.shared.nbytes < size:
        owner.shared = np.empty(size, np.uint8)
        if _CALLER.recording is not None:
            _CALLER.recording.kept.append(owner.shared)
    return owner.shared


def submit(entry: Callable[..., None], function: int, tasks: int, *operands: Any) -> None:
    """Call `entry` with run, slot, function, tasks and the operands, on the pool when it is free.

    Parameters
    ----------
    entry : function
        From `larql.kernels.jit.compiled_entry`; it ends in `begin`.
    function : int
        Address of the kernel, from `larql.kernels.jit.compiled_address`.
    tasks : int
        Independent pieces of work, below 2^32 - 1.
    *operands
        Arrays and scalars as the entry was compiled for.
    """
    if _CALLER.recording is not None:
        _CALLER.recording.take(entry, function, tasks, operands)
        return
    if tasks > 1 and _MACHINE.count > 1:
        pool = _MACHINE.pool or _MACHINE.ready()
        # Where another Python thread has the pool, this one does its work alone.
        if pool.free.acquire(blocking=False):
            try:
                entry(_RUN, pool.slot, function, tasks, *operands)
            finally:
                pool.free.release()
            return
    entry(_RUN, 0, function, tasks, *operands)


_RUN = runner()


@device
def begin(run: int, slot: int, function: int, tasks: int, parameters: int) -> None:
    """Run a job and return when all its tasks are done."""
    call_kernel(run, words((slot, function, parameters, tasks)), 0, 0)


@kernel
def _launch(
    run: int, slot: int, function: int, tasks: int, parameters: npt.NDArray[np.int64]
) -> None:
    begin(run, slot, function, tasks, address_of(parameters))


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(_launch, types.int64[::1])


def launch(function: int, parameters: npt.NDArray[np.int64], tasks: int, *kept: object) -> None:
    """Run tasks 0 … `tasks` - 1 of the kernel at address `function`.

    Parameters
    ----------
    function : int
        From `larql.kernels.jit.compiled_address`.
    parameters : int64 [n], n at most PARAMETERS
        Handed to every task by address; addresses in it must stay valid for the call.
    tasks : int
        Independent pieces of work.
    *kept
        What the addresses lead to; a recording keeps it.
    """
    if _CALLER.recording is not None:
        _CALLER.recording.kept.append(kept)
        whole = np.zeros(PARAMETERS, np.int64)  # all of which is written down
        whole[: len(parameters)] = parameters
        parameters = whole
    submit(_entry(), function, tasks, parameters)
