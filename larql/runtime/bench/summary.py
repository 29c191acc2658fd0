"""Medians and spreads of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Summary", "first_difference", "paired", "summarise"]


@dataclass(frozen=True)
class Summary:
    """One quantity, measured several times.

    Attributes
    ----------
    median, minimum, maximum : float
    values : tuple of float
        In the order in which they were measured.
    """

    median: float
    minimum: float
    maximum: float
    values: tuple[float, ...]


def summarise(values: Sequence[float]) -> Summary:
    """Summarise at least one value; the median of an even number is the mean of the middle two."""
    return Summary(statistics.median(values), min(values), max(values), tuple(values))


def paired(numerators: Sequence[float], denominators: Sequence[float]) -> Summary:
    """Summarise the ratios of what was measured side by side, round by round.

    A slow spell of the machine that lasts for a round is in both of its numbers, so ratios of
    pairs spread less than the ratio of two medians would.

    Raises
    ------
    ValueError
        If there are not as many of the one as of the other.
    """
    return summarise([a / b for a, b in zip(numerators, denominators, strict=True)])


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first index at which two sequences differ, None where they are equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))
