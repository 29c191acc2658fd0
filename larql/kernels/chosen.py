"""Products of some of many matrices that are alike, one vector each, as one job.

A position multiplies with a handful of experts out of hundreds. What is the same for all of them is
worked out once; a kernel puts addresses in, because in a recorded step nothing else can. The rows'
bits are those of `larql.kernels.product` and `larql.kernels.product_q8`, whose kernels these are.
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
from larql.kernels.memory import call_kernel, load_i64, store_i64
from larql.kernels.parts import Job, Part, check_parts
from larql.kernels.product import job_of_one
from larql.kernels.product_q8 import job_of_few, takes_integers
from larql.kernels.rounding import QuantizedRows
from larql.kernels.threads import launch, threads

__all__ = ["Alike", "chosen_products"]

_WORDS = 24  # of a job: its function, and those that it reads
_PLAN_WORDS = 40  # of what `_fill` reads of a side
_PANEL_WORDS = 16  # of a job that has scratch memory
Float32 = npt.NDArray[np.float32]
Vectors = Float32 | QuantizedRows


@dataclass(eq=False)
class Alike:
    """Matrices of one encoding and shape.

    Attributes
    ----------
    entries : sequence of uint8 arrays or None
        Stored bytes of each, as in `Part`; None where a matrix is not here.
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

    def plan(self, table: int, x: Vectors, out: Float32) -> tuple[Job, list[int]]:
        """Return the job of any of the matrices, and how `_fill` makes those of chosen ones.

        Parameters
        ----------
        table : int
            Address of the jobs to be made.
        x, out
            As in :func:`chosen_products`.
        """
        integers = isinstance(x, QuantizedRows)
        job = self._job(integers, x, out)
        if isinstance(x, QuantizedRows):
            groups = x.columns // 32
            read = [address(x.values), 32 * groups, address(x.terms), 8 * groups]
            read += [address(x.sums), 12 * groups]
        else:
            read = [address(x), 4 * self.columns, 0, 0, 0, 0]
        place = 10 if integers else (6 if len(job.words) == 8 else 8)
        head = [
            table, address(self._addresses), len(self.entries), job.words[0], address(out),
            4 * self.rows, place, int(integers), *read, job.function, *job.words,
        ]  # fmt: skip
        return job, head + [0] * (_PLAN_WORDS - len(head))

    def _job(self, integers: bool, x: Vectors, out: Float32) -> Job:
        """Return the job of any one of the matrices, whose addresses are put in later."""
        key = threads(), integers
        found = self._jobs.get(key)
        if found is None or _uses_scratch(found):
            entry = next((entry for entry in self.entries if entry is not None), None)
            if entry is None:
                raise ValueError("a chosen matrix is not here, nor is any other")
            part = self.part(entry, out[:1])
            found = job_of_few(part, x) if isinstance(x, QuantizedRows) else job_of_one(part, x[:1])
            self._jobs[key] = found
        return found


def _uses_scratch(job: Job) -> bool:
    """Return whether a job has the address of scratch memory in it, which the next one may move."""
    return len(job.words) == _PANEL_WORDS


@kernel
def _fill(variant: Any, p: int, task: int, worker: int) -> None:
    """Write the jobs of one side: that of any matrix, with the addresses of the chosen put in."""
    plan = load_i64(p) + task * 320
    chosen, rows, count = load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    missing = load_i64(p + 32) + task * 8
    job, addresses, population = load_i64(plan), load_i64(plan + 8), load_i64(plan + 16)
    out, step, place = load_i64(plan + 32), load_i64(plan + 40), load_i64(plan + 48) * 8
    integers, x, x_step = load_i64(plan + 56), load_i64(plan + 64), load_i64(plan + 72)
    store_i64(missing, 0)
    for j in range(count):
        for word in range(17):
            store_i64(job + word * 8, load_i64(plan + 112 + word * 8))
        number, row = load_i64(chosen + j * 8), load_i64(rows + j * 8)
        matrix = 0
        if 0 <= number < population:
            matrix = load_i64(addresses + number * 8)
        if matrix == 0:
            matrix = load_i64(plan + 24)
            store_i64(missing, 1)
        store_i64(job + 8, matrix)
        store_i64(job + 40, x + row * x_step)
        if integers > 0:
            store_i64(job + 48, load_i64(plan + 80) + row * load_i64(plan + 88))
            store_i64(job + 56, load_i64(plan + 96) + row * load_i64(plan + 104))
        store_i64(job + place, out + j * step)
        job += 192


@kernel
def _each(variant: Any, p: int, task: int, worker: int) -> None:
    """Run a task of one of several jobs that have equally many."""
    tasks = load_i64(p + 8)
    job = load_i64(p) + task // tasks * 192
    call_kernel(load_i64(job), job + 8, task % tasks, worker)


@cache
def _compiled(function: Any) -> int:
    return compiled_address(function, Variant(setup.current().level))


def chosen_products(
    sides: Sequence[Alike],
    chosen: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    x: Vectors,
    outs: Sequence[Float32],
) -> npt.NDArray[np.int64]:
    """Multiply the chosen matrices of each side with one vector each.

    All of it is done by kernels, the choice of addresses included, so that it can be recorded
    before anything is chosen.

    Parameters
    ----------
    sides : sequence of Alike
        In each, at least one matrix is here.
    chosen : int64 ``[n]``
    rows : int64 ``[n]``
        The vector that each is multiplied with. These are read now, and must not change.
    x : float32 ``[m, columns]``, or as many rounded rows of width 1
    outs : sequence of float32 ``[n, rows]``
        C-contiguous, one for each side.

    Returns
    -------
    int64 ``[sides]``
        1 where a matrix was chosen that is not here; products of another stand for its own then.

    Raises
    ------
    ValueError
        When an array does not fit, or none of a side's matrices is here.
    """
    count = len(chosen)
    if isinstance(x, QuantizedRows):
        columns, vectors = x.columns, x.count
        if x.width != 1:
            raise ValueError(f"rounded rows must have width 1, found {x.width}")
    else:
        float_matrix(x, x.shape, "x")
        vectors, columns = x.shape
    for name, numbers in (("chosen", chosen), ("rows", rows)):
        if numbers.dtype != np.int64 or numbers.shape != (count,) or not numbers.flags.c_contiguous:
            raise ValueError(f"{name} must be {count} contiguous int64")
    if count and (int(rows.min()) < 0 or int(rows.max()) >= vectors):
        raise ValueError(f"rows must be from 0 to {vectors - 1}")
    table = np.empty((len(sides), count, _WORDS), np.int64)
    missing = np.empty(len(sides), np.int64)
    plans, jobs = [], []
    for side, out, its in zip(sides, outs, table, strict=True):
        if side.columns != columns:
            raise ValueError(f"x must have {side.columns} columns, found {columns}")
        float_matrix(out, (count, side.rows), "out")
        job, plan = side.plan(address(its), x, out)
        plans.append(plan)
        jobs.append(job)
    written = np.array(plans, np.int64)
    words = np.array(
        (address(written), address(chosen), address(rows), count, address(missing)), np.int64
    )
    launch(_compiled(_fill), words, len(sides), written, chosen, rows, sides, table, x, outs,
           missing)  # fmt: skip
    if len({job.tasks for job in jobs}) == 1 and not any(map(_uses_scratch, jobs)):
        _run(table, jobs[0].tasks)
    else:
        for its, job in zip(table, jobs, strict=True):
            _run(its, job.tasks)
    return missing


def _run(jobs: npt.NDArray[np.int64], tasks: int) -> None:
    words = np.array((address(jobs), tasks), np.int64)
    launch(_compiled(_each), words, tasks * (jobs.size // _WORDS), jobs)
