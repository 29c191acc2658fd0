"""A ladder: how good a draft each depth is, what it costs, what speculating with it would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from larql.errors import UsageError
from larql.runtime.draft.costs import StepCost, block_seconds, draft_of, operand_cost
from larql.runtime.draft.scores import Scores
from larql.runtime.draft.summary import ScoreSummary, summarise
from larql.runtime.prepared import PreparedOperands

__all__ = ["DRAFT_LENGTHS", "Gain", "Rung", "StepTimes", "check_depths", "rung_of", "time_steps"]

DRAFT_LENGTHS = (1, 2, 4, 8)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the steps that speculation is made of.

    Attributes
    ----------
    shallow, whole : float
        A single step of one layer, and of all.
    blocks : mapping
        Positions of a block of the whole model to the time of the block.
    layers : int
    """

    shallow: float
    whole: float
    blocks: Mapping[int, float]
    layers: int

    def single(self, depth: int) -> float:
        """Return a single step of some layers: time is affine in depth."""
        if self.layers == 1:
            return self.whole
        return self.shallow + (self.whole - self.shallow) * (depth - 1) / (self.layers - 1)


@dataclass(frozen=True)
class Gain:
    """What drafting some tokens a block would give, were the text as here.

    Attributes
    ----------
    accepted : float
        Mean number of drafted tokens that agree before the first that does not.
    accepted_per_ms, tokens_per_ms : float
        Those, and those with the token that the block gives for nothing, to the time of drafting
        and verifying.
    speedup : float
        To single steps of the whole model.
    """

    accepted: float
    accepted_per_ms: float
    tokens_per_ms: float
    speedup: float


@dataclass(frozen=True)
class Rung:
    """One depth.

    Attributes
    ----------
    depth : int
    summary : ScoreSummary
    cost : StepCost
    step_ms : float
        A single step of the draft, between measured steps of one layer and of all.
    gains : mapping
        Draft length, as text, to what it would give. Empty for the whole model.
    """

    depth: int
    summary: ScoreSummary
    cost: StepCost
    step_ms: float
    gains: Mapping[str, Gain]


def check_depths(depths: Sequence[int], layers: int) -> None:
    """Refuse depths that a model does not have, or one twice.

    Raises
    ------
    UsageError
        Naming the first.
    """
    for depth in depths:
        if not 1 <= depth <= layers:
            raise UsageError(f"--depths: {depth} is not between 1 and the {layers} layers")
        if depths.count(depth) > 1:
            raise UsageError(f"--depths: {depth} stands there twice")


def time_steps(prepared: PreparedOperands) -> StepTimes:
    """Time single steps of one layer and of all, and blocks of the whole model."""
    blocks = block_seconds(prepared, [1, *(k + 1 for k in DRAFT_LENGTHS)])
    shallow = block_seconds(draft_of(prepared, 1), [1])[1]
    return StepTimes(shallow, blocks[1], blocks, len(prepared.plan.layers))


def rung_of(
    prepared: PreparedOperands, depth: int, scores: Sequence[Scores], times: StepTimes
) -> Rung:
    """Return what is known of a depth.

    Parameters
    ----------
    scores : sequence of Scores
        Of each prompt.
    """
    from larql.runtime.draft.scores import joined

    single = times.single(depth)
    gains = {}
    if depth < times.layers:
        for length in DRAFT_LENGTHS:
            accepted = expected_accepted(scores, length)
            seconds = length * single + times.blocks[length + 1]
            gains[str(length)] = Gain(
                accepted,
                accepted / seconds / 1e3,
                (accepted + 1) / seconds / 1e3,
                (accepted + 1) * times.whole / seconds,
            )
    return Rung(
        depth,
        summarise(joined(list(scores))),
        operand_cost(draft_of(prepared, depth)),
        single * 1e3,
        gains,
    )


def expected_accepted(scores: Sequence[Scores], length: int) -> float:
    """Return how many of ``length`` positions in a row agree before the first that does not.

    The mean over every position from which so many follow in its prompt; where no prompt is so
    long, over those that there are.
    """
    found: list[int] = []
    for one in scores:
        same = (one.draft_top == one.target_top).astype(np.int64)
        run, runs = 0, []
        for agrees in same[::-1]:
            run = min(length, run + 1) if agrees else 0
            runs.append(run)
        runs.reverse()
        found += runs[: max(1, len(runs) - length + 1)]
    return sum(found) / len(found)
