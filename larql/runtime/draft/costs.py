"""What a step costs: bytes by the plan, time by the clock."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from larql.runtime.bench.cost import weight_bytes
from larql.runtime.plan import make_plan
from larql.runtime.prepared import PreparedOperands
from larql.runtime.session import Session
from larql.runtime.slices import Draft

__all__ = ["StepCost", "block_seconds", "draft_of", "median_seconds", "operand_cost"]

_PROMPT, _WARM, _TIMED = 32, 3, 9


@dataclass(frozen=True)
class StepCost:
    """What a step of one position of a draft touches.

    Attributes
    ----------
    reads : int
        Operands that preparing it fetches.
    stored_bytes : int
        Their bytes.
    step_bytes : int
        Bytes of weights that a step touches: of the embedding one row, unless it is the head too.
    head_bytes : int
        Those of them that are the head's.
    """

    reads: int
    stored_bytes: int
    step_bytes: int
    head_bytes: int

    @property
    def head_share(self) -> float:
        """The head's part of the bytes of a step."""
        return self.head_bytes / self.step_bytes


def draft_of(target: PreparedOperands, depth: int) -> PreparedOperands:
    """Return the first layers of a model with its norm and head, on the same operands."""
    plan = make_plan(target.container, target.plan.component.id, Draft(depth))
    return dataclasses.replace(target, plan=plan, reads=0, bytes_read=0, seconds=0.0)


def operand_cost(prepared: PreparedOperands) -> StepCost:
    """Return what a plan reads, by its operands alone."""
    stored = prepared.selection.bound
    contracts = prepared.plan.contracts()
    head = prepared.plan.component.head.weight
    return StepCost(
        len(contracts),
        sum(stored[c.name].nbytes for c in contracts),
        weight_bytes(stored, prepared.plan),
        stored[head].nbytes,
    )


def median_seconds(work: Callable[[], object]) -> float:
    """Return the median time of some calls, after some that are not counted."""
    times = []
    for _ in range(_WARM + _TIMED):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times[_WARM:])


def block_seconds(prepared: PreparedOperands, counts: Sequence[int]) -> dict[int, float]:
    """Time blocks of some lengths, logits of every position included, behind a short prompt.

    Parameters
    ----------
    counts : sequence of int
        Positions of a block; 1 is a single step.

    Returns
    -------
    dict
        Length to median seconds.
    """
    session = Session(prepared, _PROMPT + max(counts))
    session.advance([0] * _PROMPT)
    mark = session.checkpoint(max(counts))

    def block(count: int) -> None:
        session.rewind(mark)
        session.logits(session.advance([0] * count))

    return {count: median_seconds(partial(block, count)) for count in counts}
