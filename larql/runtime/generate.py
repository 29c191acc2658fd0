"""Continuing a stream of tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from larql.runtime.run import Run
from larql.runtime.sampling import Sampler
from larql.runtime.session import Session

__all__ = ["generate"]


def generate(
    run: Run,
    session: Session,
    row: npt.NDArray[np.float32],
    count: int,
    sampler: Sampler,
    end_ids: Collection[int],
) -> Iterator[int]:
    """Yield up to ``count`` tokens that continue a session.

    Parameters
    ----------
    run : Run
        Counts the time of the steps.
    session : Session
        Holds the prompt. Afterwards it holds every yielded token but the last.
    row : float32 ``[vocab]``
        Logits of the prompt's last position.
    count : int
        Most tokens to yield.
    sampler : Sampler
        Chooses each token.
    end_ids : collection of int
        Tokens that end the text; the one that does is yielded last.
    """
    for remaining in range(count, 0, -1):
        token = sampler.choose(row)
        yield token
        if token in end_ids or remaining == 1:
            return
        row = run.timed_step(session, [token])
