"""Are the bytes that were selected enough for a programme? Asked over all roles at once.

With ``U`` the segments that are required and ``C_r`` those in which role ``r`` is usable:

1. some ``C_r`` is empty: that role fails by itself, and how the others fit is moot;
2. the ``C_r`` differ: they are incompatible, whether or not they share something;
3. all are equal, but not ``U``: consistently partial;
4. all are ``U``: executable.

Compatibility is the intersection over all roles and never pairwise: {0, 1}, {1, 2} and {2, 0} agree
two by two and share nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from larql.format.moe.states import Absent, Executable, State, Why, state_name

__all__ = ["Choice", "Gap", "Segment", "Tier", "Traversal", "choose", "fold_runs", "traverse"]


class Tier(Enum):
    """How far the selected bytes go, weakest first."""

    ROLE_FAILURE = "role failure"
    INCOMPATIBLE = "incompatible"
    PARTIAL = "consistently partial"
    EXECUTABLE = "executable"


@dataclass(frozen=True)
class Segment:
    """Entries that are stored together; of a bank that is not cut, all of them.

    Attributes
    ----------
    first, end : int
        Half-open range of entries.
    index : int or None
        Place among the bank's segments; None: the bank is not cut, which is not segment 0.
    """

    first: int
    end: int
    index: int | None = None

    @property
    def text(self) -> str:
        """For a message."""
        name = "unsegmented" if self.index is None else f"segment {self.index}"
        return f"{name} [{self.first}:{self.end}]"


@dataclass(frozen=True)
class Gap:
    """Where a role is not usable.

    Attributes
    ----------
    role : str
    missing : tuple of (Segment, State)
        All of them, in the order of the registry.
    """

    role: str
    missing: tuple[tuple[Segment, State], ...]

    @property
    def text(self) -> str:
        """For a message; runs of segments in one state are folded."""
        parts = [f"{where}: {state_name(state)}" for where, state in fold_runs(self.missing)]
        return f"{self.role} ({'; '.join(parts)})"


@dataclass(frozen=True)
class Traversal:
    """The answer, with its evidence.

    Attributes
    ----------
    tier : Tier
    common : tuple of Segment
        Where all roles are usable.
    gaps : tuple of Gap
        Of role failures those of the failing roles; else of every role that lacks something.
    regions : tuple of (str, Executable)
        Role and state of each usable region in ``common``.
    """

    tier: Tier
    common: tuple[Segment, ...]
    gaps: tuple[Gap, ...]
    regions: tuple[tuple[str, Executable], ...]

    @property
    def text(self) -> str:
        """The evidence as one sentence."""
        if self.tier is Tier.EXECUTABLE:
            return "all roles are usable"
        gaps = ", ".join(gap.text for gap in self.gaps)
        if self.tier is Tier.ROLE_FAILURE:
            return f"a role is usable nowhere: {gaps}"
        if self.tier is Tier.INCOMPATIBLE:
            shared = "no common coverage" if not self.common else "unequal coverage"
            return f"{shared} among the roles: {gaps}"
        held = sum(segment.end - segment.first for segment in self.common)
        return f"consistently partial, {held} entries are whole: {gaps}"


def traverse(
    population: Sequence[Segment], roles: Mapping[str, Mapping[Segment, State]]
) -> Traversal:
    """Judge whether roles cover a population together.

    Parameters
    ----------
    population : sequence of Segment
        What is required, in the order of the registry.
    roles : mapping
        Role to the state of its region in each segment. A segment without a state is absent;
        segments outside the population are not asked about.

    Returns
    -------
    Traversal
    """
    states = {
        role: [(s, given.get(s, Absent(Why.NOWHERE, f"{role} of {s.text}"))) for s in population]
        for role, given in roles.items()
    }
    usable = {
        role: frozenset(s for s, state in found if isinstance(state, Executable))
        for role, found in states.items()
    }
    gaps = [
        Gap(role, tuple((s, state) for s, state in found if s not in usable[role]))
        for role, found in states.items()
    ]
    shared = frozenset(population).intersection(*usable.values())
    common = tuple(s for s in population if s in shared)
    regions = tuple(
        (role, state)
        for role, found in states.items()
        for s, state in found
        if s in shared and isinstance(state, Executable)
    )
    if any(not covered for covered in usable.values()):
        failing = tuple(gap for gap in gaps if not usable[gap.role])
        return Traversal(Tier.ROLE_FAILURE, common, failing, regions)
    lacking = tuple(gap for gap in gaps if gap.missing)
    if len(set(usable.values())) > 1:
        return Traversal(Tier.INCOMPATIBLE, common, lacking, regions)
    tier = Tier.PARTIAL if lacking else Tier.EXECUTABLE
    return Traversal(tier, common, lacking, regions)


@dataclass(frozen=True)
class Choice:
    """What alternatives of one requirement come to.

    Attributes
    ----------
    subject : str
        What is required.
    usable : tuple of (str, Traversal)
        Alternatives that serve, in declaration order. One is fixed, several are a choice group.
    failed : tuple of (str, Traversal)
        The others, kept as evidence.
    """

    subject: str
    usable: tuple[tuple[str, Traversal], ...]
    failed: tuple[tuple[str, Traversal], ...]

    @property
    def kind(self) -> str:
        """``unusable``, ``fixed`` or ``choice``."""
        return ("unusable", "fixed")[len(self.usable)] if len(self.usable) < 2 else "choice"


def choose(
    subject: str, alternatives: Iterable[tuple[str, Traversal]], *, partial: bool = False
) -> Choice:
    """Sort the alternatives of a requirement into those that serve and those that do not.

    Independent requirements stay as many choices: thirty layers of two alternatives are thirty
    groups.

    Parameters
    ----------
    subject : str
    alternatives : iterable of (str, Traversal)
        In declaration order.
    partial : bool
        Whether a consistently partial one serves.
    """
    serves = {Tier.EXECUTABLE, Tier.PARTIAL} if partial else {Tier.EXECUTABLE}
    found = list(alternatives)
    return Choice(
        subject,
        tuple(item for item in found if item[1].tier in serves),
        tuple(item for item in found if item[1].tier not in serves),
    )


def fold_runs(items: Iterable[tuple[Segment, State]]) -> list[tuple[str, State]]:
    """Join neighbouring segments in one state into one text, for display only."""
    runs: list[tuple[list[Segment], State]] = []
    for segment, state in items:
        if runs and runs[-1][1] == state and runs[-1][0][-1].end == segment.first:
            runs[-1][0].append(segment)
        else:
            runs.append(([segment], state))
    return [(_run_text(segments), state) for segments, state in runs]


def _run_text(segments: list[Segment]) -> str:
    first, last = segments[0], segments[-1]
    if first.index is None or first.index == last.index:
        return Segment(first.first, last.end, first.index).text
    return f"segments {first.index} to {last.index} [{first.first}:{last.end}]"
