"""What is said of an operation: whether it has a route, its authority, and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from larql.errors import RefusalKind
from larql.format.moe.authority import Achievable, Authority
from larql.format.moe.states import (
    Absent,
    Damaged,
    Executable,
    Mismatch,
    State,
    Unsupported,
    is_defect,
    refusal_kind,
    repair,
    state_name,
)

__all__ = ["Cause", "Choices", "Diagnosis", "Operation", "diagnose"]


class Cause(Enum):
    """Why an operation is refused; no two read alike."""

    UNUSABLE_REGION = "unusable region"
    INVALID_SELECTION = "invalid selection"
    MISSING_INPUT = "missing input"
    MISSING_CONTRACT = "missing contract"
    NO_ROUTE = "no route"


@dataclass(frozen=True)
class Diagnosis:
    """One thing that keeps an operation from running.

    Attributes
    ----------
    cause : Cause
    where : str
        Operand, bank or file.
    state : str
        What it is, in the words of the states; empty where no operand is meant.
    detail : str
        What was found and expected, and where.
    kind : RefusalKind
        Who can act on it.
    repair : str
        What would help.
    defect : bool
        Whether it should not be so; what was declared to be left out, should.
    """

    cause: Cause
    where: str
    state: str
    detail: str
    kind: RefusalKind
    repair: str
    defect: bool = True

    def line(self) -> str:
        """Return it as one line."""
        state = f"{self.state}: " if self.state else ""
        advice = f"; {self.repair}" if self.repair else ""
        return f"{self.cause.value}: {self.where}: {state}{self.detail}{advice}"


@dataclass(frozen=True)
class Choices:
    """A requirement that several alternatives meet, or that one does while others failed.

    Attributes
    ----------
    subject : str
    usable : tuple of str
        In declaration order, of which the first is bound unless a profile selects.
    failed : tuple of (str, str)
        Alternatives that do not serve, and why.
    """

    subject: str
    usable: tuple[str, ...]
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Operation:
    """One operation over one component.

    Attributes
    ----------
    name : str
        ``walk``, ``local_decode`` or ``reconstruct_canonical``.
    component : str or None
        None: of the whole document.
    scope : str
        ``profile``, or ``document`` where the active profile has no part in it.
    authority : Authority or None
        None: there is no route, or the selection contradicts itself.
    achievable : Achievable or None
        Best and worst over all choices; settled where there are none.
    groups : tuple of Choices
        Independent of each other, never multiplied out.
    diagnoses : tuple of Diagnosis
        Empty if and only if the operation has a route as it was asked for.
    asked, covered : tuple of str
        Banks asked for, and those that a result covers; beside authority, which they never lower.
    outside : tuple of (str, str)
        Banks that were not asked for, and their state.
    notes : tuple of str
        What degrades a result without changing it.
    """

    name: str
    component: str | None
    scope: str
    authority: Authority | None
    achievable: Achievable | None
    groups: tuple[Choices, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    asked: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()
    outside: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def admitted(self) -> bool:
        """Whether it has a route."""
        return self.authority is not None

    @property
    def defects(self) -> Sequence[Diagnosis]:
        """The diagnoses that are not as the container declares them."""
        return [diagnosis for diagnosis in self.diagnoses if diagnosis.defect]


def diagnose(where: str, state: State) -> Diagnosis:
    """Return why an operand in some state keeps an operation from running.

    Parameters
    ----------
    where : str
        The operand.
    state : State
        Any but executable.

    Raises
    ------
    ValueError
        If nothing is wrong with it.
    """
    kind = refusal_kind(state)
    if kind is None:
        raise ValueError(f"{where} is {state_name(state)}")
    match state:
        case Absent(detail=detail):
            cause = Cause.MISSING_INPUT
        case Mismatch(detail) | Unsupported(detail) | Damaged(detail):
            cause = Cause.UNUSABLE_REGION
        case Executable():
            raise ValueError(f"{where} is {state_name(state)}")
    return Diagnosis(cause, where, state_name(state), detail, kind, repair(state), is_defect(state))
