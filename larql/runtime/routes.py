"""Routes: how an executor reaches the experts that a router has chosen.

Whatever lies behind it, a route is asked the same question and has one of three outcomes. An expert
is never skipped, substituted or given a weight of nothing: a refused expert is a refused step, or,
where that was asked for, a position without its routed part that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from larql.errors import BindingDefect, Refusal

__all__ = [
    "BoundExperts",
    "Dispatch",
    "Done",
    "ExpertRoute",
    "InProcess",
    "LeftOut",
    "LeftOutNotes",
    "NotApplicable",
    "Part",
    "Reached",
    "Refused",
    "ShardedExperts",
    "Sum",
    "Wanted",
    "Why",
    "reach",
    "told",
]

_TOLD = 8

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Wanted:
    """What a block asks of the experts of one bank.

    Attributes
    ----------
    inputs : float32 or float64 ``[T, hidden]``
        What experts read, in the backend's own numbers.
    experts : int64 ``[N]``
    positions : int64 ``[N]``
        The row of ``inputs`` that each of ``experts`` reads; ascending.
    held : bool
        Refuse experts whose outputs are not finite, instead of giving them.
    """

    inputs: Array
    experts: Integers
    positions: Integers
    held: bool = False


@dataclass(frozen=True, eq=False)
class Done:
    """Every expert that was asked for gave its output.

    Attributes
    ----------
    rows : float32 or float64 ``[M, hidden]``
        Outputs in any order, in memory that lives until the block is done.
    places : int64 ``[N]``
        The row of each expert that was asked for.
    """

    rows: Array
    places: Integers


@dataclass(frozen=True)
class NotApplicable:
    """Nothing was asked for, so nothing was needed."""


@dataclass(frozen=True)
class Refused:
    """Some experts will not run here; none did.

    Attributes
    ----------
    refusals : tuple of (int, Refusal)
        Place among the experts asked for, ascending, and why.
    """

    refusals: tuple[tuple[int, Refusal], ...]


Dispatch = Done | NotApplicable | Refused


class ExpertRoute(Protocol):
    """Reaches the experts of one bank."""

    def dispatch(self, wanted: Wanted) -> Dispatch:
        """Have experts compute.

        An output depends on expert and input alone, bit for bit: not on what else is asked for, and
        not on the route.
        """


class BoundExperts(ExpertRoute, Protocol):
    """The experts of one bank as far as they are bound in this process."""

    @property
    def resident(self) -> npt.NDArray[np.bool_]:
        """Which experts of the population are here, bool ``[experts]``."""


class InProcess:
    """Asks experts of this process across the boundary that any other route has.

    What goes in and what comes out is copied, as if it were sent. Its bits are those of asking
    directly; where they are not, no other route can be compared with anything.
    """

    def __init__(self, experts: ExpertRoute) -> None:
        self._experts = experts

    def dispatch(self, wanted: Wanted) -> Dispatch:
        """Ask with copies of what is asked, and return copies of the answer."""
        sent = Wanted(
            wanted.inputs.copy(), wanted.experts.copy(), wanted.positions.copy(), wanted.held
        )
        outcome = self._experts.dispatch(sent)
        if isinstance(outcome, Done):
            return Done(outcome.rows.copy(), outcome.places.copy())
        return outcome


@dataclass(frozen=True, eq=False)
class Part:
    """Some experts of a bank, and the route to them.

    Attributes
    ----------
    name : str
        For messages.
    route : ExpertRoute
    resident : bool ``[experts]``
        Which experts of the population it has.
    """

    name: str
    route: ExpertRoute
    resident: npt.NDArray[np.bool_]


class ShardedExperts:
    """The experts of a bank, each of which one of several parts has.

    Parameters
    ----------
    parts : sequence of Part
        The first answers for experts that none has.
    where : str
        The bank, for messages.

    Raises
    ------
    BindingDefect
        If two parts have an expert.
    """

    def __init__(self, parts: Sequence[Part], where: str) -> None:
        self._parts = tuple(parts)
        self._owners = np.zeros(len(parts[0].resident), np.int64)
        taken = np.zeros(len(self._owners), bool)
        for number, part in enumerate(parts):
            both = np.flatnonzero(part.resident & taken)
            if len(both):
                owner = self._parts[int(self._owners[both[0]])]
                raise BindingDefect(
                    f"{where}: expert {both[0]} is in {owner.name} and in {part.name}; give each "
                    f"expert once, for example with --shard"
                )
            self._owners[part.resident] = number
            taken |= part.resident

    def dispatch(self, wanted: Wanted) -> Dispatch:
        """Ask each part for what it has, and put the answers together."""
        experts = wanted.experts
        known = (experts >= 0) & (experts < len(self._owners))
        owners = np.where(known, self._owners[np.where(known, experts, 0)], 0)
        rows: Array | None = None
        refusals: list[tuple[int, Refusal]] = []
        for number, part in enumerate(self._parts):
            places = np.flatnonzero(owners == number)
            asked = Wanted(wanted.inputs, experts[places], wanted.positions[places], wanted.held)
            match part.route.dispatch(asked):
                case Refused(found):
                    refusals += [(int(places[n]), refusal) for n, refusal in found]
                case Done(made, at):
                    if rows is None:
                        rows = np.empty((len(experts), made.shape[1]), made.dtype)
                    rows[places] = made[at]
                case NotApplicable():
                    pass
        if refusals:
            return Refused(tuple(sorted(refusals, key=lambda item: item[0])))
        return NotApplicable() if rows is None else Done(rows, np.arange(len(experts)))


@dataclass(frozen=True)
class LeftOut:
    """A position that went on without the routed part of a layer.

    Attributes
    ----------
    position : int
    refusal : Refusal
        Why; its coordinates tell the layer.
    """

    position: int
    refusal: Refusal


def told(left_out: Sequence[LeftOut]) -> dict[str, object]:
    """Return what a result says of what it was made without: how much, and the first of it."""
    return {
        "left_out": len(left_out),
        "positions": len({note.position for note in left_out}),
        "first": [
            {
                "position": note.position,
                "kind": note.refusal.kind.value,
                **({} if note.refusal.at is None else asdict(note.refusal.at)),
                "message": str(note.refusal),
            }
            for note in left_out[:_TOLD]
        ],
    }


@dataclass
class LeftOutNotes:
    """What a best-effort step has left out so far.

    A step that is given none of these is strict.
    """

    found: list[LeftOut] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Reached:
    """What experts gave the positions of a block.

    Attributes
    ----------
    kept : int64 ``[K]``
        The positions that have all their experts, ascending.
    rows : float32 or float64 ``[M, hidden]``
    places : int64 ``[K, top]``
        The row of each expert's output, in the order of the selection.
    """

    kept: Integers
    rows: Array
    places: Integers

    @property
    def in_order(self) -> bool:
        """Whether the rows are those of the places, one after the other."""
        return np.array_equal(self.places.reshape(-1), np.arange(len(self.rows)))


class Sum(Protocol):
    """Adds what experts gave."""

    def __call__(self, reached: Reached) -> tuple[npt.NDArray[np.bool_], Why]:
        """Make the routed part of the positions that have all their experts.

        Returns
        -------
        bool ``[K]``
            For which of these positions it is not finite.
        callable
            Tells why of one of them, by its place, where every expert gave finite numbers.
        """


Why = Callable[[int], Refusal]


def reach(
    route: ExpertRoute,
    inputs: Array,
    chosen: Integers,
    broken: Sequence[tuple[int, Refusal]],
    add: Sum,
    start: int,
    notes: LeftOutNotes | None,
) -> Reached:
    """Have the chosen experts compute, and add what they give, under the policy of the step.

    That experts give finite numbers is seen by the sum, in which nothing that is not finite gets
    lost. Only where one is not are they asked again, and look at what they give.

    Parameters
    ----------
    route : ExpertRoute
    inputs : float32 or float64 ``[T, hidden]``
    chosen : int64 ``[T, top]``
    broken : sequence of (int, Refusal)
        Positions whose router is refused already, by row, and why.
    add : Sum
        Called last with what is returned.
    start : int
        Position of the first row.
    notes : LeftOutNotes or None
        None: the first refusal is raised. Else positions that are refused are noted here and left
        out, each for itself: what becomes of a position does not depend on those beside it.

    Raises
    ------
    Refusal
        Where ``notes`` is None.
    """
    count, top = chosen.shape
    refused = dict(broken)
    held = False
    while True:
        if refused and notes is None:
            raise refused[min(refused)]
        kept = np.arange(count)
        if refused:
            kept = np.setdiff1d(kept, list(refused))
        experts = (chosen[kept] if refused else chosen).reshape(-1)
        match route.dispatch(Wanted(inputs, experts, np.repeat(kept, top), held)):
            case Done(rows, places):
                reached = Reached(kept, rows, places.reshape(-1, top))
            case NotApplicable():
                nothing = np.empty((0, inputs.shape[1]), inputs.dtype)
                reached = Reached(kept, nothing, experts.reshape(-1, top))
            case Refused(found):
                for n, refusal in found:
                    refused.setdefault(int(kept[n // top]), refusal)
                continue
        unsound, why = add(reached)
        if not unsound.any():
            break
        if held:
            for place in np.flatnonzero(unsound).tolist():
                refused[int(kept[place])] = why(place)
        held = True
    if notes is not None:
        notes.found += [LeftOut(start + t, refused[t]) for t in sorted(refused)]
    return reached
