"""Every error a user can meet, drawn as a tree.

::

    LarqlError                    exit 2: refused
    ├── UsageError                the arguments contradict each other or the input
    ├── SourceError               a checkpoint file cannot be read as what it claims to be
    ├── CompileError              a checkpoint asks for a computation this build cannot judge
    ├── EncodingError             bytes and an encoding do not fit each other
    ├── ContainerError            a container is malformed
    │   └── GenerationError       a schema version this build or this loader does not read
    ├── TokenizerError            text and tokens cannot be converted
    ├── FetchError                a hub or a package index did not give what was asked
    ├── RecordError               a file that is not a run record, or not one of this version
    ├── DumpError                 a file that is not a dump, or not the one its sidecar describes
    ├── OutputError               an output path cannot be written or must not be replaced
    ├── PlatformError             the machine or installation lacks what a command needs
    ├── SessionInvalid            a stream of tokens that a failed step spoiled; wraps its cause
    ├── Refusal                   an operation will not run; carries a RefusalKind
    │   ├── ResidencyRefusal      an operand is not here; fetching it would help
    │   ├── UnsupportedRefusal    no kernel or codec in this build; another executor would help
    │   └── BindingDefect         the artifact contradicts itself; nothing but a new artifact helps
    └── CheckFailed               exit 1: a check ran and found something

Each message is one line: what, in which file or tensor, found and expected, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "BindingDefect",
    "CheckFailed",
    "CompileError",
    "ContainerError",
    "Coordinates",
    "DumpError",
    "EncodingError",
    "FetchError",
    "GenerationError",
    "LarqlError",
    "OutputError",
    "PlatformError",
    "RecordError",
    "Refusal",
    "RefusalKind",
    "ResidencyRefusal",
    "SessionInvalid",
    "SourceError",
    "TokenizerError",
    "UnsupportedRefusal",
    "UsageError",
    "refusal_of",
]


class LarqlError(Exception):
    """Base of all errors that are shown to a user as one line.

    Attributes
    ----------
    exit_code : int
        Process exit status when the error ends a command: 2 refused, 1 a check found something.
    """

    exit_code: int = 2


class UsageError(LarqlError):
    """Arguments that contradict each other, or that the given input cannot satisfy."""


class SourceError(LarqlError):
    """A checkpoint file that cannot be read as what it claims to be."""


class CompileError(LarqlError):
    """A checkpoint whose computation this build cannot judge, by key or by tensor."""


class EncodingError(LarqlError):
    """Bytes and an encoding that do not fit each other."""


class ContainerError(LarqlError):
    """A container that contradicts its own description."""


class GenerationError(ContainerError):
    """A schema version that this build, or this generation's loader, does not read."""


class TokenizerError(LarqlError):
    """Text that cannot become tokens, or a tokenizer that cannot be rebuilt."""


class FetchError(LarqlError):
    """A hub or package index that did not give what was asked of it."""


class RecordError(LarqlError):
    """A file that cannot be read as a run record."""


class DumpError(LarqlError):
    """A file that cannot be read as a dump, or that is not what its sidecar says."""


class OutputError(LarqlError):
    """An output path that cannot be written, or that must not be replaced."""


class PlatformError(LarqlError):
    """A machine or installation that lacks what a command needs."""


class SessionInvalid(LarqlError):
    """A session whose state could not be put back after a failed step, which is its cause.

    It is usable again when it has been restored to a snapshot, or begun anew.
    """


class RefusalKind(Enum):
    """Who can act on a refusal: operator, engineer, or only the maker of the artifact."""

    RESIDENCY = "residency"
    UNSUPPORTED = "unsupported"
    BINDING_DEFECT = "binding_defect"

    @property
    def could_succeed(self) -> bool:
        """Whether the same artifact could run, elsewhere or later; else it is at fault itself."""
        match self:
            case RefusalKind.RESIDENCY | RefusalKind.UNSUPPORTED:
                return True
            case RefusalKind.BINDING_DEFECT:
                return False


@dataclass(frozen=True)
class Coordinates:
    """Which region of a bank of experts is meant.

    Attributes
    ----------
    layer, bank, entry : int
    role : str
        What the region is to the expert, ``down`` for example.
    segment : int or None
        Of the bank's files; None: the bank is not cut into segments.
    component : str or None
        Whose layer it is; None: that of the model proper.
    """

    layer: int
    bank: int
    entry: int
    role: str
    segment: int | None
    component: str | None = None


class Refusal(LarqlError):
    """An operation that will not run; ``kind`` says who can change that.

    Parameters
    ----------
    message : str
    at : Coordinates or None
        The region of a bank of experts that was asked for, where one was.
    """

    kind: RefusalKind

    def __init__(self, message: str, at: Coordinates | None = None) -> None:
        super().__init__(message)
        self.at = at


class ResidencyRefusal(Refusal):
    """An operand that exists elsewhere but is not resident here."""

    kind = RefusalKind.RESIDENCY


class UnsupportedRefusal(Refusal):
    """An operation or encoding for which this build has no kernel or codec."""

    kind = RefusalKind.UNSUPPORTED


class BindingDefect(Refusal):
    """An operand whose declaration and bytes contradict each other."""

    kind = RefusalKind.BINDING_DEFECT


class CheckFailed(LarqlError):
    """A check that ran to its end and found a difference or defect."""

    exit_code = 1


def refusal_of(error: BaseException | None) -> Refusal | None:
    """Return the refusal that an error is or was caused by, None if there is none.

    An error that wraps a refusal keeps its kind; a failure that no refusal caused has none, and is
    never taken for one.
    """
    while error is not None:
        if isinstance(error, Refusal):
            return error
        error = error.__cause__
    return None
