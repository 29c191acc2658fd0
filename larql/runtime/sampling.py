"""Choosing the next token from a row of logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError

__all__ = ["Sampler", "Sampling", "greedy", "top_tokens"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes
    ----------
    temperature : float
        0 chooses the largest logit; otherwise logits are divided by it.
    top_p : float
        The smallest set of likeliest tokens whose probabilities reach this sum is drawn from.
    seed : int
        The same seed draws the same tokens from the same logits.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError(f"--temperature {self.temperature}: expected a number of at least 0")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"--top-p {self.top_p}: expected a number above 0, at most 1")
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed}: expected a number of at least 0")


def _refuse_nan(row: npt.NDArray[np.float32]) -> None:
    if np.isnan(row).any():
        token = int(np.flatnonzero(np.isnan(row))[0])
        raise UsageError(
            f"the logit of token {token} is not a number; no token can be chosen from this model"
        )


def greedy(row: npt.NDArray[np.float32]) -> int:
    """Return the token with the largest logit, the smallest id among equals.

    Raises
    ------
    UsageError
        If a logit is not a number.
    """
    token = int(np.argmax(row))  # the first that is not a number, if there is one
    if np.isnan(row[token]):
        _refuse_nan(row)
    return token


def top_tokens(row: npt.NDArray[np.float32], count: int) -> list[tuple[int, float]]:
    """Return the ids and logits of the largest ``count`` logits, ties by ascending id.

    NaN counts as smaller than any number.
    """
    keys = np.where(np.isnan(row), -np.inf, row)
    count = min(count, len(row))
    if count < len(row):
        threshold = np.partition(keys, len(row) - count)[len(row) - count]
        candidates = np.flatnonzero(keys >= threshold)
    else:
        candidates = np.arange(len(row))
    order = candidates[np.lexsort((candidates, -keys[candidates]))][:count]
    return [(int(i), float(row[i])) for i in order]


class Sampler:
    """Draws tokens one after another.

    Parameters
    ----------
    sampling : Sampling
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        # numpy.random takes 10 MB, which greedy runs do without.
        self._random = (
            np.random.Generator(np.random.PCG64(sampling.seed)) if sampling.temperature else None
        )

    def choose(self, row: npt.NDArray[np.float32]) -> int:
        """Return the next token for a row of logits, float32 ``[vocab]``."""
        if self._random is None:
            return greedy(row)
        _refuse_nan(row)
        scaled = row.astype(np.float64) / self._sampling.temperature
        largest = scaled.max()
        if not np.isfinite(largest):
            raise UsageError(
                f"the largest logit is {largest}; no token can be drawn from it, try --temperature "
                f"0"
            )
        weights = np.exp(scaled - largest)
        order = np.lexsort((np.arange(len(row)), -weights))
        cumulative = np.cumsum(weights[order])
        total = cumulative[-1]
        kept = int(np.searchsorted(cumulative, self._sampling.top_p * total, side="left")) + 1
        kept = min(kept, len(order))
        drawn = self._random.random() * cumulative[kept - 1]
        return int(order[min(int(np.searchsorted(cumulative, drawn, side="right")), kept - 1)])
