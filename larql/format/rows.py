"""Which rows of a checkpoint's tensor make an operand.

Checkpoints keep several matrices in one tensor: queries, keys and values one after the other, or
query and gate head by head. An operand is then a selection of its rows. A row is what one index
along all axes but the last names; of a tensor with one axis, an element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["RowSelection", "row_count"]


@dataclass(frozen=True)
class RowSelection:
    """Runs of neighbouring rows at equal distances.

    Attributes
    ----------
    first : int
        First row of the first run.
    length : int
        Rows of a run.
    stride : int
        Rows from the beginning of a run to that of the next.
    runs : int
        Number of runs.
    """

    first: int
    length: int
    stride: int
    runs: int

    @classmethod
    def span(cls, first: int, length: int) -> RowSelection:
        """Return the selection of ``length`` rows from ``first`` on."""
        return cls(first, length, length, 1)

    @property
    def count(self) -> int:
        """Number of selected rows."""
        return self.length * self.runs

    @property
    def end(self) -> int:
        """One more than the last selected row."""
        return self.first + (self.runs - 1) * self.stride + self.length

    def fits(self, rows: int) -> bool:
        """Return whether it selects rows, no row twice, and none beyond ``rows``."""
        return (
            self.first >= 0
            and self.length >= 1
            and self.runs >= 1
            and (self.stride >= self.length or self.runs == 1)
            and self.end <= rows
        )

    def spans(self) -> list[tuple[int, int]]:
        """Return first row and number of rows of each run."""
        return [(self.first + i * self.stride, self.length) for i in range(self.runs)]


def row_count(shape: tuple[int, ...]) -> int:
    """Return how many rows a tensor has."""
    return math.prod(shape[:-1]) if len(shape) > 1 else math.prod(shape)
