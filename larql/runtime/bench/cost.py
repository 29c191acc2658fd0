"""What one step of decoding must read: the floor of its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from larql.format.container import Container
from larql.runtime.plan import Plan

__all__ = ["state_bytes", "weight_bytes"]


def weight_bytes(container: Container, plan: Plan) -> int:
    """Return the bytes of weights that a step of one position touches.

    Every operand of the plan once; of the embedding one row, unless it is the tied head's weight,
    which is read as a whole.
    """
    total, swept = 0, set(plan.swept())
    for contract in plan.contracts():
        encoding = container.operands[contract.name].encoding
        if contract in swept:
            total += encoding.nbytes(contract.shape)
        else:
            total += encoding.row_bytes(plan.component.embed.width)
    return total


def state_bytes(regions: Sequence[Mapping[str, object]], context: int, steps: int) -> float:
    """Return the bytes of keys and values that a step reads, the mean over some steps.

    Parameters
    ----------
    regions : sequence of mappings
        ``layers`` that are alike, ``bytes_per_position`` of each, and their ``window`` (None:
        everything is seen).
    context : int
        Positions held before the first step.
    steps : int
        Steps of one position; the first sees ``context + 1`` positions.
    """
    total = 0
    for region in regions:
        layers, each, window = region["layers"], region["bytes_per_position"], region["window"]
        assert isinstance(layers, int) and isinstance(each, int)
        assert window is None or isinstance(window, int)
        for seen in range(context + 1, context + steps + 1):
            total += layers * each * (seen if window is None else min(seen, window))
    return total / steps
