"""What keeps a checkpoint from being compiled: all of it, not only what was met first.

Whoever judges records a problem and goes on with a stand-in for what was refused, so that whatever
comes after is judged as well. Nothing that was made with a stand-in ever becomes a container.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from larql.errors import CompileError

__all__ = ["Problem", "Problems"]

_MOST = 10_000  # a count that is not to be believed may ask for any number of tensors


@dataclass(frozen=True)
class Problem:
    """One thing that keeps a checkpoint from being compiled.

    Attributes
    ----------
    kind : {"key", "tensor", "operation", "file"}
        What is at fault.
    name : str
        The key, the tensor, the operand, or the file.
    text : str
        One line: what, in which file, found and expected, and what to do.
    """

    kind: Literal["key", "tensor", "operation", "file"]
    name: str
    text: str


class Problems:
    """The problems of one checkpoint, in the order in which judging came upon them.

    Attributes
    ----------
    found : list of Problem
        No two of the same thing: what was said first of it stands.
    assumed : str or None
        The first key whose stand-in decides which tensors there should be; from then on no tensor
        is held against the configuration.
    """

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.assumed: str | None = None
        self._named: set[tuple[str, str]] = set()
        self._told = 0

    def add(self, problem: Problem) -> None:
        """Record a problem, unless there is one of the same thing.

        Raises
        ------
        CompileError
            If there are so many that going on would lead nowhere.
        """
        self._told += 1
        named = (problem.kind, problem.name)
        if named not in self._named and not (problem.kind == "tensor" and self.assumed):
            self._named.add(named)
            self.found.append(problem)
        if self._told >= _MOST:
            self.check()

    def refused(self, key: str) -> bool:
        """Return whether there is a problem of a key."""
        return ("key", key) in self._named

    def assume(self, key: str) -> None:
        """State that a stand-in of a key decides from now on which tensors there should be."""
        self.assumed = self.assumed or key

    def check(self) -> None:
        """Refuse if there is any problem.

        Raises
        ------
        CompileError
            With the first one, and how many more there are.
        """
        if not self.found:
            return
        more = len(self.found) - 1
        others = "1 more problem" if more == 1 else f"{more} more problems"
        end = f" (and {others}: see larql vindex3 plan)" if more else ""
        raise CompileError(f"{self.found[0].text}{end}")
