"""Events: what happened in an observed run, in the order of positions and of execution.

An event belongs to one position. Of a position come first its writes in execution order, each
followed by what was seen at its site (interventions, heads, pattern, routing, readouts), and then
the structural event that closes the position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "CarrierWrite",
    "End",
    "Event",
    "EventSink",
    "HeadNorms",
    "InterventionFired",
    "Pattern",
    "PositionDone",
    "Readout",
    "Restored",
    "RoutingTrace",
    "Truncated",
]

# A number that JSON can hold; None stands for one that is not finite.
Number = float | None


@dataclass(frozen=True)
class CarrierWrite:
    """One write to the carrier.

    Attributes
    ----------
    position : int
    write : int
        Number of the site in the header's list.
    carrier, delta : float or None
        Norms, to seven significant digits.
    projection : tuple of float or None
        On the basis of the run, to seven significant digits.
    """

    position: int
    write: int
    carrier: Number
    delta: Number
    projection: tuple[Number, ...] = ()


@dataclass(frozen=True)
class InterventionFired:
    """A declared intervention changed the carrier at a write; the write's numbers are after it."""

    position: int
    write: int
    intervention: int


@dataclass(frozen=True)
class HeadNorms:
    """Norms of each attention head's mixed values, before the output projection."""

    position: int
    write: int
    norms: tuple[Number, ...]


@dataclass(frozen=True)
class Pattern:
    """Softmax weights of each attention head.

    Attributes
    ----------
    first : int
        The position that the first weight of each head belongs to.
    weights : tuple of tuple of float or None
        ``[heads][positions]``, to seven significant digits.
    """

    position: int
    write: int
    first: int
    weights: tuple[tuple[Number, ...], ...]


@dataclass(frozen=True)
class RoutingTrace:
    """How a routed feed-forward block chose its experts.

    Attributes
    ----------
    scores : tuple of float or None
        One for each expert.
    chosen : tuple of int
        In selection order.
    weights : tuple of float or None
        Of the chosen experts.
    margin : float or None
        Least score that was chosen less the largest that was not; None where all were chosen.
    """

    position: int
    write: int
    scores: tuple[Number, ...]
    chosen: tuple[int, ...]
    weights: tuple[Number, ...]
    margin: Number


@dataclass(frozen=True)
class Readout:
    """What a reader made of the carrier after a write; ``values`` are the reader's own.

    Attributes
    ----------
    reader : str
    values : mapping
        JSON values by name.
    """

    position: int
    write: int
    reader: str
    values: Mapping[str, object]


@dataclass(frozen=True)
class PositionDone:
    """A position is complete; ``token`` is None where hidden states were given."""

    position: int
    token: int | None


@dataclass(frozen=True)
class Restored:
    """The session went on from a snapshot of ``position`` positions, with this hash."""

    position: int
    state_sha256: str


@dataclass(frozen=True)
class Truncated:
    """Positions from ``position`` on were forgotten."""

    position: int


@dataclass(frozen=True)
class End:
    """The run is over.

    Attributes
    ----------
    position : int
        How many positions there were.
    generated : tuple of int
        Generated tokens; the last of them was not run.
    top : tuple of (int, float, float)
        The likeliest tokens after the last position: token, logit, log-probability.
    texts : mapping
        How tokens that the record names are displayed, by token; empty without a tokenizer.
    """

    position: int
    generated: tuple[int, ...]
    top: tuple[tuple[int, float, float], ...]
    texts: Mapping[str, str] = field(default_factory=dict)


Event = (
    CarrierWrite
    | InterventionFired
    | HeadNorms
    | Pattern
    | RoutingTrace
    | Readout
    | PositionDone
    | Restored
    | Truncated
    | End
)


class EventSink(Protocol):
    """Takes events in their order."""

    def take(self, event: Event) -> None:
        """Take the next event."""

    def flush(self) -> None:
        """Take note that a step is complete: what was taken so far will stay."""
