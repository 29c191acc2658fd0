"""A draft head: a component that guesses from the target's hidden states.

At position i it takes the target's carrier after the final norm, h_i, and the embedding of the
token behind it, and guesses the token after that one. Embedding and head are the target's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from larql.errors import UnsupportedRefusal
from larql.format.container import Container
from larql.runtime.backends.base import Carrier
from larql.runtime.draft.drafter import Drafter, likeliest
from larql.runtime.prepared import PreparedOperands, prepare_beside
from larql.runtime.session import Session

__all__ = ["DraftHead", "HeadDrafter", "draft_component"]


def draft_component(container: Container, target: str = "target") -> str:
    """Return the id of the component that drafts for another one.

    Raises
    ------
    UnsupportedRefusal
        If there is none, naming what kept it from being carried, where that is known.
    """
    for component in container.graph.components:
        if component.role == "draft" and any(
            edge.producer == target and edge.consumer == component.id
            for edge in container.graph.edges
        ):
            return component.id
    why = container.draft_head_left_behind or "it was made from a model without one"
    raise UnsupportedRefusal(f"{container.path}: has no component that drafts: {why}")


class DraftHead:
    """A draft head at work beside a stream of the target.

    Parameters
    ----------
    target : PreparedOperands
    component : str
        Id of the component that drafts.
    context : int
        Most positions.
    chunk : int or None
        Most positions that are advanced at once.

    Attributes
    ----------
    prepared : PreparedOperands
        Its own operands; on the target's backend.
    session : Session
        Its own continuation state.

    Raises
    ------
    LarqlError
        As :func:`larql.runtime.prepared.prepare_beside` does.
    """

    def __init__(
        self, target: PreparedOperands, component: str, context: int, chunk: int | None = None
    ) -> None:
        self.prepared = prepare_beside(target, component)
        self.session = Session(self.prepared, context, chunk)
        self._target = target
        entry = self.prepared.plan.component.draft_input
        assert entry is not None  # what the role says
        self._entry = entry

    def tap(self, carrier: Carrier) -> npt.NDArray[np.float32]:
        """Return what the head reads of the target's carrier: its final norm."""
        return self._target.backend.final_norm(self._target.plan.component.head, carrier)

    def own_tap(self, carrier: Carrier) -> npt.NDArray[np.float32]:
        """Return what stands for the target's tap where only the head itself has been."""
        return self._target.backend.final_norm(self.prepared.plan.component.head, carrier)

    def advance(self, hidden: npt.NDArray[np.float32], following: Sequence[int]) -> Carrier:
        """Advance by positions.

        Parameters
        ----------
        hidden : float32 ``[T, hidden]``
            The tap at each position.
        following : sequence of int
            The token behind each.

        Returns
        -------
        float32 ``[T, hidden]``
            The carrier after the last layer; ``session.logits`` makes logits of it.
        """
        backend = self._target.backend
        ids = np.asarray(following, dtype=np.int64)
        embedded = backend.embed(self.prepared.plan.component.embed, ids)
        return self.session.advance_hidden(backend.draft_input(self._entry, embedded, hidden))


class HeadDrafter(Drafter):
    """Drafts what a draft head finds likeliest; further tokens from its own hidden states.

    Parameters
    ----------
    target : PreparedOperands
    context : int
        Most positions of a stream.
    chunk : int or None
    """

    name = "mtp"

    def __init__(self, target: PreparedOperands, context: int, chunk: int | None = None) -> None:
        found = draft_component(target.container, target.plan.component.id)
        self.head = DraftHead(target, found, context, chunk)
        # The tap at every position of the stream that the target has run.
        self._hidden = np.empty((context, target.plan.component.hidden_size), np.float32)
        self._seen = 0
        self._fed: list[int] = []  # the tokens behind the positions that the head has run

    def saw(self, start: int, carrier: Carrier) -> None:
        """Keep the tap of the positions."""
        self._seen = start + len(carrier)
        self._hidden[start : self._seen] = self.head.tap(carrier)
        self._forget(start)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Run the positions that are new, then the head on its own."""
        session = self.head.session
        known = len(tokens) - 1  # positions whose tap and following token are there
        if not 1 <= known <= self._seen:
            return []
        count = min(count, session.context - known + 1)
        if count < 1:
            return []
        following = list(tokens[1:])
        common = 0
        while common < min(len(self._fed), known - 1) and self._fed[common] == following[common]:
            common += 1
        self._forget(common)
        common = session.position
        carrier = self.head.advance(self._hidden[common:known], following[common:])[-1:]
        # What it runs beyond them, from hidden states of its own, does not stand.
        self._fed = following
        made: list[int] = []
        while (token := likeliest(session.logits(carrier)[0])) is not None:
            made.append(token)
            if len(made) == count:
                break
            carrier = self.head.advance(self.head.own_tap(carrier), [token])
        return made

    def _forget(self, length: int) -> None:
        """Go back to so many positions."""
        session = self.head.session
        if length < session.position:
            session.truncate(length if session.can_truncate(length) else 0)
        self._fed = self._fed[: session.position]
