"""What the products have in common: several matrices times the same vectors, as one job.

Matrices that read the same vectors are multiplied together, because starting a job costs as much as
some kilobytes of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import flat_bytes, float_matrix
from larql.kernels.encodings import block
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import call_kernel, load_i64
from larql.kernels.threads import launch, threads

__all__ = [
    "PANEL_MULTIPLE",
    "WHOLE",
    "Job",
    "Part",
    "check_parts",
    "fitting",
    "panel_rows",
    "rounded_up",
    "run_together",
    "share_rows",
]

WHOLE = 16
"""Columns of padded rows of blocks are a multiple, so that no vector reaches into the padding."""

_TASK_BYTES = 16 << 10  # at least, where there are rows for that: two microseconds of reading
_TASKS_PER_THREAD = 32  # so that threads finish together
_PANELS_PER_THREAD = 8  # which cost more to begin
PANEL_MULTIPLE = 4  # the rows of the tallest tile
_MOST = 4  # jobs whose words fit a call
_HEAD = 3  # words for each job before their own: last task + 1, function, where its words begin


@dataclass(frozen=True, eq=False)
class Part:
    """One matrix, and where its products go.

    Attributes
    ----------
    weight : uint8 [rows * row_bytes] or [rows, row_bytes]
        Stored bytes, C-contiguous, at any address, never written.
    encoding : str
        Key of `larql.kernels.encodings.BLOCKS`.
    rows, columns : int
        Logical shape; `columns` is the contracted axis, `rows` a multiple of `Block.together`.
    out : float32 [C, rows]
        C-contiguous; overwritten.
    stored_columns : int or None
        Columns of a row as stored, where padding follows the logical ones, a multiple of WHOLE.
    """

    weight: npt.NDArray[np.uint8]
    encoding: str
    rows: int
    columns: int
    out: npt.NDArray[np.float32]
    stored_columns: int | None = None

    @cached_property
    def row_bytes(self) -> int:
        """The stored size of a row."""
        return block(self.encoding).row_bytes(self.stored_columns or self.columns)

    @property
    def blocked_columns(self) -> int:
        """The columns of the blocks that the logical columns lie in, their padding included."""
        return rounded_up(self.columns, block(self.encoding).elements)

    @cached_property
    def address(self) -> int:
        """Where the stored bytes are."""
        return int(flat_bytes(self.weight, self.rows * self.row_bytes).ctypes.data)


def check_parts(parts: Sequence[Part], columns: int, count: int) -> None:
    """Refuse parts that do not fit `count` vectors of `columns`.

    Raises
    ------
    ValueError
        When a shape, type or layout is not as `Part` says, or an encoding is unknown.
    """
    for part in parts:
        if part.columns != columns:
            raise ValueError(f"x must have {part.columns} columns, found {columns}")
        block(part.encoding).check_rows(part.encoding, part.rows)
        stored = part.stored_columns
        whole = block(part.encoding).elements == 1 or part.columns % WHOLE == 0
        if stored is not None and (stored < part.columns or not whole):
            raise ValueError(f"{part.columns} columns of {stored} cannot be read as stored")
        # Addresses are only taken of what has passed.
        flat_bytes(part.weight, part.rows * part.row_bytes)
        float_matrix(part.out, (count, part.rows), "out")
        if not part.out.flags.writeable:
            raise ValueError("out must be writable")


@dataclass(frozen=True)
class Job:
    """Tasks of one kernel, and the words it reads."""

    function: int
    tasks: int
    words: tuple[int, ...]


@kernel
def _dispatch(variant: Any, p: int, task: int, worker: int) -> None:
    """Run a task of the job that it belongs to."""
    entry, first = p, 0
    while task >= load_i64(entry):
        first = load_i64(entry)
        entry += 24
    call_kernel(load_i64(entry + 8), p + load_i64(entry + 16), task - first, worker)


@cache
def _dispatcher() -> int:
    return compiled_address(_dispatch, Variant(setup.current().level))


def run_together(jobs: Sequence[Job], *kept: object) -> None:
    """Run all tasks of some jobs, in any order; `kept` are the arrays that they use."""
    if len(jobs) > _MOST:
        run_together(jobs[:_MOST], *kept)
        run_together(jobs[_MOST:], *kept)
        return
    if len(jobs) == 1:
        (job,) = jobs
        words, function, tasks = job.words, job.function, job.tasks
    else:
        head: list[int] = []
        rest: list[int] = []
        tasks, function = 0, _dispatcher()
        for job in jobs:
            tasks += job.tasks
            head += (tasks, job.function, 8 * (_HEAD * len(jobs) + len(rest)))
            rest += job.words
        words = (*head, *rest)
    launch(function, np.array(words, np.int64), tasks, *kept)


def share_rows(rows: int, row_bytes: int, multiple: int) -> int:
    """Return how many rows a task takes when rows are decoded in registers."""
    least = max(1, _TASK_BYTES // max(row_bytes, 1))
    return rounded_up(max(least, -(-rows // (_TASKS_PER_THREAD * threads()))), multiple)


def panel_rows(rows: int, stride: int, most: int, multiple: int = PANEL_MULTIPLE) -> int:
    """Return how many rows a task takes when it decodes a panel, `stride` bytes each of `most`."""
    tall = max(multiple, most // stride)
    return rounded_up(min(tall, -(-rows // (_PANELS_PER_THREAD * threads()))), multiple)


def fitting(share: int, slot: int, stride: int, multiple: int) -> int:
    """Return how much of a share fits scratch memory of `slot` bytes, `stride` for each row.

    The share may have been computed for more threads than there are now.
    """
    return min(share, slot // stride // multiple * multiple)


def rounded_up(value: int, multiple: int) -> int:
    """Return the least multiple that is not below `value`."""
    return -(-value // multiple) * multiple
