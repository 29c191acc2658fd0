"""Decode parity: the same tokens given to both arms, and then each arm's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.runtime.observe.sites import write_sites
from larql.runtime.parity.arms import Pair
from larql.runtime.parity.blocks import CARRIER, compare_propagated, stages_of
from larql.runtime.parity.ends import HEAD
from larql.runtime.parity.recorder import Recorder, Seen
from larql.runtime.parity.verdict import (
    Checkpoint,
    Tolerance,
    Verdict,
    compare_rows,
    first_mismatch,
    weakest,
)
from larql.runtime.sampling import greedy
from larql.runtime.session import Session

__all__ = ["Decoded", "FreeRun", "Stepper", "TeacherForced", "compare_steps", "run_freely"]

Float32 = npt.NDArray[np.float32]


class Stepper:
    """One arm's session, with all that it computed.

    Attributes
    ----------
    session : Session
    rows : list of float32 ``[vocab]``
        Logits of the last position, after the prompt and after each step.
    """

    def __init__(self, session: Session, recorder: Recorder) -> None:
        self.session = session
        self.rows: list[Float32] = []
        self._recorder = recorder

    def step(self, tokens: Sequence[int]) -> Float32:
        """Advance, and return the logits of the last position."""
        self.rows.append(self.session.step(tokens))
        return self.rows[-1]

    def seen(self) -> Seen:
        """Return what was computed so far."""
        return self._recorder.seen()


@dataclass(frozen=True)
class Decoded:
    """One teacher-forced step.

    Attributes
    ----------
    position : int
    token : int
        What both arms were given.
    verdict : Verdict
    logits : Checkpoint
    first : Checkpoint or None
        The first thing in this step that differs.
    argmax : tuple of int
        The likeliest token of the baseline, and of the examined arm.
    """

    position: int
    token: int
    verdict: Verdict
    logits: Checkpoint
    first: Checkpoint | None
    argmax: tuple[int, int]


@dataclass(frozen=True)
class TeacherForced:
    """Single steps of both arms, given the tokens that the baseline chose.

    Attributes
    ----------
    steps : tuple of Decoded
    """

    steps: tuple[Decoded, ...]

    @property
    def verdict(self) -> Verdict:
        """The weakest of all steps."""
        return max((step.verdict for step in self.steps), key=lambda verdict: verdict.rank)

    @property
    def first(self) -> Decoded | None:
        """The first step at which the arms differ."""
        return next((s for s in self.steps if s.verdict is Verdict.NUMERIC_MISMATCH), None)


@dataclass(frozen=True)
class FreeRun:
    """What each arm generates by itself.

    Attributes
    ----------
    verdict : Verdict
    baseline, examined : tuple of int
    differs_at : int or None
        Which token is the first that differs.
    margin : float or None
        By how much the baseline preferred its token there, over its largest logit.
    """

    verdict: Verdict
    baseline: tuple[int, ...]
    examined: tuple[int, ...]
    differs_at: int | None = None
    margin: float | None = None


def compare_steps(
    pair: Pair,
    steppers: tuple[Stepper, Stepper],
    tokens: Sequence[int],
    prompt: int,
    tolerance: Tolerance,
    tied: bool,
) -> TeacherForced:
    """Compare the steps that both arms made after a prompt.

    Parameters
    ----------
    pair : Pair
    steppers : two of Stepper
        Baseline's and examined's, each stepped by ``tokens``, one at a time.
    tokens : sequence of int
    prompt : int
        Positions before the first of them.
    tolerance : Tolerance
    tied : bool
        Whether a tie has led the prompt apart.
    """
    sites = write_sites(pair.baseline.run.prepared.plan)
    seen = [stepper.seen() for stepper in steppers]
    steps = []
    for n, token in enumerate(tokens):
        at = prompt + n
        ours, theirs = (one.at(at, at + 1) for one in seen)
        apart = np.array([tied])
        propagated = compare_propagated(sites, ours, theirs, tolerance, apart, at)
        rows = [stepper.rows[n + 1] for stepper in steppers]
        tied = bool(propagated.tied[0])
        pair_of_rows = (rows[0][None], rows[1][None])
        logits = compare_rows(HEAD, "logits", *pair_of_rows, tolerance, np.array([tied]), at)
        found: list[Checkpoint] = []
        for write, (site, boundary) in enumerate(zip(sites, propagated.boundaries, strict=True)):
            if write:
                more, apart = stages_of(site, write - 1, ours, theirs, tolerance, apart, at)
                found += more
            found.append(boundary)
        found.append(logits)
        verdict = weakest(c.verdict for c in found if c.stage == CARRIER or c is logits)
        assert verdict is not None
        steps.append(
            Decoded(
                at, token, verdict, logits, first_mismatch(found),
                (int(np.argmax(rows[0])), int(np.argmax(rows[1]))),
            )
        )  # fmt: skip
    return TeacherForced(tuple(steps))


def run_freely(
    pair: Pair,
    prompt: Sequence[int],
    rows: Sequence[Float32],
    tolerance: Tolerance,
    context: int,
) -> FreeRun:
    """Let the examined arm generate by itself, unobserved, and compare its tokens.

    Parameters
    ----------
    pair : Pair
    prompt : sequence of int
    rows : sequence of float32 ``[vocab]``
        The baseline's logits after the prompt and after each of its own tokens.
    tolerance : Tolerance
    context : int
        Room of the session.
    """
    wanted = tuple(greedy(row) for row in rows)
    with pair.examined.asked():
        session = pair.examined.session(context)
        row = session.step(prompt)
        made = [greedy(row)]
        while len(made) < len(wanted):
            made.append(greedy(session.step(made[-1:])))
    differs = next((n for n, token in enumerate(wanted) if made[n] != token), None)
    if differs is None:
        same = Verdict.EXACT if tolerance.asserts_bits else Verdict.OBSERVED_EXACT
        return FreeRun(same, wanted, tuple(made))
    row = rows[differs].astype(np.float64)
    gap = float(row[wanted[differs]] - row[made[differs]])
    margin = gap / max(float(np.abs(row).max()), tolerance.floor)
    tie = not tolerance.asserts_bits and margin <= tolerance.relative
    verdict = Verdict.TIE_EQUIVALENT if tie else Verdict.NUMERIC_MISMATCH
    return FreeRun(verdict, wanted, tuple(made), differs, margin)
