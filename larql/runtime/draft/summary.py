"""Many positions in a few numbers: means with bootstrap intervals, percentiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.runtime.draft.scores import Scores

__all__ = [
    "CONTAINED",
    "Estimate",
    "NextToken",
    "ScoreSummary",
    "Spread",
    "bootstrap_means",
    "spread",
    "summarise",
]

Floats = npt.NDArray[np.float64]

CONTAINED = (1, 2, 5, 10)
_RESAMPLES, _SEED, _COVERAGE = 1000, 0, 0.95
_LARGEST_EXPONENT = 709.0
_PERCENTILES = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True)
class Estimate:
    """A mean, or a function of it, and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """How values are distributed.

    Attributes
    ----------
    minimum, maximum : float
    percentiles : mapping
        Percentage, as text, to the value that so many values do not exceed (interpolated).
    """

    minimum: float
    maximum: float
    percentiles: Mapping[str, float]


@dataclass(frozen=True)
class NextToken:
    """How likely both hold the token that follows, over the positions where one is known.

    Attributes
    ----------
    positions : int
    target_nll, draft_nll, nll_difference : Estimate
        Mean negative log-likelihood in nats, and by how much the draft's is larger.
    target_perplexity, draft_perplexity, perplexity_ratio : Estimate
        exp of the three before.
    delta_p, rms_delta_p : Estimate
        Mean and root mean square of q - p, the draft's probability less the target's.
    delta_p_spread : Spread
    """

    positions: int
    target_nll: Estimate
    draft_nll: Estimate
    nll_difference: Estimate
    target_perplexity: Estimate
    draft_perplexity: Estimate
    perplexity_ratio: Estimate
    delta_p: Estimate
    rms_delta_p: Estimate
    delta_p_spread: Spread


@dataclass(frozen=True)
class ScoreSummary:
    """How near a draft is to its target.

    Attributes
    ----------
    positions : int
    divergence : Estimate
        Mean KL(p‖q) in nats.
    divergence_spread : Spread
    same_top : Estimate
        How often both have the same likeliest token.
    contained : mapping
        k, as text, to how often the target's likeliest token is among the draft's first k.
    rank_spread : Spread
        Of the rank of the target's likeliest token in the draft.
    next_token : NextToken or None
        None where no token is known to follow any position.
    """

    positions: int
    divergence: Estimate
    divergence_spread: Spread
    same_top: Estimate
    contained: Mapping[str, Estimate]
    rank_spread: Spread
    next_token: NextToken | None


def summarise(scores: Scores) -> ScoreSummary:
    """Summarise the scores of at least one position.

    Raises
    ------
    UsageError
        If there is no position.
    """
    if not len(scores.divergence):
        raise UsageError("there is no position to score")
    same = scores.draft_top == scores.target_top
    inside = [scores.rank <= k for k in CONTAINED]
    divergence, same_top, *contained = bootstrap_means([scores.divergence, same, *inside])
    known = ~np.isnan(scores.target_nll)
    return ScoreSummary(
        positions=len(scores.divergence),
        divergence=divergence,
        divergence_spread=spread(scores.divergence),
        same_top=same_top,
        contained={str(k): found for k, found in zip(CONTAINED, contained, strict=True)},
        rank_spread=spread(scores.rank),
        next_token=(
            _next_token(scores.target_nll[known], scores.draft_nll[known]) if known.any() else None
        ),
    )


def _next_token(target: Floats, draft: Floats) -> NextToken:
    delta = np.exp(-draft) - np.exp(-target)
    of_target, of_draft, apart, mean, square = bootstrap_means(
        [target, draft, draft - target, delta, delta * delta]
    )
    return NextToken(
        positions=len(target),
        target_nll=of_target,
        draft_nll=of_draft,
        nll_difference=apart,
        target_perplexity=_mapped(_exp, of_target),
        draft_perplexity=_mapped(_exp, of_draft),
        perplexity_ratio=_mapped(_exp, apart),
        delta_p=mean,
        rms_delta_p=_mapped(math.sqrt, square),
        delta_p_spread=spread(delta),
    )


def bootstrap_means(columns: Sequence[npt.NDArray[Any]]) -> list[Estimate]:
    """Return the mean of each column with its interval.

    Positions are drawn anew a thousand times, with replacement and as if they were independent;
    the interval holds the middle 95 % of the means. The draws are the same for all columns and in
    every run.

    Parameters
    ----------
    columns : sequence of arrays ``[n]``
        All of one length, at least 1.
    """
    values = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
    count = len(values)
    random = np.random.Generator(np.random.PCG64(_SEED))
    means = np.empty((_RESAMPLES, values.shape[1]))
    for again in means:
        drawn = np.bincount(random.integers(0, count, count), minlength=count)
        again[:] = (drawn[:, None] * values).sum(axis=0) / count
    low, high = np.quantile(means, ((1 - _COVERAGE) / 2, (1 + _COVERAGE) / 2), axis=0)
    exact = [math.fsum(column) / count for column in values.T]
    # A column of equal values has itself as its interval, however sums round.
    return [
        Estimate(mean, min(float(a), mean), max(float(b), mean))
        for mean, a, b in zip(exact, low, high, strict=True)
    ]


def spread(values: npt.NDArray[Any]) -> Spread:
    """Return how values are distributed; there is at least one."""
    found = np.percentile(values.astype(np.float64), _PERCENTILES)
    return Spread(
        float(values.min()),
        float(values.max()),
        {f"{p:g}": float(value) for p, value in zip(_PERCENTILES, found, strict=True)},
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < _LARGEST_EXPONENT else math.inf


def _mapped(function: Callable[[float], float], of: Estimate) -> Estimate:
    return Estimate(function(of.value), function(of.low), function(of.high))
