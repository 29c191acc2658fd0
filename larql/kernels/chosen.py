"""Products of some of many matrices that are alike, one vector each, as one job.

A position multiplies with a handful of experts out of hundreds. What is the same for all of them is
worked out once; a call puts addresses in. The rows' bits are those of `larql.kernels.product` and
`larql.kernels.product_q8`, whose kernels these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address, float_matrix
from larql.kernels.encodings import block
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import call_kernel, load_i64
from larql.kernels.parts import Job, Part, check_parts
from larql.kernels.product import job_of_one
from larql.kernels.product_q8 import job_of_few, takes_integers
from larql.kernels.rounding import QuantizedRows
from larql.kernels.threads import launch, threads

__all__ = ["Alike", "chosen_products"]

_WORDS = 24  # of a job: its function, and those that it reads
_PANEL_WORDS = 16  # of a job that has scratch memory
Float32 = npt.NDArray[np.float32]
Vectors = Float32 | QuantizedRows


@dataclass(eq=False)
class Alike:
    """Matrices of one encoding and shape.

    Attributes
    ----------
    entries : sequence of uint8 arrays or None
        Stored bytes of each, as in `Part`; None where a matrix is not here and is never chosen.
    encoding : str
    rows, columns : int
    stored_columns : int or None
        As in `Part`.
    """

    entries: Sequence[npt.NDArray[np.uint8] | None]
    encoding: str
    rows: int
    columns: int
    stored_columns: int | None = None
    _addresses: npt.NDArray[np.int64] = field(init=False)
    _jobs: dict[tuple[int, bool], Job] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if block(self.encoding).together > 1:
            raise ValueError(f"rows of {self.encoding} lie interleaved, expected rows apart")
        found = [0 if entry is None else address(entry) for entry in self.entries]
        self._addresses = np.array(found, np.int64)
        for entry in self.entries:
            if entry is not None:
                check_parts(
                    [self.part(entry, np.empty((0, self.rows), np.float32))], self.columns, 0
                )

    def part(self, entry: npt.NDArray[np.uint8], out: Float32) -> Part:
        """Return one matrix, and where its products go."""
        return Part(entry, self.encoding, self.rows, self.columns, out, self.stored_columns)

    @property
    def takes_integers(self) -> bool:
        """Whether its rows have integer products."""
        return takes_integers(self.encoding, self.columns)

    def fill(
        self, table: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64], x: Vectors, out: Float32
    ) -> Job:
        """Write the jobs of the chosen matrices to ``table`` ``[n, 24]``; return one of them."""
        integers = isinstance(x, QuantizedRows)
        job = self._job(integers, x, out)
        table[:, 0] = job.function
        table[:, 1 : 1 + len(job.words)] = job.words
        table[:, 1] = self._addresses[chosen]
        steps = np.arange(len(chosen))
        if isinstance(x, QuantizedRows):
            groups = x.columns // 32 if x.count > 1 else 0
            table[:, 5] = address(x.values) + steps * (32 * groups)
            table[:, 6] = address(x.terms) + steps * (8 * groups)
            table[:, 7] = address(x.sums) + steps * (12 * groups)
            table[:, 10] = address(out) + steps * (4 * self.rows)
        else:
            stride = 4 * self.columns if len(x) > 1 else 0
            table[:, 5] = address(x) + steps * stride
            at = 6 if len(job.words) == 8 else 8
            table[:, at] = address(out) + steps * (4 * self.rows)
        return job

    def _job(self, integers: bool, x: Vectors, out: Float32) -> Job:
        """Return the job of any one of the matrices, whose addresses are put in later."""
        key = threads(), integers
        found = self._jobs.get(key)
        if found is None or _uses_scratch(found):
            entry = next(entry for entry in self.entries if entry is not None)
            part = self.part(entry, out[:1])
            found = job_of_few(part, x) if isinstance(x, QuantizedRows) else job_of_one(part, x[:1])
            self._jobs[key] = found
        return found


def _uses_scratch(job: Job) -> bool:
    """Return whether a job has the address of scratch memory in it, which the next one may move."""
    return len(job.words) == _PANEL_WORDS


@kernel
def _each(variant: Any, p: int, task: int, worker: int) -> None:
    """Run a task of one of several jobs that have equally many."""
    tasks = load_i64(p + 8)
    job = load_i64(p) + task // tasks * 192
    call_kernel(load_i64(job), job + 8, task % tasks, worker)


@cache
def _compiled() -> int:
    return compiled_address(_each, Variant(setup.current().level))


def chosen_products(
    sides: Sequence[Alike],
    chosen: npt.NDArray[np.int64],
    x: Vectors,
    outs: Sequence[Float32],
) -> None:
    """Multiply the chosen matrices of each side with one vector each.

    Parameters
    ----------
    sides : sequence of Alike
    chosen : int64 ``[n]``
        Matrices that are here.
    x : float32 ``[1, columns]`` or ``[n, columns]``, or as many rounded rows of width 1
        A vector for all, or one for each.
    outs : sequence of float32 ``[n, rows]``
        C-contiguous, one for each side.

    Raises
    ------
    ValueError
        When an array does not fit, or a chosen matrix is not here.
    """
    count = len(chosen)
    if isinstance(x, QuantizedRows):
        columns, vectors = x.columns, x.count
        if x.width != 1:
            raise ValueError(f"rounded rows must have width 1, found {x.width}")
    else:
        float_matrix(x, x.shape, "x")
        vectors, columns = x.shape
    if vectors not in (1, count):
        raise ValueError(f"x must be 1 or {count} vectors, found {vectors}")
    table = np.empty((len(sides), count, _WORDS), np.int64)
    waiting: list[npt.NDArray[np.int64]] = []
    tasks = 0
    for side, out, jobs in zip(sides, outs, table, strict=True):
        if side.columns != columns:
            raise ValueError(f"x must have {side.columns} columns, found {columns}")
        float_matrix(out, (count, side.rows), "out")
        job = side.fill(jobs, chosen, x, out)
        if not jobs[:, 1].all():
            raise ValueError("a chosen matrix is not here")
        if _uses_scratch(job) or (waiting and job.tasks != tasks):
            _run(jobs, job.tasks, sides, x, outs)
        else:
            waiting.append(jobs)
            tasks = job.tasks
    if waiting:
        together = table if len(waiting) == len(sides) else np.stack(waiting)
        _run(together.reshape(-1, _WORDS), tasks, sides, x, outs)


def _run(jobs: npt.NDArray[np.int64], tasks: int, *kept: object) -> None:
    words = np.array((address(jobs), tasks), np.int64)
    launch(_compiled(), words, tasks * len(jobs), jobs, *kept)
