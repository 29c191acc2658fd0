"""The one traversal of the layers."""

from __future__ import annotations

from larql.format.graph import SoftmaxAttention
from larql.runtime.backends.base import Backend, Carrier
from larql.runtime.plan import Plan
from larql.runtime.state import State

__all__ = ["traverse"]


def traverse(plan: Plan, backend: Backend, state: State, carrier: Carrier) -> Carrier:
    """Carry hidden states through a plan's layers.

    Parameters
    ----------
    plan : Plan
    backend : Backend
        Holds the plan's operands.
    state : State
        Rows of the new positions are stored in its regions; its length is not changed.
    carrier : float32 ``[T, hidden]``
        Hidden states of positions ``state.length .. state.length + T``.

    Returns
    -------
    float32 ``[T, hidden]``
    """
    for layer in plan.layers:
        for block in layer.blocks:
            keeps_state = isinstance(block.mixer, SoftmaxAttention)
            region = state.region(layer.index) if keeps_state else None
            carrier = backend.write(block, carrier, region, state.length)
    return carrier
