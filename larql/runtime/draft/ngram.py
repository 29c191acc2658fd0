"""A drafter without a model: what followed the last time that the stream went like this."""

from __future__ import annotations

from collections.abc import Sequence

from larql.runtime.draft.drafter import Drafter

__all__ = ["NgramDrafter"]


class NgramDrafter(Drafter):
    """Looks up the latest earlier place with the same last tokens, and copies what follows it.

    The longest match counts. Where the copy reaches the end of the stream it goes on with what it
    has drafted itself, so a stream with a period is continued in it.

    Parameters
    ----------
    longest, shortest : int
        Lengths of a match.
    """

    name = "ngram"

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._seen: list[int] = []
        # A match to where it ends; of several places the latest.
        self._ends: dict[tuple[int, ...], int] = {}

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return what followed the longest match; nothing without one."""
        if list(tokens[: len(self._seen)]) != self._seen:
            self._seen, self._ends = [], {}
        for token in tokens[len(self._seen) :]:
            # A place is entered once a token follows it: the end of the stream matches itself.
            for length in self._lengths:
                if length <= len(self._seen):
                    self._ends[tuple(self._seen[-length:])] = len(self._seen)
            self._seen.append(token)
        for length in self._lengths:
            end = self._ends.get(tuple(self._seen[-length:])) if length <= len(tokens) else None
            if end is not None:
                period = len(self._seen) - end
                return [self._seen[end + i % period] for i in range(count)]
        return []
