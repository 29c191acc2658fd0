"""What guesses the tokens that follow, and how often it was right."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.runtime.backends.base import Carrier

if TYPE_CHECKING:
    from larql.runtime.session import Session

__all__ = ["Drafter", "Speculation", "Tally", "likeliest"]

_WARM, _TIMED = 2, 6  # steps


def likeliest(row: npt.NDArray[np.float32]) -> int | None:
    """Return the token with the largest logit, or None where one is not a number.

    A draft that has come to that guesses nothing; it is no matter of the target's.
    """
    return None if np.isnan(row).any() else int(np.argmax(row))


class Drafter(ABC):
    """Guesses tokens. Whatever it guesses, no answer depends on it.

    Attributes
    ----------
    name : str
        As on the command line.
    """

    name: str

    @abstractmethod
    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return at most ``count`` tokens that may follow a stream.

        Parameters
        ----------
        tokens : sequence of int
            The whole stream, the last of which the target has not run yet. It may be any stream;
            usually it continues the one before.
        count : int
            At least 1.
        """

    def saw(self, start: int, carrier: Carrier) -> None:
        """Take what the target's last layer left at positions ``start, start + 1, …``.

        Told of every position of the stream before tokens that follow it are asked for; what was
        said of later positions before does not hold any more.
        """
        return


@dataclass
class Tally:
    """What speculation did.

    Attributes
    ----------
    proposed, accepted : list of int
        For each block that was verified, how many tokens were drafted and how many agreed. What
        stands behind an agreed end of text does not count as drafted.
    made : int
        Tokens that the blocks gave.
    draft_seconds, verify_seconds, repair_seconds : float
        Time spent drafting, in the target's blocks, and in running accepted tokens again where a
        state cannot forget the others.
    """

    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    made: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    repair_seconds: float = 0.0

    def add(self, proposed: int, accepted: int, seconds: float, ended: bool = False) -> None:
        """Count one block; `ended` where the last token that agreed ended the text."""
        self.proposed.append(accepted if ended else proposed)
        self.accepted.append(accepted)
        self.made += accepted if ended else accepted + 1
        self.verify_seconds += seconds

    @property
    def judged(self) -> int:
        """Drafted tokens whose turn came: one behind a rejected one was never judged."""
        return sum(min(a + 1, p) for p, a in zip(self.proposed, self.accepted, strict=True))

    @property
    def acceptance(self) -> float | None:
        """Accepted tokens to judged ones; None where none was."""
        return sum(self.accepted) / self.judged if self.judged else None

    @property
    def histogram(self) -> dict[int, int]:
        """How many blocks accepted 0, 1, 2, … tokens."""
        return {n: self.accepted.count(n) for n in range(max(self.accepted, default=0) + 1)}

    @property
    def seconds(self) -> float:
        """Time of everything together."""
        return self.draft_seconds + self.verify_seconds + self.repair_seconds


@dataclass
class Speculation:
    """A drafter, how many tokens it may draft for a block, and what came of it.

    Attributes
    ----------
    drafter : Drafter
    most : int
        At least 1.
    tally : Tally
    single_seconds : float or None
        What a step of one position took, timed before; None where it was not.
    """

    drafter: Drafter
    most: int
    tally: Tally = field(default_factory=Tally)
    single_seconds: float | None = None

    def __post_init__(self) -> None:
        """Check the number."""
        if self.most < 1:
            raise UsageError(f"--draft-tokens {self.most}: expected at least 1")

    @property
    def speedup(self) -> float | None:
        """Time of as many single steps as tokens were made, to the time that it took."""
        if self.single_seconds is None or not self.tally.seconds:
            return None
        return self.tally.made * self.single_seconds / self.tally.seconds

    def begin(self, session: Session, given: Sequence[int], carrier: Carrier, count: int) -> None:
        """Take what a prompt has left, and time a few single steps behind it.

        Parameters
        ----------
        session : Session
            Holds the prompt, and is left as it is.
        given : sequence of int
            The prompt.
        carrier : float32 ``[n, hidden]``
            After the last layer, of the last n positions.
        count : int
            Tokens that are to be generated, for which there is room.
        """
        self.drafter.saw(session.position - len(carrier), carrier)
        if self.single_seconds is None:
            self.single_seconds = _single_step(session, given[-1], count - 1)

    def report(self) -> dict[str, object]:
        """Return all of it for a JSON document."""
        tally = self.tally
        blocks = len(tally.accepted)
        return {
            "drafter": self.drafter.name,
            "draft_tokens": self.most,
            "blocks": blocks,
            "drafted": sum(tally.proposed),
            "judged": tally.judged,
            "accepted": sum(tally.accepted),
            "acceptance": tally.acceptance,
            "mean_accepted": sum(tally.accepted) / blocks if blocks else None,
            "histogram": tally.histogram,
            "seconds": {
                "draft": tally.draft_seconds,
                "verify": tally.verify_seconds,
                "repair": tally.repair_seconds,
                "single_step": self.single_seconds,
            },
            "speedup": self.speedup,
        }


def _single_step(session: Session, token: int, room: int) -> float | None:
    """Return what a step of one position takes, and leave the session where it was."""
    count = min(room, _WARM + _TIMED)
    if count <= _WARM:
        return None
    mark = session.checkpoint(count)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        session.step([token])
        times.append(time.perf_counter() - began)
    session.rewind(mark)
    return statistics.median(times[_WARM:])
