"""Execution slices: which part of a component a run executes."""

from __future__ import annotations

from dataclasses import dataclass

from larql.errors import UsageError

__all__ = ["Draft", "ExecutionSlice", "Full", "Head", "LayerRange", "layers_of", "slice_of"]


@dataclass(frozen=True)
class Full:
    """Embedding, all layers, norm and head."""


@dataclass(frozen=True)
class LayerRange:
    """Layers ``[start, end)``: hidden states in, hidden states out; composes with others."""

    start: int
    end: int


@dataclass(frozen=True)
class Draft:
    """Embedding, layers ``[0, end)``, then the component's own norm and head."""

    end: int


@dataclass(frozen=True)
class Head:
    """All layers of a component that drafts, its norm and head; hidden states in, logits out.

    What enters is made of the producer's hidden states and of tokens: see
    :mod:`larql.runtime.draft.head`.
    """


ExecutionSlice = Full | LayerRange | Draft | Head


def slice_of(draft_depth: int | None) -> ExecutionSlice:
    """Return the slice that a draft depth names; None is all layers."""
    return Full() if draft_depth is None else Draft(draft_depth)


def layers_of(wanted: ExecutionSlice, num_layers: int) -> range:
    """Return the indices of the layers that a slice executes.

    Raises
    ------
    UsageError
        If a draft has no layers or more than the component, or a range leaves the component.
    """
    if isinstance(wanted, Full | Head):
        return range(num_layers)
    if isinstance(wanted, Draft):
        if wanted.end < 1:
            raise UsageError(
                f"draft depth {wanted.end}: a draft executes at least layer 0; give a depth from "
                f"1 to {num_layers}"
            )
        if wanted.end > num_layers:
            raise UsageError(
                f"draft depth {wanted.end}: the component has only {num_layers} layers; give a "
                f"depth from 1 to {num_layers}"
            )
        return range(wanted.end)
    if not 0 <= wanted.start < wanted.end <= num_layers:
        raise UsageError(f"layers {wanted.start}:{wanted.end}: expected 0 <= a < b <= {num_layers}")
    return range(wanted.start, wanted.end)
