"""Hidden states at the boundaries of layers, as arrays: a dump that stays in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.runtime.head import logits
from larql.runtime.prepared import PreparedOperands
from larql.runtime.session import Session
from larql.runtime.state import State, StateSnapshot
from larql.runtime.taps import Changes, Keep, Taps

__all__ = ["Planes", "SiteWatch", "read_planes"]

Float32 = npt.NDArray[np.float32]


class SiteWatch:
    """An observer that keeps the carrier after writes, and nothing else.

    Parameters
    ----------
    most : int
        Most positions that are walked at once.
    writes : sequence of int or None
        After which writes, by number; None: after every one.

    Attributes
    ----------
    parts : list of float32 ``[writes, T, hidden]``
        One for each walk.
    """

    def __init__(self, most: int, writes: Sequence[int] | None = None) -> None:
        self.keep = Keep()
        self.most = most
        self._writes = slice(None) if writes is None else list(writes)
        self.parts: list[Float32] = []

    def carriers(self) -> Float32:
        """Return all positions, float32 ``[writes, positions, hidden]``."""
        return np.concatenate(self.parts, axis=1)

    def changes(self, start: int, count: int) -> Changes | None:
        """Change nothing."""

    def begin_step(self) -> None:
        """Do nothing."""

    def saw(
        self, start: int, tokens: npt.NDArray[np.int64] | None, taps: Taps, state: State
    ) -> None:
        """Copy the carriers of a walk."""
        self.parts.append(np.array(taps.carriers[self._writes]))

    def end_step(self) -> None:
        """Do nothing."""

    def abandon_step(self) -> None:
        """Do nothing: the session is thrown away."""

    def restored(self, snapshot: StateSnapshot) -> None:
        """Do nothing."""

    def truncated(self, length: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, eq=False)
class Planes:
    """Hidden states of T positions at the boundaries of L executed layers.

    Attributes
    ----------
    layers : float32 ``[L + 1, T, hidden]``
        The carrier: index 0 is the embedding, index k what the k-th executed layer leaves.
    attention : float32 ``[L, T, hidden]``
        The carrier between a layer's attention and its feed-forward block.
    final_norm : float32 ``[T, hidden]``
        The head's norm of the last plane.
    logits : float32 ``[T, vocab]``
    """

    layers: Float32
    attention: Float32
    final_norm: Float32
    logits: Float32


def read_planes(prepared: PreparedOperands, tokens: Sequence[int], chunk: int | None) -> Planes:
    """Run tokens and keep the carrier at every boundary.

    Raises
    ------
    UsageError
        As a session does.
    """
    plan, backend = prepared.plan, prepared.backend
    watch = SiteWatch(chunk or backend.default_chunk)
    session = Session(prepared, len(tokens), chunk, watch)
    carrier = session.advance(tokens)
    planes = watch.carriers()
    ends = np.cumsum([0, *(len(layer.blocks) for layer in plan.layers)])
    writes = [block.site for layer in plan.layers for block in layer.blocks]
    after = [w for w, site in enumerate(writes, start=1) if site == "attention"]
    return Planes(
        planes[ends],
        planes[after],
        backend.final_norm(plan.component.head, carrier),
        logits(plan, backend, carrier),
    )
