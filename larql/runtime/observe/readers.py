"""The protocol of readers: they are given carriers at the sites they arm, and answer with values.

A reader never sees the traversal, the state or the record. It gets rows of carriers, many at once,
and gives one answer for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from larql.runtime.observe.sites import WriteSite

__all__ = ["ArmedRows", "Reader"]


@dataclass(frozen=True, eq=False)
class ArmedRows:
    """Carriers at armed sites, position by position, in a position by site.

    Attributes
    ----------
    positions : sequence of int
        Of each row.
    sites : sequence of WriteSite
        Of each row.
    carriers : float32 ``[n, hidden]``
        The carrier after the site's write.
    """

    positions: Sequence[int]
    sites: Sequence[WriteSite]
    carriers: npt.NDArray[np.float32]


class Reader(Protocol):
    """Makes readouts of carriers.

    Attributes
    ----------
    name : str
        Names its readouts in the record.
    """

    name: str

    def declaration(self) -> Mapping[str, object]:
        """Return everything its readouts depend on, as JSON; it stands in the record's header."""

    def arms(self, site: WriteSite) -> bool:
        """Return whether the reader wants the carrier at a site."""

    def read(self, rows: ArmedRows) -> Sequence[Mapping[str, object] | None]:
        """Return the readout of each row as JSON, None where there is none.

        It is called with whole positions, as many as :data:`MOST_ROWS` allows, at least one. What
        it cannot read it notes for its receipt; it does not raise.
        """

    def receipt(self) -> Mapping[str, object]:
        """Return what it says of the whole run, as JSON."""
