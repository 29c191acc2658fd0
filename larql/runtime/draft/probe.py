"""What drafting costs beside the target's own steps: bytes by the plan, time by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from larql.runtime.draft.choice import make_drafter
from larql.runtime.draft.costs import StepCost, block_seconds, median_seconds, operand_cost
from larql.runtime.draft.drafter import Drafter
from larql.runtime.draft.head import HeadDrafter
from larql.runtime.draft.model_drafter import ModelDrafter
from larql.runtime.head import logits
from larql.runtime.run import Run

__all__ = ["DraftCost", "probe"]

_PROMPT = 32


@dataclass(frozen=True)
class DraftCost:
    """A drafter's step beside its target's.

    Attributes
    ----------
    drafter : str
    draft : StepCost or None
        None where it reads no weights.
    target : StepCost
    draft_seconds : float
        To draft one token, of several in a row.
    target_seconds : float
        A single step of the target.
    head_seconds : float
        The head of one position.
    block_seconds : mapping
        Positions of a block of the target to its time, from 1 to one more than are drafted.
    """

    drafter: str
    draft: StepCost | None
    target: StepCost
    draft_seconds: float
    target_seconds: float
    head_seconds: float
    block_seconds: Mapping[int, float]

    @property
    def bytes_ratio(self) -> float:
        """Bytes that a draft step touches to those of a step of the target."""
        return 0.0 if self.draft is None else self.draft.step_bytes / self.target.step_bytes

    @property
    def time_ratio(self) -> float:
        """Time of a draft step to that of a step of the target."""
        return self.draft_seconds / self.target_seconds

    def block(self, drafted: int) -> float:
        """Return the seconds of drafting so many tokens and verifying them in a block."""
        return drafted * self.draft_seconds + self.verify(drafted + 1)

    def verify(self, positions: int) -> float:
        """Return the seconds of a block, on a line between the measured ones around it."""
        known = sorted(self.block_seconds)
        upper = next(count for count in known if count >= positions)
        if upper == positions:
            return self.block_seconds[upper]
        lower = max(count for count in known if count < positions)
        share = (positions - lower) / (upper - lower)
        low, high = self.block_seconds[lower], self.block_seconds[upper]
        return low + share * (high - low)

    def break_even(self, drafted: int) -> float:
        """Return how many of so many drafted tokens must be accepted, in the mean, to lose nothing.

        More than ``drafted`` means that it cannot pay.
        """
        return self.block(drafted) / self.target_seconds - 1


def probe(run: Run, name: str, most: int) -> DraftCost:
    """Measure what a drafter costs.

    Parameters
    ----------
    run : Run
        The target.
    name : str
        The drafter, as on the command line.
    most : int
        Tokens that it drafts for a block.

    Raises
    ------
    LarqlError
        If there is no such drafter, or it does not fit the model.
    """
    counts = sorted({1, most + 1, *(n for n in (2, 3, 5, 9, 17, 33, 65, 129) if n <= most)})
    blocks = block_seconds(run.prepared, counts)
    room = _PROMPT + 1 + most
    drafter = make_drafter(name, run, room)
    session = run.session(room)
    carrier = session.advance([0] * _PROMPT)
    drafter.saw(0, carrier)
    stream = [0] * (_PROMPT + 1)
    seconds = median_seconds(partial(drafter.propose, stream, most)) / most
    plan, backend = run.prepared.plan, run.prepared.backend
    return DraftCost(
        name,
        _weights(drafter),
        operand_cost(run.prepared),
        seconds,
        blocks[1],
        median_seconds(partial(logits, plan, backend, carrier[-1:])),
        blocks,
    )


def _weights(drafter: Drafter) -> StepCost | None:
    """Return what a drafter's step reads, if it is a model."""
    if isinstance(drafter, ModelDrafter):
        return operand_cost(drafter.prepared)
    if isinstance(drafter, HeadDrafter):
        return operand_cost(drafter.head.prepared)
    return None
