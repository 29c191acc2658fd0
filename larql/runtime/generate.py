"""Continuing a stream of tokens, one by one or with drafts that a block verifies."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from larql.runtime.draft.drafter import Speculation
from larql.runtime.run import Run
from larql.runtime.sampling import Sampler
from larql.runtime.session import Session
from larql.runtime.state import Mark

__all__ = ["generate"]


def generate(
    run: Run,
    session: Session,
    row: npt.NDArray[np.float32],
    count: int,
    sampler: Sampler,
    end_ids: Collection[int],
    given: Sequence[int] = (),
    speculation: Speculation | None = None,
) -> Iterator[int]:
    """Yield up to ``count`` tokens that continue a session.

    With speculation a drafter guesses tokens, which run as one block behind the last token. The
    sampler chooses a token after each as if there were no drafts; those that it chose are kept
    and the state returns to them. So tokens and logits are those without a drafter, whatever that
    guesses and however tokens are drawn.

    Parameters
    ----------
    run : Run
        Counts the time of the steps.
    session : Session
        Holds the prompt. Afterwards, and whenever a block is done, it holds every yielded token
        but the last.
    row : float32 ``[vocab]``
        Logits of the prompt's last position.
    count : int
        Most tokens to yield.
    sampler : Sampler
        Chooses each token.
    end_ids : collection of int
        Tokens that end the text; the one that does is yielded last.
    given : sequence of int
        The tokens that the session holds, for a drafter.
    speculation : Speculation or None
    """
    if count < 1:
        return
    stream = list(given)
    chosen = [sampler.choose(row)]
    while True:
        yield from chosen
        stream += chosen
        count -= len(chosen)
        if count == 0 or chosen[-1] in end_ids:
            return
        drafted = _drafted(speculation, session, stream, count - 1)
        began = session.position
        mark = session.checkpoint(len(drafted) + 1) if drafted else None
        carrier, rows, seconds = run.timed_rows(session, [stream[-1], *drafted])
        chosen = []
        for row, guess in zip(rows, [*drafted, None], strict=True):
            chosen.append(sampler.choose(row))
            if chosen[-1] != guess or chosen[-1] in end_ids:
                break
        kept = len(chosen)
        if kept < len(rows):
            _go_back(speculation, session, began + kept, mark, [stream[-1], *drafted[: kept - 1]])
        if speculation is not None:
            agreed = sum(ours == guess for ours, guess in zip(chosen, drafted, strict=False))
            speculation.tally.add(len(drafted), agreed, seconds, agreed == len(chosen))
            speculation.drafter.saw(began, carrier[:kept])


def _drafted(
    speculation: Speculation | None, session: Session, stream: Sequence[int], wanted: int
) -> list[int]:
    """Return guesses of the tokens behind a stream, as many as have room."""
    if speculation is None:
        return []
    count = min(speculation.most, wanted, session.context - session.position - 1)
    began = time.perf_counter()
    drafted = speculation.drafter.propose(stream, count) if count > 0 else []
    speculation.tally.draft_seconds += time.perf_counter() - began
    return drafted


def _go_back(
    speculation: Speculation | None,
    session: Session,
    length: int,
    mark: Mark | None,
    tokens: Sequence[int],
) -> None:
    """Return to a prefix of the last block, which ran from a mark and begins with ``tokens``."""
    if session.can_truncate(length):
        session.truncate(length)
        return
    assert speculation is not None and mark is not None
    began = time.perf_counter()
    session.rewind(mark)
    session.advance(tokens)
    speculation.tally.repair_seconds += time.perf_counter() - began
