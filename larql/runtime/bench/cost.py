"""What one step of decoding must read: the floor of its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from larql.format.index import Representation
from larql.runtime.plan import Plan

__all__ = ["state_bytes", "weight_bytes"]


def weight_bytes(bound: Mapping[str, Representation], plan: Plan) -> int:
    """Return the bytes of weights that a step of one position touches.

    Every operand of the plan once; of experts as many as are chosen; of the embedding one row,
    unless it is the tied head's weight, which is read as a whole.

    Parameters
    ----------
    bound : mapping
        Operand to the representation that serves it.
    plan : Plan
    """
    total, swept = 0, set(plan.swept())
    for contract in plan.contracts():
        encoding = bound[contract.name].encoding
        if contract.chosen is not None:
            total += encoding.nbytes((contract.chosen, *contract.shape[1:]))
        elif contract in swept:
            total += encoding.nbytes(contract.shape)
        else:
            total += encoding.row_bytes(plan.component.embed.width)
    return total


def state_bytes(regions: Sequence[Mapping[str, object]], context: int, steps: int) -> float:
    """Return the bytes of continuation state that a step reads, the mean over some steps.

    Parameters
    ----------
    regions : sequence of mappings
        ``count`` that are alike, ``bytes_per_position`` of each, their ``window`` (None:
        everything is seen), and ``fixed_bytes`` of each that every step reads.
    context : int
        Positions held before the first step.
    steps : int
        Steps of one position; the first sees ``context + 1`` positions.
    """
    total = 0
    for region in regions:
        count, each, fixed = region["count"], region["bytes_per_position"], region["fixed_bytes"]
        window = region["window"]
        assert isinstance(count, int) and isinstance(each, int) and isinstance(fixed, int)
        assert window is None or isinstance(window, int)
        for length in range(context + 1, context + steps + 1):
            seen = length if window is None else min(length, window)
            total += count * (fixed + each * seen)
    return total / steps
