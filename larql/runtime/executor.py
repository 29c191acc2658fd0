"""The one traversal of the layers."""

from __future__ import annotations

from larql.runtime.backends.base import Backend, Carrier
from larql.runtime.plan import Plan
from larql.runtime.state import State
from larql.runtime.taps import Taps

__all__ = ["traverse"]


def traverse(
    plan: Plan, backend: Backend, state: State, taps: Taps | None, carrier: Carrier
) -> Carrier:
    """Carry hidden states through a plan's layers.

    Parameters
    ----------
    plan : Plan
    backend : Backend
        Holds the plan's operands.
    state : State
        Rows of the new positions are stored in its regions; its length is not changed.
    taps : Taps or None
        Told of each write to the carrier.
    carrier : float32 ``[T, hidden]``
        Hidden states of positions ``state.length .. state.length + T``.

    Returns
    -------
    float32 ``[T, hidden]``
    """
    if taps is not None:
        taps.wrote(carrier)
    for layer in plan.layers:
        for block in layer.blocks:
            regions = state.at(layer.index, block.site)
            inner = None if taps is None else taps.block
            carrier = backend.write(block, carrier, regions, state.length, inner)
            if taps is not None:
                taps.wrote(carrier)
    return carrier
