"""Scoring one dump of logits against another, a few positions at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from larql.format.progress import Progress
from larql.runtime.draft.scores import Scores, joined, read_target, score_rows
from larql.runtime.dump_reader import LogitDump

__all__ = ["compare_dumps", "following_tokens"]

_ROWS_AT_ONCE = 16


def following_tokens(tokens: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return the token that follows each position, -1 after the last."""
    return np.array([*tokens[1:], -1], np.int64)


def compare_dumps(target: LogitDump, draft: LogitDump, progress: Progress) -> Scores:
    """Score every position of two dumps of the same tokens.

    Parameters
    ----------
    target, draft : LogitDump
        Of one shape; see :func:`larql.runtime.draft.arms.check_arms`.
    progress : Progress
        Told of positions.

    Raises
    ------
    DumpError
        If a dump cannot be read, or is not what its sidecar hashed.
    UsageError
        If a logit is not a finite number.
    """
    following = following_tokens(target.tokens)
    parts: list[Scores] = []
    first = 0
    progress.start("score", target.shape[0])
    pieces = zip(target.rows(_ROWS_AT_ONCE), draft.rows(_ROWS_AT_ONCE), strict=True)
    for theirs, ours in pieces:
        last = first + len(theirs)
        read = read_target(theirs, following[first:last], str(target.path), first)
        parts.append(score_rows(read, ours, str(draft.path), first))
        progress.advance(len(theirs))
        first = last
    progress.finish()
    return joined(parts)
