"""Verdicts: how two arms compare at one checkpoint, from strongest to weakest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from larql.runtime.taps import Routing

__all__ = [
    "EXACT",
    "FLOAT32",
    "KV_F16",
    "Q8",
    "TOLERANCES",
    "Checkpoint",
    "Tolerance",
    "Verdict",
    "compare_choice",
    "compare_rows",
    "first_mismatch",
    "weakest",
]

Float32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


class Verdict(Enum):
    """How two arms compare, the strongest first.

    ``exact``: bit-identical, as was asserted. ``observed_exact``: bit-identical, though nothing
    asserts it. ``equivalent``: within the tolerance. ``tie_equivalent``: they differ where scores
    are closer than the tolerance, so that a tie decided. ``numeric_mismatch``: none of these.
    """

    EXACT = "exact"
    OBSERVED_EXACT = "observed_exact"
    EQUIVALENT = "equivalent"
    TIE_EQUIVALENT = "tie_equivalent"
    NUMERIC_MISMATCH = "numeric_mismatch"

    @property
    def rank(self) -> int:
        """0 for the strongest."""
        return list(Verdict).index(self)


def weakest(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the weakest verdict, None of none."""
    return max(verdicts, key=lambda verdict: verdict.rank, default=None)


@dataclass(frozen=True)
class Tolerance:
    """How far apart two arms may be.

    Attributes
    ----------
    name : str
    relative : float
        Largest difference over the largest value of the baseline, position by position. 0 asserts
        equal bits.
    floor : float
        The baseline's largest value is taken as at least this.
    """

    name: str
    relative: float
    floor: float = 1e-6

    @property
    def asserts_bits(self) -> bool:
        """Whether nothing but equal bits will do."""
        return self.relative == 0.0


EXACT = Tolerance("exact", 0.0)
FLOAT32 = Tolerance("float32", 2e-4)
KV_F16 = Tolerance("kv-f16", 1e-2)
Q8 = Tolerance("q8", 0.25)
TOLERANCES = {tolerance.name: tolerance for tolerance in (EXACT, FLOAT32, KV_F16, Q8)}


@dataclass(frozen=True)
class Checkpoint:
    """One thing that both arms computed, compared.

    Attributes
    ----------
    site : str
        Where: ``embed``, ``3.ffn``, ``head``.
    stage : str
        What: an operation's name, or ``carrier`` for the hidden states after the write.
    verdict : Verdict
    error : float or None
        Largest difference over the largest value of the baseline, of the worst position; None
        where that is not a number or nothing was compared.
    position : int or None
        The worst position, of those that differ.
    blank : str or None
        Why equality shows nothing here: ``all zero`` or ``not finite`` in both arms.
    """

    site: str
    stage: str
    verdict: Verdict
    error: float | None
    position: int | None
    blank: str | None = None

    @property
    def name(self) -> str:
        """Where and what: ``3.ffn down``."""
        return f"{self.site} {self.stage}"


def first_mismatch(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the first checkpoint, in their order, at which the arms do not agree."""
    return next((c for c in checkpoints if c.verdict is Verdict.NUMERIC_MISMATCH), None)


def compare_rows(
    site: str,
    stage: str,
    baseline: Float32,
    examined: Float32,
    tolerance: Tolerance,
    tied: Mask | None = None,
    start: int = 0,
) -> Checkpoint:
    """Compare what two arms computed for the same positions.

    Parameters
    ----------
    site, stage : str
    baseline, examined : float32 ``[T, …]``
    tolerance : Tolerance
    tied : bool ``[T]`` or None
        Positions that a tie has led apart before; they are not compared.
    start : int
        Position of the first row.
    """
    count = len(baseline)
    if baseline.shape != examined.shape:
        return Checkpoint(site, stage, Verdict.NUMERIC_MISMATCH, None, start)
    if tied is None:
        tied = np.zeros(count, bool)
    a, b = (np.ascontiguousarray(rows).reshape(count, -1)[~tied] for rows in (baseline, examined))
    positions = np.flatnonzero(~tied) + start
    if not len(a):
        return Checkpoint(site, stage, Verdict.TIE_EQUIVALENT, None, None)
    blank = _blank(a, b)
    unequal = (a.view(np.uint32) != b.view(np.uint32)).any(axis=1)
    if not unequal.any():
        same = Verdict.EXACT if tolerance.asserts_bits else Verdict.OBSERVED_EXACT
        verdict = Verdict.TIE_EQUIVALENT if tied.any() else same
        return Checkpoint(site, stage, verdict, 0.0, None, blank)
    errors = _errors(a, b, tolerance.floor)
    broken = np.isnan(errors)
    worst = int(np.argmax(np.where(unequal, np.where(broken, np.inf, errors), -1.0)))
    error = None if broken[worst] else float(errors[worst])
    if tolerance.asserts_bits or error is None or error > tolerance.relative:
        verdict = Verdict.NUMERIC_MISMATCH
    else:
        verdict = Verdict.TIE_EQUIVALENT if tied.any() else Verdict.EQUIVALENT
    return Checkpoint(site, stage, verdict, error, int(positions[worst]), blank)


def _errors(a: Float32, b: Float32, floor: float) -> npt.NDArray[np.float64]:
    """Return each row's largest difference over its largest value; NaN where one is not finite."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a.astype(np.float64) - b).max(axis=1, initial=0.0)
    largest = np.maximum(np.abs(a).max(axis=1, initial=0.0).astype(np.float64), floor)
    finite = np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1)
    errors = np.full(len(a), np.nan)
    errors[finite] = apart[finite] / largest[finite]
    return errors


def _blank(a: Float32, b: Float32) -> str | None:
    if not (a.any() or b.any()):
        return "all zero"
    if not (np.isfinite(a).any() or np.isfinite(b).any()):
        return "not finite"
    return None


def compare_choice(
    site: str, baseline: Routing, examined: Routing, tolerance: Tolerance, start: int = 0
) -> tuple[Checkpoint, Mask]:
    """Compare which experts two arms chose.

    Where they chose otherwise, a tie decided if the scores of what was chosen instead are closer
    than the tolerance, and than the scores of both arms explain: an arm that sees the same scores
    and chooses otherwise has no tie to blame. Experts in another order are no other choice, but
    need the same excuse.

    Returns
    -------
    tuple
        The checkpoint ``chosen``, and which positions other experts run for, bool ``[T]``.
    """
    count = len(baseline.chosen)
    other = np.zeros(count, bool)
    worst: tuple[Verdict, float | None, int | None] = (
        Verdict.EXACT if tolerance.asserts_bits else Verdict.OBSERVED_EXACT, 0.0, None,
    )  # fmt: skip
    for t in range(count):
        ours, theirs = baseline.chosen[t], examined.chosen[t]
        if np.array_equal(ours, theirs):
            continue
        scores = baseline.scores[t].astype(np.float64)
        left, joined = np.setdiff1d(ours, theirs), np.setdiff1d(theirs, ours)
        other[t] = bool(len(left))
        gap = (
            float(np.abs(scores[left][:, None] - scores[joined][None]).max())
            if len(left)
            else _out_of_order(scores[theirs])
        )
        error = gap / max(float(np.abs(scores).max()), tolerance.floor)
        apart = float(np.abs(scores - examined.scores[t]).max())
        close = tolerance.relative * max(float(np.abs(scores).max()), tolerance.floor)
        tie = apart <= close and gap <= min(close, 2.0 * apart)
        verdict = Verdict.TIE_EQUIVALENT if tie else Verdict.NUMERIC_MISMATCH
        if verdict.rank > worst[0].rank:
            worst = (verdict, error, start + t)
    return Checkpoint(site, "chosen", *worst), other


def _out_of_order(scores: npt.NDArray[np.float64]) -> float:
    """Return by how much a later score exceeds an earlier one at most."""
    return float((scores - np.minimum.accumulate(scores)).max())
