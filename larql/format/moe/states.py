"""What an operand is to an operation that asks for it. The states never collapse into each other.

A region that is nowhere, one that a profile leaves out and one that this build cannot read keep an
operation from running alike, but someone else can act on each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from larql.errors import RefusalKind
from larql.format.moe.views import DIRECT, View

__all__ = [
    "Absent",
    "Damaged",
    "Executable",
    "Mismatch",
    "State",
    "Unsupported",
    "Why",
    "is_defect",
    "refusal_kind",
    "repair",
    "state_name",
]


class Why(Enum):
    """Why an operand is absent."""

    NOWHERE = "nowhere"
    OUTSIDE = "outside the required population"
    OMITTED = "omitted by the active profile"


@dataclass(frozen=True)
class Absent:
    """It is not here.

    Attributes
    ----------
    why : Why
    detail : str
        What was looked for, and where.
    remote : bool
        Whether the container declares that it is to be had elsewhere.
    """

    why: Why
    detail: str
    remote: bool = False


@dataclass(frozen=True)
class Mismatch:
    """It is here and readable, but is not what its description or its contract says."""

    detail: str


@dataclass(frozen=True)
class Unsupported:
    """It is here, perhaps sound and newer than this build, which cannot read it.

    Attributes
    ----------
    codec : str
        Format and packing, or what else is unknown.
    """

    codec: str


@dataclass(frozen=True)
class Damaged:
    """Its file is here, but is not the one that the index vouches for."""

    detail: str


@dataclass(frozen=True)
class Executable:
    """The reference executor can use it; how mature kernels are is another question.

    Attributes
    ----------
    fidelity : str
        As the index spells it.
    view : View
    """

    fidelity: str
    view: View = DIRECT


State = Absent | Mismatch | Unsupported | Damaged | Executable


def state_name(state: State) -> str:
    """Return the name of a state, the reason of an absence included."""
    match state:
        case Absent(Why.NOWHERE, remote=True):
            return "absent: declared remote"
        case Absent(why):
            return f"absent: {why.value}"
        case Mismatch():
            return "contract mismatch"
        case Unsupported():
            return "present but unsupported"
        case Damaged():
            return "damaged"
        case Executable():
            return "reference-executable"


def refusal_kind(state: State) -> RefusalKind | None:
    """Return who can act on a state that keeps an operation from running, None if none needs to."""
    match state:
        case Absent(Why.OUTSIDE) | Executable():
            return None
        case Absent(Why.OMITTED) | Absent(remote=True):
            return RefusalKind.RESIDENCY
        case Absent() | Mismatch() | Damaged():
            return RefusalKind.BINDING_DEFECT
        case Unsupported():
            return RefusalKind.UNSUPPORTED


def is_defect(state: State) -> bool:
    """Return whether a state is something that should not be, rather than as it was declared."""
    match state:
        case Absent(Why.OUTSIDE | Why.OMITTED) | Absent(remote=True) | Executable():
            return False
        case Absent() | Mismatch() | Unsupported() | Damaged():
            return True


def repair(state: State) -> str:
    """Return what would help, empty where nothing needs to."""
    match state:
        case Absent(Why.OMITTED):
            return "choose a profile that keeps it"
        case Absent(Why.OUTSIDE) | Executable():
            return ""
        case Absent(remote=True):
            return "fetch it"
        case Absent():
            return "get the container again, or extract the checkpoint again"
        case Mismatch():
            return "extract the checkpoint again: its description is wrong"
        case Unsupported():
            return "use a newer larql, or extract with another encoding"
        case Damaged():
            return "get the container again; larql verify names every damaged file"
