"""Comparing what two arms computed, block by block: on identical input, and as it propagates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.runtime.expert_trace import CHECKPOINTS
from larql.runtime.observe.sites import WriteSite
from larql.runtime.parity.recorder import Seen
from larql.runtime.parity.verdict import (
    Checkpoint,
    Tolerance,
    Verdict,
    compare_choice,
    compare_rows,
    first_mismatch,
    weakest,
)
from larql.runtime.taps import Routing

__all__ = ["LayerVerdict", "Propagation", "Sweep", "compare_locked", "compare_propagated"]

Float32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
CARRIER = "carrier"
# Of a routed block, what is compared; the margin and the output of its mixer follow from the rest.
_STAGES = tuple(name for name in CHECKPOINTS if name not in ("margin", "output"))
_BY_CHOICE = ("raw_weights", "weights", "expert_outputs")


@dataclass(frozen=True)
class LayerVerdict:
    """One layer's checkpoints.

    Attributes
    ----------
    layer : str
        Its index, ``embed`` or ``head``.
    verdict : Verdict
        That of the weakest checkpoint.
    checkpoints : tuple of Checkpoint
        In the order of execution.
    """

    layer: str
    verdict: Verdict
    checkpoints: tuple[Checkpoint, ...]

    @property
    def worst(self) -> Checkpoint:
        """The first of the weakest checkpoints; of those that agree, the one with most error."""
        weak = [c for c in self.checkpoints if c.verdict is self.verdict]
        if self.verdict is Verdict.NUMERIC_MISMATCH:
            return weak[0]
        return max(weak, key=lambda c: c.error or 0.0)


@dataclass(frozen=True)
class Sweep:
    """Every block of both arms on identical input.

    Attributes
    ----------
    layers : tuple of LayerVerdict
    """

    layers: tuple[LayerVerdict, ...]

    @property
    def verdict(self) -> Verdict:
        """The weakest of all layers."""
        return max((layer.verdict for layer in self.layers), key=lambda verdict: verdict.rank)

    @property
    def causal(self) -> Checkpoint | None:
        """The earliest operation that differs though all that it reads is the same."""
        return first_mismatch(c for layer in self.layers for c in layer.checkpoints)


@dataclass(frozen=True)
class Propagation:
    """Both arms left to themselves.

    Attributes
    ----------
    boundaries : tuple of Checkpoint
        The carrier after each write.
    tied : bool ``[T]``
        Positions that a tie has led apart.
    """

    boundaries: tuple[Checkpoint, ...]
    tied: Mask

    @property
    def verdict(self) -> Verdict:
        """The weakest of all boundaries."""
        return max((c.verdict for c in self.boundaries), key=lambda verdict: verdict.rank)

    @property
    def first(self) -> Checkpoint | None:
        """The first boundary at which the arms differ."""
        return first_mismatch(self.boundaries)


def compare_locked(
    sites: Sequence[WriteSite], baseline: Seen, examined: Seen, tolerance: Tolerance
) -> list[LayerVerdict]:
    """Compare blocks that read the baseline's carriers in both arms.

    Parameters
    ----------
    sites : sequence of WriteSite
        Of the writes.
    baseline, examined : Seen
    tolerance : Tolerance

    Returns
    -------
    list of LayerVerdict
        The embedding, then each layer.
    """
    count = baseline.carriers.shape[1]
    found: list[LayerVerdict] = []
    for write, checkpoints in enumerate(_each(sites, baseline, examined, tolerance, count)):
        name = "embed" if sites[write].layer is None else str(sites[write].layer)
        if found and found[-1].layer == name:
            checkpoints = [*found.pop().checkpoints, *checkpoints]
        verdict = weakest(c.verdict for c in checkpoints)
        assert verdict is not None
        found.append(LayerVerdict(name, verdict, tuple(checkpoints)))
    return found


def _each(
    sites: Sequence[WriteSite], baseline: Seen, examined: Seen, tolerance: Tolerance, count: int
) -> Iterator[list[Checkpoint]]:
    for write, site in enumerate(sites):
        tied = np.zeros(count, bool)
        checkpoints: list[Checkpoint] = []
        if write:
            checkpoints, tied = stages_of(site, write - 1, baseline, examined, tolerance, tied)
        rows = (baseline.carriers[write], examined.carriers[write])
        yield [*checkpoints, compare_rows(str(site), CARRIER, *rows, tolerance, tied)]


def stages_of(
    site: WriteSite,
    block: int,
    baseline: Seen,
    examined: Seen,
    tolerance: Tolerance,
    tied: Mask,
    start: int = 0,
) -> tuple[list[Checkpoint], Mask]:
    """Compare what the operations of one block gave.

    Returns
    -------
    tuple
        The checkpoints in the order of execution, and ``tied`` with the positions for which a tie
        has chosen other experts.
    """
    ours, theirs = baseline.stages[block], examined.stages[block]
    routes = (baseline.routing[block], examined.routing[block])
    found: list[Checkpoint] = []
    for stage, rows in ours.items():
        if stage == "output" and routes[0] is not None and routes[1] is not None:
            traces = (baseline.experts[block], examined.experts[block])
            choice, tied = _routed(
                str(site), (routes[0], routes[1]), traces, tolerance, tied, start
            )
            found += choice
        other = theirs.get(stage)
        if other is not None:
            found.append(compare_rows(str(site), stage, rows, other, tolerance, tied, start))
    return found, tied


def _routed(
    site: str,
    routes: tuple[Routing, Routing],
    traces: tuple[Mapping[str, Array], Mapping[str, Array]],
    tolerance: Tolerance,
    tied: Mask,
    start: int,
) -> tuple[list[Checkpoint], Mask]:
    """Compare what a routed block computed on its way, in the order in which it did."""
    found: list[Checkpoint] = []
    for stage in _STAGES:
        if stage == "chosen":
            chosen, other = compare_choice(site, *routes, tolerance, start)
            found.append(chosen)
            if chosen.verdict is Verdict.TIE_EQUIVALENT:
                tied = tied | other
            continue
        if any(stage not in trace for trace in traces):
            continue
        rows = [
            _by_expert(trace[stage], route) if stage in _BY_CHOICE else trace[stage]
            for trace, route in zip(traces, routes, strict=True)
        ]
        ours, theirs = (np.ascontiguousarray(part, np.float32) for part in rows)
        found.append(compare_rows(site, stage, ours, theirs, tolerance, tied, start))
    return found, tied


def _by_expert(rows: Array, routing: Routing) -> Array:
    """Order what stands in the order of the choice, ``[T, top, …]``, by number of the expert."""
    order = np.argsort(routing.chosen, axis=1)
    return np.take_along_axis(rows, order.reshape(order.shape + (1,) * (rows.ndim - 2)), axis=1)


def compare_propagated(
    sites: Sequence[WriteSite],
    baseline: Seen,
    examined: Seen,
    tolerance: Tolerance,
    tied: Mask | None = None,
    start: int = 0,
) -> Propagation:
    """Compare carriers of arms that were left to themselves.

    Parameters
    ----------
    tied : bool ``[T]`` or None
        Positions that were led apart before.
    start : int
        Position of the first row.
    """
    count = baseline.carriers.shape[1]
    tied = np.zeros(count, bool) if tied is None else tied
    found = []
    for write, site in enumerate(sites):
        routes = (baseline.routing[write - 1], examined.routing[write - 1]) if write else (None,)
        if routes[0] is not None and routes[-1] is not None:
            chosen, other = compare_choice(str(site), routes[0], routes[-1], tolerance, start)
            if chosen.verdict is Verdict.TIE_EQUIVALENT and (other & ~tied).any():
                # What comes after such a position sees it.
                tied = np.maximum.accumulate(tied | other)
        rows = (baseline.carriers[write], examined.carriers[write])
        found.append(compare_rows(str(site), CARRIER, *rows, tolerance, tied, start))
    return Propagation(tuple(found), tied)
