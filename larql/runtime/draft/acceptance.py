"""How often a drafter is right on given streams: blocks are verified, and nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from larql.errors import ContainerError, LarqlError, Refusal
from larql.format.progress import Progress
from larql.runtime.draft.bank import Entry, RefusedEntry
from larql.runtime.draft.choice import make_drafter
from larql.runtime.draft.drafter import Drafter, Tally
from larql.runtime.draft.probe import DraftCost
from larql.runtime.run import Run
from larql.runtime.sampling import greedy

__all__ = ["Outcome", "Place", "expected_speedup", "observe_acceptance", "places"]


@dataclass(frozen=True)
class Outcome:
    """What became of one entry.

    Attributes
    ----------
    id : str
    kind : str
        ``scored``; ``refused``: it is no stream for the model; ``defective``: the drafter or the
        model is refused what the entry needs of its container; ``dead``: the run of it ended before
        the stream did. Only what is scored counts.
    tally : Tally
        Empty unless scored.
    why : str or None
        None where it is scored.
    cause : Refusal or ContainerError or None
        What ended an entry that is defective.
    """

    id: str
    kind: Literal["scored", "refused", "defective", "dead"]
    tally: Tally
    why: str | None
    cause: Refusal | ContainerError | None = None


@dataclass(frozen=True)
class Place:
    """One place in a draft, counted from 1.

    Attributes
    ----------
    place : int
    drafted : int
        Blocks that had a token there.
    judged : int
        Those of them whose earlier tokens were all accepted.
    accepted : int
    """

    place: int
    drafted: int
    judged: int
    accepted: int

    @property
    def rate(self) -> float | None:
        """Accepted to judged; None where none was judged."""
        return self.accepted / self.judged if self.judged else None


def observe_acceptance(
    run: Run,
    entries: Sequence[Entry | RefusedEntry],
    name: str,
    most: int,
    progress: Progress,
) -> list[Outcome]:
    """Draft behind every position of some streams, and verify it.

    At each position the drafter is given the stream up to there, and what it guesses runs as a
    block on the target, which says what it would have chosen. Then the state goes back and the
    stream's own token is run. Each entry begins from a fresh state, the drafter's too.

    Parameters
    ----------
    run : Run
    entries : sequence of Entry or RefusedEntry
    name : str
        The drafter, as on the command line.
    most : int
        Tokens that it drafts for a block.
    progress : Progress
        Told of positions.

    Raises
    ------
    UsageError
        If there is no such drafter, or it does not fit the model.
    """
    progress.start("accept", sum(len(e.tokens) for e in entries if isinstance(e, Entry)))
    found = []
    for entry in entries:
        if isinstance(entry, RefusedEntry):
            found.append(Outcome(entry.id, "refused", Tally(), entry.why))
            continue
        tally = Tally()
        try:
            drafter = make_drafter(name, run, len(entry.tokens) + most)
        except (Refusal, ContainerError) as error:
            found.append(Outcome(entry.id, "defective", Tally(), str(error), error))
            continue
        try:
            _replay(run, drafter, entry.tokens, most, tally, progress)
        except (Refusal, ContainerError) as error:
            found.append(Outcome(entry.id, "defective", Tally(), str(error), error))
        except LarqlError as error:
            at = len(tally.accepted)
            found.append(Outcome(entry.id, "dead", Tally(), f"position {at}: {error}"))
        else:
            found.append(Outcome(entry.id, "scored", tally, None))
    progress.finish()
    return found


def _replay(
    run: Run,
    drafter: Drafter,
    tokens: Sequence[int],
    most: int,
    tally: Tally,
    progress: Progress,
) -> None:
    session = run.session(len(tokens) + most)
    for position, token in enumerate(tokens):
        guesses = drafter.propose(tokens[: position + 1], most)
        mark = session.checkpoint(len(guesses) + 1)
        carrier, rows, seconds = run.timed_rows(session, [token, *guesses])
        agreed = 0
        for row, guess in zip(rows, guesses, strict=False):
            if greedy(row) != guess:
                break
            agreed += 1
        tally.add(len(guesses), agreed, seconds)
        if guesses and session.can_truncate(position + 1):
            session.truncate(position + 1)
        elif guesses:
            session.rewind(mark)
            session.advance([token])
        drafter.saw(position, carrier[:1])
        progress.advance(1)


def places(tally: Tally, most: int) -> list[Place]:
    """Return acceptance by place in a draft."""
    blocks = list(zip(tally.proposed, tally.accepted, strict=True))
    return [
        Place(
            place,
            sum(proposed >= place for proposed, _ in blocks),
            sum(proposed >= place and accepted >= place - 1 for proposed, accepted in blocks),
            sum(accepted >= place for _, accepted in blocks),
        )
        for place in range(1, most + 1)
    ]


def expected_speedup(tally: Tally, cost: DraftCost) -> float:
    """Return the speed of speculation to that of single steps, by costs that were measured apart.

    The time to run accepted tokens again, where a state cannot forget rejected ones, is not in it.
    """
    return tally.made * cost.target_seconds / sum(map(cost.block, tally.proposed))
