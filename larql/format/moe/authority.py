"""Authority: how much the result of an operation says about the source, derived and never stored.

Each region has a fidelity, a fact about its bytes. The authority of an operation is the weakest
fidelity of the regions that it consumes, capped by how complete they are and by what was declared
to be left out. Names, paths, profiles, the order of regions and the maturity of kernels are no
inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

__all__ = [
    "ABSENT",
    "PARTIAL",
    "WHOLE",
    "Achievable",
    "Authority",
    "Level",
    "achievable",
    "fold",
    "level_of",
]


class Level(IntEnum):
    """The five levels; a greater number is weaker."""

    SOURCE_EXACT = 0
    SOURCE_EQUIVALENT = 1
    NUMERICALLY_APPROXIMATE = 2
    STRUCTURALLY_APPROXIMATE = 3
    ANALYSIS_ONLY = 4

    @property
    def text(self) -> str:
        """As an index spells it."""
        return self.name.lower().replace("_", "-")


WHOLE = Level.SOURCE_EXACT
"""Cap of an operation to which nothing is missing: none."""
PARTIAL = Level.STRUCTURALLY_APPROXIMATE
"""Cap of an operation that runs without a part of what it is defined over."""
ABSENT = Level.ANALYSIS_ONLY
"""Cap of an operation that has nothing of what it is defined over."""

Cap = Literal["none", "fidelity", "completeness", "omission", "nothing selected"]
_LEVELS = {level.text: level for level in Level}


def level_of(fidelity: str) -> Level:
    """Return the level of a fidelity as an index spells it.

    Raises
    ------
    KeyError
        If it is none of the five; reading an index has refused that.
    """
    return _LEVELS[fidelity]


@dataclass(frozen=True)
class Authority:
    """What was derived, and why it is no higher.

    Attributes
    ----------
    level : str
        As an index spells it.
    cap : {"none", "fidelity", "completeness", "omission", "nothing selected"}
        What bound it; of several that would have, the first of these. The strongest level is bound
        by nothing.
    regions : tuple of str
        Where fidelity bound it, the regions that are as weak, by name.
    """

    level: str
    cap: Cap
    regions: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        """Return it as JSON."""
        return {"level": self.level, "cap": self.cap, "regions": list(self.regions)}


def fold(
    regions: Iterable[tuple[str, str]],
    *,
    completeness: Level = WHOLE,
    omission: Level = WHOLE,
) -> Authority:
    """Derive the authority of an operation.

    Parameters
    ----------
    regions : iterable of (name, fidelity)
        What it consumes. A region may stand more than once.
    completeness, omission : Level
        Strongest level that what is missing, and what was declared to be left out, allow.

    Returns
    -------
    Authority
        The weakest of all; replacing a region by a weaker one, or lowering a cap, never raises it.
    """
    found = [(level_of(fidelity), name) for name, fidelity in regions]
    if not found:
        return Authority(Level.ANALYSIS_ONLY.text, "nothing selected")
    weakest = max(level for level, _ in found)
    bound = max(weakest, completeness, omission)
    if bound == Level.SOURCE_EXACT:
        return Authority(bound.text, "none")
    if bound == weakest:
        names = sorted({name for level, name in found if level == weakest})
        return Authority(bound.text, "fidelity", tuple(names))
    return Authority(bound.text, "completeness" if bound == completeness else "omission")


@dataclass(frozen=True)
class Achievable:
    """What an operation can come to before its routes are bound.

    Attributes
    ----------
    best, worst : str
        Levels, as an index spells them.
    """

    best: str
    worst: str

    @property
    def settled(self) -> bool:
        """Whether binding can no longer change it."""
        return self.best == self.worst


def achievable(routes: Sequence[Authority]) -> Achievable | None:
    """Return best and worst of the routes of an operation, None where there is no route."""
    levels = sorted(level_of(route.level) for route in routes)
    return Achievable(levels[0].text, levels[-1].text) if levels else None
