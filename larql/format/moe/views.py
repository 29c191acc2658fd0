"""Views: how stored bytes fill a role. They change no value and never touch authority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from larql.errors import BindingDefect
from larql.format.rows import RowSelection

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["DIRECT", "ColumnSlice", "Direct", "RowSlice", "Transposed", "View", "apply", "viewed"]


@dataclass(frozen=True)
class Direct:
    """The stored matrix is the operand."""

    @property
    def text(self) -> str:
        """For a message."""
        return "direct"


@dataclass(frozen=True)
class Transposed:
    """Stored columns are the operand's rows. Only the reference executor reads them so."""

    @property
    def text(self) -> str:
        """For a message."""
        return "transposed"


@dataclass(frozen=True)
class RowSlice:
    """Some stored rows are the operand, all their columns."""

    rows: RowSelection

    @property
    def text(self) -> str:
        """For a message."""
        rows = self.rows
        if rows.runs == 1:
            return f"rows {rows.first}:{rows.end}"
        return f"{rows.runs} runs of {rows.length} rows from {rows.first}, {rows.stride} apart"


@dataclass(frozen=True)
class ColumnSlice:
    """Neighbouring stored columns are the operand, which never sees the others.

    Blocks pad the contracted axis: 704 columns may be stored as 768.
    """

    first: int
    count: int

    @property
    def text(self) -> str:
        """For a message."""
        return f"columns {self.first}:{self.first + self.count}"


View = Direct | Transposed | RowSlice | ColumnSlice
DIRECT = Direct()


def viewed(view: View, stored: tuple[int, int]) -> tuple[int, int]:
    """Return the shape of a stored matrix behind a view.

    Parameters
    ----------
    view : View
    stored : (int, int)
        Stored rows and columns.

    Raises
    ------
    BindingDefect
        If the view reaches beyond the matrix.
    """
    rows, columns = stored
    match view:
        case Direct():
            return stored
        case Transposed():
            return columns, rows
        case RowSlice(selection):
            if not selection.fits(rows):
                raise BindingDefect(f"{view.text} of {list(stored)} are not in it")
            return selection.count, columns
        case ColumnSlice(first, count):
            if first < 0 or count < 1 or first + count > columns:
                raise BindingDefect(f"{view.text} of {list(stored)} are not in it")
            return rows, count


def apply(view: View, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return the elements behind a view.

    Parameters
    ----------
    view : View
    values : ndarray, shape ``[rows, columns]``
        Decoded elements, or anything that has one item for each.

    Returns
    -------
    ndarray
        Of the shape that :func:`viewed` gives; a view of ``values`` where NumPy has one.

    Raises
    ------
    BindingDefect
        As :func:`viewed`.
    """
    rows, columns = values.shape
    viewed(view, (rows, columns))
    match view:
        case Direct():
            return values
        case Transposed():
            return values.T
        case RowSlice(selection):
            if selection.runs == 1:
                return values[selection.first : selection.end]
            taken = [
                row for first, count in selection.spans() for row in range(first, first + count)
            ]
            return values[taken]
        case ColumnSlice(first, count):
            return values[:, first : first + count]
