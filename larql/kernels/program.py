"""Kernel calls recorded once and made again without Python in between.

While a recording is active in a Python thread, a kernel call is written down instead of being
made: which code, how many tasks, and the words that its tasks read. :meth:`Program.run` then makes
all calls from one piece of machine code. Words that depend on the position of the stream are
marked by the kernel that has them, and are advanced before a run. A recorded call computes the
same bits as a direct one, because it *is* the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from larql.kernels import setup, threads
from larql.kernels.jit import WORD, Variant, compiled_address, compiled_entry, kernel
from larql.kernels.memory import fetch_lines, load_i64, store_i64
from larql.kernels.threads import PARAMETERS, Recording, begin

__all__ = ["Program", "recorded"]

_JOB = 2 + PARAMETERS  # function, tasks, words
# Words before the first job: how many jobs there are; how far to advance the marked words before a
# run, where their numbers are, and how many.
_COUNT = 8
_ADVANCE, _MARKS, _MARKED = 1, 2, 3
_FETCHED = 256  # bytes of the next job that are read ahead


@kernel
def _record(variant: Any, job: int, unused: int, unused_too: int) -> None:
    """Write the job (memory, function, parameters, tasks) down behind those already there."""
    memory, function = load_i64(job), load_i64(job + 8)
    parameters, tasks = load_i64(job + 16), load_i64(job + 24)
    count = load_i64(memory)
    place = memory + (_COUNT + count * _JOB) * 8
    store_i64(place, function)
    store_i64(place + 8, tasks)
    for word in range(PARAMETERS):
        # Words behind a job's own are whatever lies there; nothing reads them.
        store_i64(place + 16 + word * 8, load_i64(parameters + word * 8))
    store_i64(memory, count + 1)


@kernel
def _replay(run: int, pool: int, function: int, tasks: int, memory: int) -> None:
    """Make the calls in their order; `function` and `tasks` are unused."""
    advance, marks = load_i64(memory + _ADVANCE * 8), load_i64(memory + _MARKS * 8)
    if advance != 0:
        for index in range(load_i64(memory + _MARKED * 8)):
            word = memory + load_i64(marks + index * 8) * 8
            store_i64(word, load_i64(word) + advance)
    for index in range(load_i64(memory)):
        place = memory + (_COUNT + index * _JOB) * 8
        count = load_i64(place + 8)
        # Since the last run all weights have passed through the caches.
        fetch_lines(place + _JOB * 8, _FETCHED)
        begin(run, pool if count > 1 else 0, load_i64(place), count, place + 16)


@cache
def _recorder() -> int:
    return compiled_address(_record, Variant(setup.current().level))


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(_replay, WORD)


class Program:
    """Recorded kernel calls; :func:`recorded` makes one.

    It holds every array that its calls read or write. Calls are valid on as many threads as they
    were recorded for.
    """

    def __init__(self, recording: Recording, position: int) -> None:
        self._marked = np.array(recording.marked, dtype=np.int64)
        self._kept = recording.kept
        self._memory = recording.memory
        self._memory[_MARKS] = self._marked.ctypes.data
        self._memory[_MARKED] = len(self._marked)
        self._address = int(self._memory.ctypes.data)
        self._threads = threads.threads()
        self._position = position

    def fits(self) -> bool:
        """Return whether the thread count is still that of the recording."""
        return threads.threads() == self._threads

    def run(self, position: int) -> None:
        """Make all calls, as they would be made at `position`."""
        self._memory[_ADVANCE] = position - self._position
        self._position = position
        threads.submit(_entry(), 0, self._threads, self._address)


@contextmanager
def recorded(position: int) -> Iterator[Callable[[], Program]]:
    """Record the kernel calls of the body instead of making them.

    Parameters
    ----------
    position : int
        The position of the stream for which the body makes its calls.

    Yields
    ------
    callable
        Returns the program, once the body is done.
    """
    recording = Recording(_recorder(), _COUNT, _JOB)
    made: list[Program] = []
    with threads.recording(recording):
        yield lambda: made[0]
    made.append(Program(recording, position))
