"""The comparison of two arms, phase by phase; a refused step ends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from larql.errors import Refusal, UsageError
from larql.runtime.observe.sites import write_sites
from larql.runtime.parity.arms import Pair, RefusedArmError
from larql.runtime.parity.blocks import (
    CARRIER,
    Propagation,
    Sweep,
    compare_locked,
    compare_propagated,
)
from larql.runtime.parity.decode import (
    FreeRun,
    Stepper,
    TeacherForced,
    compare_steps,
    run_freely,
)
from larql.runtime.parity.ends import Ends, compare_head, ends_of
from larql.runtime.parity.oracle import OracleLeg, compare_with_oracle, prepare_oracle
from larql.runtime.parity.recorder import Seen
from larql.runtime.parity.verdict import Checkpoint, Tolerance, Verdict, weakest
from larql.runtime.plan import check_tokens
from larql.runtime.sampling import greedy

__all__ = ["Comparison", "Halt", "Wanted", "compare"]

SAME_RUN = (
    "both arms are the same run of the same container: that they agree says that it is "
    "deterministic, and nothing else"
)


@dataclass(frozen=True)
class Wanted:
    """What is compared.

    Attributes
    ----------
    tokens : tuple of int
        The prompt.
    tolerance : Tolerance
    generate : int
        Tokens to decode; 0 leaves decoding out.
    top : int
        How many of the likeliest tokens to tell.
    oracle_layer : int or None
        A layer to hold to the oracle as well.
    """

    tokens: tuple[int, ...]
    tolerance: Tolerance
    generate: int = 4
    top: int = 5
    oracle_layer: int | None = None


@dataclass(frozen=True)
class Halt:
    """Where a refused step ended the comparison.

    Attributes
    ----------
    phase : str
    arm : str
    refusal : Refusal
    """

    phase: str
    arm: str
    refusal: Refusal


@dataclass(frozen=True)
class Comparison:
    """What came of it; a phase that was not reached is None.

    Attributes
    ----------
    sweep : Sweep or None
        Blocks on identical input.
    oracle : tuple of OracleLeg
    propagation : Propagation or None
        Both arms left to themselves.
    ends : Ends or None
    teacher_forced : TeacherForced or None
    free_run : FreeRun or None
    halt : Halt or None
    trivial : tuple of str
        What makes agreement say less than it seems to.
    blank : tuple of str
        What makes agreement say nothing.
    """

    sweep: Sweep | None = None
    oracle: tuple[OracleLeg, ...] = ()
    propagation: Propagation | None = None
    ends: Ends | None = None
    teacher_forced: TeacherForced | None = None
    free_run: FreeRun | None = None
    halt: Halt | None = None
    trivial: tuple[str, ...] = ()
    blank: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """The weakest of the phases that were reached; None where a refusal ended it."""
        if self.halt is not None:
            return None
        phases = (self.sweep, self.propagation, self.ends, self.teacher_forced, self.free_run)
        return weakest(p.verdict for p in (*phases, *self.oracle) if p is not None)

    @property
    def agrees(self) -> bool:
        """Whether the arms agree, and on something."""
        verdict = self.verdict
        return verdict is not None and verdict is not Verdict.NUMERIC_MISMATCH and not self.blank


class _Phases:
    """The phases of a comparison as they come to be."""

    def __init__(self, pair: Pair, wanted: Wanted) -> None:
        self.pair = pair
        self.wanted = wanted
        self.sites = write_sites(pair.baseline.run.prepared.plan)
        self.prompt = len(wanted.tokens)
        self.context = self.prompt + wanted.generate
        self.phase = "opening"
        self.found = Comparison(trivial=(SAME_RUN,) if pair.same_run else ())

    def add(self, **parts: Any) -> None:
        """Take note of what a phase has come to."""
        self.found = replace(self.found, **parts)


def compare(pair: Pair, wanted: Wanted) -> Comparison:
    """Compare two arms.

    First every block of both on identical input, then both left to themselves, then single steps
    with the same tokens, and where these agree each with its own. Whether a step is refused is
    asked before any number of it is looked at.

    Parameters
    ----------
    pair : Pair
    wanted : Wanted

    Raises
    ------
    UsageError
        If the tokens do not fit the model, or the layer for the oracle does not exist.
    """
    if not wanted.tokens:
        raise UsageError("tokens: expected at least one, found none")
    check_tokens(wanted.tokens, pair.baseline.run.prepared.plan.component.vocab_size)
    state = _Phases(pair, wanted)
    try:
        _run(state)
    except RefusedArmError as refused:
        state.add(halt=Halt(state.phase, refused.arm, refused.refusal))
    return state.found


def _run(state: _Phases) -> None:
    pair, wanted = state.pair, state.wanted
    layer = wanted.oracle_layer
    oracles = {}
    if layer is not None:
        for arm in (pair.baseline, pair.examined):
            with arm.asked():
                oracles[arm.name] = prepare_oracle(arm, layer)
    state.phase = "sweep"
    baseline = _prompted(state, "baseline")
    ours = baseline.seen()
    theirs = _locked(state, ours)
    layers = compare_locked(state.sites, ours, theirs, wanted.tolerance)
    head = compare_head(pair, ours.carriers[-1], wanted.tolerance)
    sweep = Sweep((*layers, head))
    state.add(sweep=sweep, blank=tuple(_blank(c for one in sweep.layers for c in one.checkpoints)))
    if layer is not None:
        state.phase = "oracle"
        seen = {"baseline": ours, "examined": theirs}
        state.add(oracle=compare_with_oracle(pair, oracles, layer, seen, state.context))
    state.phase = "propagation"
    examined = _prompted(state, "examined")
    propagated = examined.seen()
    found = compare_propagated(state.sites, ours, propagated, wanted.tolerance)
    tied = bool(found.tied[-1])
    last = (ours.carriers[-1][-1:], propagated.carriers[-1][-1:])
    ends = ends_of(pair, last, wanted.tolerance, tied, state.prompt - 1, wanted.top)
    blank = ("every logit of the baseline is the same number",) if ends.all_equal else ()
    state.add(propagation=found, ends=ends, blank=(*state.found.blank, *blank))
    numbers = all(np.isfinite(stepper.rows[-1]).all() for stepper in (baseline, examined))
    if wanted.generate and numbers:
        _decode(state, baseline, examined, found)


def _blank(checkpoints: Iterable[Checkpoint]) -> Iterable[str]:
    """Say which hidden states or logits are no evidence, whatever else is equal."""
    for checkpoint in checkpoints:
        if checkpoint.blank is not None and checkpoint.stage in (CARRIER, "logits"):
            yield f"{checkpoint.name} is {checkpoint.blank} in both arms"


def _prompted(state: _Phases, name: str) -> Stepper:
    """Run the prompt through an arm that is left to itself."""
    arm = state.pair.baseline if name == "baseline" else state.pair.examined
    recorder = arm.recorder()
    stepper = Stepper(arm.session(state.context, recorder), recorder)
    with arm.asked():
        stepper.step(state.wanted.tokens)
    return stepper


def _locked(state: _Phases, baseline: Seen) -> Seen:
    """Run the prompt through the examined arm, whose blocks read the baseline's carriers."""
    arm = state.pair.examined
    recorder = arm.recorder(baseline.carriers)
    session = arm.session(state.context, recorder)
    with arm.asked():
        session.advance(state.wanted.tokens)
    return recorder.seen()


def _decode(state: _Phases, baseline: Stepper, examined: Stepper, propagation: Propagation) -> None:
    pair, wanted = state.pair, state.wanted
    state.phase = "teacher_forced"
    tokens: list[int] = []
    for _ in range(wanted.generate):
        tokens.append(greedy(baseline.rows[-1]))
        with pair.baseline.asked():
            baseline.step(tokens[-1:])
        with pair.examined.asked():
            examined.step(tokens[-1:])
    tied = bool(propagation.tied[-1])
    forced = compare_steps(pair, (baseline, examined), tokens, state.prompt, wanted.tolerance, tied)
    state.add(teacher_forced=forced)
    if forced.verdict is Verdict.NUMERIC_MISMATCH or forced.verdict is Verdict.TIE_EQUIVALENT:
        return
    state.phase = "free_running"
    rows = baseline.rows[: wanted.generate]
    state.add(free_run=run_freely(pair, wanted.tokens, rows, wanted.tolerance, state.context))
