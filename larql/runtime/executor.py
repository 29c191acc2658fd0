"""The one traversal of the layers."""

from __future__ import annotations

from larql.format.graph import kept_by
from larql.runtime.backends.base import Backend, Carrier
from larql.runtime.plan import Plan
from larql.runtime.routes import LeftOutNotes
from larql.runtime.state import State
from larql.runtime.taps import Taps
from larql.runtime.token_inputs import TokenInputs

__all__ = ["traverse"]


def traverse(
    plan: Plan,
    backend: Backend,
    state: State,
    taps: Taps | None,
    tokens: TokenInputs | None,
    notes: LeftOutNotes | None,
    carrier: Carrier,
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
    tokens : TokenInputs or None
        What the layers' own embeddings are made of, where the component has any.
    notes : LeftOutNotes or None
        Where a best-effort step notes the positions that go without their experts.
    carrier : float32 ``[T, hidden]``
        Hidden states of positions ``state.length .. state.length + T``.

    Returns
    -------
    float32 ``[T, hidden]``
    """
    if taps is not None:
        taps.begin(carrier)
    for layer in plan.layers:
        for block in layer.blocks:
            regions = state.at(kept_by(block, layer.index), block.site)
            inner = None if taps is None else taps.block
            own = None if tokens is None else tokens.of_layer(layer.index)
            carrier = backend.write(block, carrier, regions, state.length, inner, own, notes)
            if taps is not None:
                taps.wrote(carrier)
    return carrier
