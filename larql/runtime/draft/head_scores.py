"""A draft head's logits beside its target's, over tokens that are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.runtime.draft.compare import following_tokens
from larql.runtime.draft.head import DraftHead
from larql.runtime.draft.scores import Scores, read_target, score_rows
from larql.runtime.session import Session

__all__ = ["HeadPiece", "score_head"]

_ROWS_AT_ONCE = 16


@dataclass(frozen=True)
class HeadPiece:
    """Some positions of a draft head beside its target, n of them.

    Row i compares what the head at position i guesses of the token at i + 2 with what the target
    at position i + 1 says of it.

    Attributes
    ----------
    rows : float32 ``[n, vocab]``
        The head's logits.
    target_rows : float32 ``[n, vocab]``
        The target's, one position on.
    scores : Scores
    """

    rows: npt.NDArray[np.float32]
    target_rows: npt.NDArray[np.float32]
    scores: Scores


def score_head(head: DraftHead, target: Session, tokens: Sequence[int]) -> Iterator[HeadPiece]:
    """Run a target and its draft head over tokens, and compare them a few positions at a time.

    Parameters
    ----------
    head : DraftHead
    target : Session
        Of no position yet.
    tokens : sequence of int
        T of them, at least two; there are T - 1 positions to compare.

    Raises
    ------
    UsageError
        If there are fewer than two tokens, or a logit is not a finite number.
    """
    if len(tokens) < 2:
        raise UsageError(
            f"{len(tokens)} token given; a draft head reads a position and the token behind it, so "
            f"it takes at least 2"
        )
    carrier = target.advance(tokens)
    drafted = head.advance(head.tap(carrier[:-1]), tokens[1:])
    following = following_tokens(tuple(tokens))
    for first in range(0, len(drafted), _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, len(drafted))
        theirs = target.logits(carrier[first + 1 : last + 1])
        ours = head.session.logits(drafted[first:last])
        read = read_target(theirs, following[first + 1 : last + 1], "the target", first + 1)
        yield HeadPiece(ours, theirs, score_rows(read, ours, "the draft head", first))
