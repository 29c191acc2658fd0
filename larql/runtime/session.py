"""A session: prepared operands and the continuation state of one stream of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock

import numpy as np
import numpy.typing as npt

from larql.errors import Refusal, SessionInvalid, UsageError
from larql.runtime.backends.base import Carrier
from larql.runtime.executor import traverse
from larql.runtime.head import logit_rows, logits
from larql.runtime.observer import SessionObserver
from larql.runtime.plan import check_tokens
from larql.runtime.prepared import PreparedOperands
from larql.runtime.routes import LeftOut, LeftOutNotes
from larql.runtime.state import Mark, State, StateSnapshot
from larql.runtime.taps import Taps
from larql.runtime.token_inputs import TokenInputs

__all__ = ["Session"]


class Session:
    """Advances positions; a step completes, or leaves the state as it was.

    A session is one stream. What changes or copies its state is refused while another call does,
    from another Python thread or from an observer; sessions of one model may step in threads of
    their own.

    Parameters
    ----------
    prepared : PreparedOperands
    context : int
        Most positions that the session will hold. Where rotary frequencies come as two lists, it
        decides which of them turns all positions.
    chunk : int or None
        Most positions that are advanced at once; the results do not depend on it.
    observer : SessionObserver or None
        Told of everything that the session does.

    left_out : list of LeftOut or None
        Best effort: a position whose experts are refused goes on without its routed part, which is
        noted here when the step completes. None: its step is refused.

    Attributes
    ----------
    invalid : BaseException or None
        Why the state is not to be used, where a failed step could not be undone.

    Raises
    ------
    UsageError
        If ``context`` or ``chunk`` is not positive.
    """

    def __init__(
        self,
        prepared: PreparedOperands,
        context: int,
        chunk: int | None = None,
        observer: SessionObserver | None = None,
        left_out: list[LeftOut] | None = None,
    ) -> None:
        if context < 1:
            raise UsageError(f"context {context}: expected at least 1 position")
        if chunk is not None and chunk < 1:
            raise UsageError(f"chunk {chunk}: expected at least 1 position")
        self.prepared = prepared
        self.plan = prepared.plan.settled(context)
        self.context = context
        self.chunk = min(chunk or prepared.backend.default_chunk, context)
        self._backend = prepared.backend
        self._observer = observer
        self._busy = Lock()
        self._left_out = left_out
        self.invalid: BaseException | None = None
        self._taps: dict[int, Taps] = {}
        self._token_inputs: dict[int, TokenInputs] = {}
        if observer is not None:
            self.chunk = min(self.chunk, observer.most)
        self.state = State(
            self._backend.region(spec, context, self.chunk) for spec in self.plan.state()
        )

    @property
    def usable(self) -> bool:
        """Whether the state is that of the positions that were advanced.

        Apart from this stands whether an operation that was refused could ever succeed, which its
        kind says. A caller may try again if and only if both are so.
        """
        return self.invalid is None

    def may_retry(self, refusal: Refusal) -> bool:
        """Return whether a step that was refused may be tried again on this session."""
        return refusal.kind.could_succeed and self.usable

    @property
    def position(self) -> int:
        """How many positions the session holds."""
        return self.state.length

    def advance(self, tokens: Sequence[int]) -> Carrier:
        """Advance by tokens.

        Parameters
        ----------
        tokens : sequence of int
            Token ids.

        Returns
        -------
        float32 ``[len(tokens), hidden]``
            The carrier after the last executed layer.

        Raises
        ------
        UsageError
            If an id is outside the vocabulary, or the context is too small.
        """
        if not self.plan.embeds:
            raise UsageError("a layer range begins with hidden states, not with tokens")
        embed = self.plan.component.embed
        check_tokens(tokens, embed.vocab)
        ids = np.asarray(tokens, dtype=np.int64)
        return self._advance(
            len(ids), lambda first, last: self._backend.embed(embed, ids[first:last]), ids
        )

    def advance_hidden(self, hidden: Carrier) -> Carrier:
        """Advance a layer range by hidden states, float32 ``[T, hidden]`` in and out."""
        width = self.plan.component.hidden_size
        if hidden.ndim != 2 or hidden.shape[1] != width:
            raise UsageError(f"hidden states have shape {hidden.shape}, expected [T, {width}]")
        rows = np.array(hidden, dtype=np.float32)
        return self._advance(len(rows), lambda first, last: rows[first:last])

    def logits(self, carrier: Carrier) -> npt.NDArray[np.float32]:
        """Return the logits of hidden states, float32 ``[T, vocab]``."""
        return logits(self.plan, self._backend, carrier)

    def logit_rows(self, carrier: Carrier) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the logits of hidden states a few rows at a time."""
        return logit_rows(self.plan, self._backend, carrier)

    def step(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Advance by tokens and return the logits of the last one, float32 ``[vocab]``."""
        row: npt.NDArray[np.float32] = self.logits(self.advance(tokens)[-1:])[0]
        return row

    def snapshot(self) -> StateSnapshot:
        """Copy the state."""
        with self._alone("a snapshot"):
            self._require_usable()
            return self.state.snapshot()

    def restore(self, snapshot: StateSnapshot) -> None:
        """Return to a snapshot, as if nothing had happened since."""
        with self._alone("a restore"):
            self.state.restore(snapshot)
            self.invalid = None
            if self._observer is not None:
                self._observer.restored(snapshot)

    def can_truncate(self, length: int) -> bool:
        """Return whether :meth:`truncate` to ``length`` positions would succeed."""
        return self.usable and self.state.can_truncate(length)

    def truncate(self, length: int) -> None:
        """Forget all positions from ``length`` on."""
        with self._alone("a truncation"):
            self._require_usable()
            self.state.truncate(length)
            if self._observer is not None:
                self._observer.truncated(length)

    def checkpoint(self, ahead: int) -> Mark:
        """Return what :meth:`rewind` needs to undo at most ``ahead`` more positions."""
        with self._alone("a checkpoint"):
            return self.state.checkpoint(ahead)

    def rewind(self, mark: Mark) -> None:
        """Return to a checkpoint, as if nothing had happened since."""
        with self._alone("a rewinding"):
            self.state.undo(mark)
            if self._observer is not None:
                self._observer.truncated(mark.length)

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Refuse what two calls would do to one state at once."""
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                f"the session is in the middle of another call, so {what} is refused; give each "
                f"thread a session of its own"
            )
        try:
            yield
        finally:
            self._busy.release()

    def _require_usable(self) -> None:
        if self.invalid is not None:
            raise SessionInvalid(
                f"the session cannot go on: a step failed and its state could not be put back; "
                f"restore a snapshot or begin a new session ({self.invalid})"
            ) from self.invalid

    def _advance(
        self,
        count: int,
        rows: Callable[[int, int], Carrier],
        tokens: npt.NDArray[np.int64] | None = None,
    ) -> Carrier:
        if count == 0:
            raise UsageError("no tokens given; a step advances at least one position")
        with self._alone("a step"):
            self._require_usable()
            return self._advance_alone(count, rows, tokens)

    def _advance_alone(
        self,
        count: int,
        rows: Callable[[int, int], Carrier],
        tokens: npt.NDArray[np.int64] | None,
    ) -> Carrier:
        if self.position + count > self.context:
            raise UsageError(
                f"{self.position + count} positions do not fit a context of {self.context}; give "
                f"a larger context"
            )
        entry = self.state.mark(several=count > self.chunk)
        began = self.position
        observer = self._observer
        parts = []
        notes = None if self._left_out is None else LeftOutNotes()
        try:
            if observer is not None:
                observer.begin_step()
            for first in range(0, count, self.chunk):
                last = min(first + self.chunk, count)
                ids = None if tokens is None else tokens[first:last]
                carrier = rows(first, last)
                inputs = None if ids is None else self._inputs(ids, carrier)
                if observer is None:
                    walk = partial(
                        traverse, self.plan, self._backend, self.state, None, inputs, notes
                    )
                    part = self._backend.advance(walk, self.plan, self.state, carrier)
                else:
                    part = self._observed(observer, carrier, ids, inputs, notes)
                parts.append(part)
                self.state.settle(began + last)
            if observer is not None:
                observer.end_step()
        except BaseException as error:
            if observer is not None:
                observer.abandon_step()
            self._undo(entry, error)
            raise
        if self._left_out is not None and notes is not None:
            self._left_out += notes.found
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _undo(self, entry: Mark, error: BaseException) -> None:
        """Put the state back where a failed step began, or declare it unusable."""
        self.invalid = error  # until every region is back
        self.state.undo(entry)
        self.invalid = None

    def _observed(
        self,
        observer: SessionObserver,
        carrier: Carrier,
        tokens: npt.NDArray[np.int64] | None,
        inputs: TokenInputs | None,
        notes: LeftOutNotes | None,
    ) -> Carrier:
        """Advance by one block of positions, and show it to the observer."""
        start, count = self.position, len(carrier)
        taps = self._taps_for(observer, count)
        changes = observer.changes(start, count)
        taps.change(changes)
        walk = partial(traverse, self.plan, self._backend, self.state, taps, inputs, notes)
        if changes is None:
            carrier = self._backend.advance(walk, self.plan, self.state, carrier)
        else:
            # Not by a recorded step: changes are made in between, by other code than kernels.
            carrier = walk(carrier)
        observer.saw(start, tokens, taps, self.state)
        return carrier

    def _inputs(self, ids: npt.NDArray[np.int64], carrier: Carrier) -> TokenInputs | None:
        """Return what tokens give to layers beside the carrier, which is their embedding now."""
        table = self.plan.component.per_layer
        if table is None:
            return None
        made = TokenInputs(carrier.copy(), self._backend.look_up(table, ids))
        if not self._backend.repeats(len(ids)):
            return made
        # A recorded step reads the memory that it was recorded with.
        kept = self._token_inputs.setdefault(len(ids), made)
        kept.put(made)
        return kept

    def _taps_for(self, observer: SessionObserver, count: int) -> Taps:
        # A recorded step copies into the arrays that it was recorded with; others can go.
        if count not in self._taps:
            for other in [n for n in self._taps if not self._backend.repeats(n)]:
                del self._taps[other]
            self._taps[count] = Taps(self.plan, count, self._backend.copy, observer.keep)
        return self._taps[count]
