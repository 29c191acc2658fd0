"""How surprised a model is by a text: negative log-likelihood over overlapping windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.format.progress import Progress
from larql.runtime.run import Run

__all__ = ["Perplexity", "Window", "perplexity", "windows"]


@dataclass(frozen=True)
class Window:
    """One stretch of a text that is run from a fresh state.

    Attributes
    ----------
    start, end : int
        Half-open range of the text's tokens that are run.
    first_scored : int
        The first token whose likelihood counts here; those before it are context.
    """

    start: int
    end: int
    first_scored: int


@dataclass(frozen=True)
class Perplexity:
    """The likelihood of a text.

    Attributes
    ----------
    nll : float64 ``[scored]``
        Negative log-likelihood of each scored token, in nats, in text order.
    windows : int
        Number of windows that were run.
    """

    nll: npt.NDArray[np.float64]
    windows: int

    @property
    def mean_nll(self) -> float:
        """Mean negative log-likelihood in nats per token."""
        return math.fsum(self.nll) / len(self.nll)

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean, as if tokens were independent; None for one token."""
        count = len(self.nll)
        if count < 2:
            return None
        mean = self.mean_nll
        return math.sqrt(math.fsum((self.nll - mean) ** 2) / (count - 1) / count)

    @property
    def perplexity(self) -> float:
        """``exp`` of the mean negative log-likelihood; infinite where that exceeds a float."""
        try:
            return math.exp(self.mean_nll)
        except OverflowError:
            return math.inf


def windows(tokens: int, window: int, stride: int, prefix: int) -> Iterator[Window]:
    """Cut a text into windows so that each token is scored exactly once.

    Parameters
    ----------
    tokens : int
        Length of the text.
    window : int
        Positions that are run at once, beginning tokens included.
    stride : int
        How far each window begins after the one before it.
    prefix : int
        Number of beginning-of-sequence tokens put before each window. Without any, the very
        first token of the text has no context and is not scored.

    Raises
    ------
    UsageError
        If the window leaves no room, or the stride would leave tokens out.
    """
    room = window - prefix
    if room < 2:
        raise UsageError(f"--window {window}: expected at least {prefix + 2} positions")
    if not 1 <= stride <= room - (1 if prefix == 0 else 0):
        raise UsageError(
            f"--stride {stride}: expected 1 to {room - (1 if prefix == 0 else 0)}, so that each "
            f"token is scored once with context"
        )
    scored = 0 if prefix else 1
    start = 0
    while scored < tokens:
        end = min(start + room, tokens)
        if end > scored:
            yield Window(start, end, scored)
            scored = end
        start += stride


def perplexity(
    run: Run,
    tokens: Sequence[int],
    *,
    bos_ids: Sequence[int],
    window: int,
    stride: int,
    progress: Progress,
) -> Perplexity:
    """Score a text.

    Parameters
    ----------
    run : Run
        A prepared run with a head.
    tokens : sequence of int
        The text's tokens, without beginning-of-sequence tokens.
    bos_ids : sequence of int
        Put before each window.
    window, stride : int
        As for :func:`windows`.
    progress : Progress
        Told of the tokens that are scored.

    Raises
    ------
    UsageError
        If the text has no token to score.
    """
    cuts = list(windows(len(tokens), window, stride, len(bos_ids)))
    if not cuts:
        raise UsageError(f"the text has {len(tokens)} tokens; none of them can be scored")
    backend = run.prepared.backend
    scores = []
    progress.start("score", sum(cut.end - cut.first_scored for cut in cuts))
    for cut in cuts:
        ids = [*bos_ids, *tokens[cut.start : cut.end]]
        session = run.session(len(ids))
        carrier = session.advance(ids)
        offset = len(bos_ids) - cut.start
        # The logits at one position predict the next.
        rows = carrier[cut.first_scored - 1 + offset : cut.end - 1 + offset]
        target = cut.first_scored
        for piece in session.logit_rows(rows):
            wanted = np.asarray(tokens[target : target + len(piece)])
            chosen = piece[np.arange(len(piece)), wanted].astype(np.float64)
            scores.append(backend.log_sum_exp(piece) - chosen)
            target += len(piece)
        progress.advance(cut.end - cut.first_scored)
    progress.finish()
    return Perplexity(np.concatenate(scores), len(cuts))
