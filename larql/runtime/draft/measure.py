"""Climbing a ladder with many prompts through one resident model, resumably."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from larql.errors import UsageError, refusal_of
from larql.format.progress import Progress
from larql.provenance import tokens_sha256
from larql.runtime.draft.bank import Entry
from larql.runtime.draft.journal import Journal
from larql.runtime.draft.ladder import Rung, StepTimes, rung_of, time_steps
from larql.runtime.draft.rungs import score_rungs
from larql.runtime.draft.scores import Scores
from larql.runtime.run import Run

__all__ = ["LadderRun", "climb"]


@dataclass(frozen=True)
class LadderRun:
    """A ladder, ready to be written.

    Attributes
    ----------
    rungs : tuple of Rung
    scores : mapping
        Id of a prompt to its scores, one for each rung.
    times : StepTimes
    seconds : mapping
        Time of traversals, heads and scoring by this process.
    journal : Journal or None
        To be removed once the ladder is written.
    """

    rungs: tuple[Rung, ...]
    scores: Mapping[str, Sequence[Scores]]
    times: StepTimes
    seconds: Mapping[str, float]
    journal: Journal | None


def climb(
    run: Run,
    entries: Sequence[Entry],
    depths: Sequence[int],
    output: Path | None,
    *,
    resume: bool,
    progress: Progress,
) -> LadderRun:
    """Score depths over prompts, each from a fresh state.

    Parameters
    ----------
    run : Run
        Of the whole model.
    entries : sequence of Entry
    depths : sequence of int
    output : Path or None
        Where the ladder will be written; beside it stands what an interrupted run has done.
    resume : bool
    progress : Progress
        Told of positions times depths.

    Raises
    ------
    UsageError
        If there is nothing to resume, or a logit is not a finite number.
    """
    journal = None
    if output is not None:
        identity = _identity(run, entries, depths)
        journal = Journal(output, identity, resume=resume)
    done = {} if journal is None else journal.done
    found: dict[str, Sequence[Scores]] = {}
    seconds = {"traversal": 0.0, "heads": 0.0, "scoring": 0.0}
    progress.start("ladder", sum(len(entry.tokens) for entry in entries) * len(depths))
    try:
        for entry in entries:
            if entry.id in done:
                found[entry.id] = _scores(done[entry.id], journal)
                progress.advance(len(entry.tokens) * len(depths))
                continue
            rungs = score_rungs(run.prepared, entry.tokens, depths, run.options.chunk, progress)
            found[entry.id] = rungs.scores
            seconds["traversal"] += rungs.traversal_seconds
            seconds["heads"] += rungs.head_seconds
            seconds["scoring"] += rungs.score_seconds
            if journal is not None:
                journal.add(entry.id, [scores.document() for scores in rungs.scores])
    except BaseException as error:
        if journal is not None:
            # A run that is refused leaves nothing that it has not been told to go on with.
            journal.remove() if refusal_of(error) and not done else journal.close()
        raise
    progress.finish()
    times = time_steps(run.prepared)
    prompts = [found[entry.id] for entry in entries]
    made = tuple(
        rung_of(run.prepared, depth, [scores[i] for scores in prompts], times)
        for i, depth in enumerate(depths)
    )
    return LadderRun(made, found, times, seconds, journal)


def _identity(run: Run, entries: Sequence[Entry], depths: Sequence[int]) -> dict[str, object]:
    said = run.provenance((), max(len(entry.tokens) for entry in entries))
    kept = ("backend", "numerics", "activations", "kv", "max_format")
    return {
        "kind": "ladder",
        "container": run.container.fingerprint,
        "profile": run.prepared.selection.profile,
        **{key: said[key] for key in kept},
        "depths": list(depths),
        "entries": [[entry.id, tokens_sha256(entry.tokens)] for entry in entries],
    }


def _scores(value: object, journal: Journal | None) -> list[Scores]:
    """Read scores back from a journal."""
    try:
        assert isinstance(value, list)
        return [Scores.of(one) for one in value]
    except (AssertionError, AttributeError, TypeError, ValueError):
        where = "" if journal is None else f"{journal.path}: "
        raise UsageError(f"{where}holds no scores; remove the file to begin again") from None
