"""Sufficiency and necessity: a run needs the experts that it was routed to, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from larql.errors import Refusal, RefusalKind, UsageError
from larql.format.container import Container
from larql.format.graph import RoutedFfn
from larql.runtime.expert_access import ExpertAccess
from larql.runtime.parity.arms import Start
from larql.runtime.parity.recorder import Recorder, Seen
from larql.runtime.run import Run, RunOptions, open_run

__all__ = ["TESTED", "Ladder", "Rung", "climb"]

TESTED = 5
"""Layers that are tested unless more or fewer are asked for."""

Kept = Mapping[int, frozenset[int]]
Bits = tuple[bytes, bytes]


@dataclass(frozen=True)
class Rung:
    """One run of the prompt.

    Attributes
    ----------
    name : str
        ``full``, ``minimal``, ``removed``, ``padded`` or ``restored``.
    layer : int or None
        The layer whose experts differ from the rung before; None: all that are tested.
    expert : int or None
        The expert that was taken away.
    other : int or None
        The expert that was put in its place.
    bound : int
        Experts that are bound in the layers under test.
    expected, outcome : str
        A verdict. What is expected to be refused must be so at ``layer`` and ``expert``.
    message : str or None
        Of a refusal.
    """

    name: str
    layer: int | None
    expert: int | None
    other: int | None
    bound: int
    expected: str
    outcome: str
    message: str | None = None

    @property
    def holds(self) -> bool:
        """Whether it came out as expected."""
        return self.outcome == self.expected


@dataclass(frozen=True)
class Ladder:
    """All rungs.

    Attributes
    ----------
    layers : tuple of int
        That were tested.
    population : mapping
        By layer, experts there are.
    minimal : mapping
        By layer, the experts that the prompt was routed to, ascending.
    rungs : tuple of Rung
    trivial : tuple of str
        What makes the ladder say less than it seems to.
    blank : bool
        Whether all logits are equal, so that no rung shows anything.
    """

    layers: tuple[int, ...]
    population: Mapping[int, int]
    minimal: Mapping[int, tuple[int, ...]]
    rungs: tuple[Rung, ...]
    trivial: tuple[str, ...]
    blank: bool

    @property
    def holds(self) -> bool:
        """Whether every rung came out as expected and shows something by it.

        One of the layers left experts out, and logits differ.
        """
        left_out = any(len(self.minimal[n]) < self.population[n] for n in self.layers)
        return not self.blank and left_out and all(rung.holds for rung in self.rungs)


class _Climber:
    """Runs one prompt again and again, with other experts bound."""

    def __init__(
        self, container: Container, options: RunOptions, tokens: Sequence[int], start: Start
    ) -> None:
        self._container = container
        self._options = options
        self._tokens = tokens
        self._start = start

    def run(self, kept: Kept | None) -> tuple[Run, Seen, npt.NDArray[np.float32]]:
        """Run the prompt with all experts, or in some layers those that are kept."""
        access = ExpertAccess() if kept is None else ExpertAccess(kept=kept)
        run = self._start(self._container, replace(self._options, experts=access))
        recorder = Recorder(self._options.chunk or run.prepared.backend.default_chunk)
        session = run.session(len(self._tokens), recorder)
        carrier = session.advance(self._tokens)
        return run, recorder.seen(), session.logits(carrier[-1:])

    def outcome(self, kept: Kept, bits: Bits, layer: int, expert: int) -> tuple[str, str | None]:
        """Return the verdict of a rung; a refusal of another region than was expected says so."""
        try:
            _, seen, logits = self.run(kept)
        except Refusal as refusal:
            verdict = f"refused({refusal.kind.value})"
            at = refusal.at
            if refusal.kind is RefusalKind.RESIDENCY and (
                at is None or (at.layer, at.entry) != (layer, expert)
            ):
                verdict += " of another expert"
            return verdict, str(refusal)
        same = (seen.carriers.tobytes(), logits.tobytes()) == bits
        return ("exact" if same else "numeric_mismatch"), None


def climb(
    container: Container,
    options: RunOptions,
    tokens: Sequence[int],
    layers: tuple[int, int] | None = None,
    start: Start = open_run,
) -> Ladder:
    """Climb the ladder.

    Parameters
    ----------
    container : Container
    options : RunOptions
        How it is run; all experts must be there.
    tokens : sequence of int
        The prompt whose routing decides.
    layers : (int, int) or None
        Half-open range of the layers that are tested; None: five of them, spread over the model.
    start : callable
        Prepares a run.

    Raises
    ------
    UsageError
        If the layers, or the model, have no routed experts.
    Refusal
        If the run with all experts is refused.
    """
    climber = _Climber(container, options, tokens, start)
    run, seen, logits = climber.run(None)
    bits = (seen.carriers.tobytes(), logits.tobytes())
    routed = _routed(run)
    tested = _tested(tuple(routed), layers, container)
    minimal, top = {}, {}
    for layer in tested:
        routing = seen.routing[routed[layer][0]]
        assert routing is not None
        minimal[layer] = tuple(sorted({int(e) for e in routing.chosen.reshape(-1)}))
        # What the last position was routed to first: without it the run cannot end.
        top[layer] = int(routing.chosen[-1, 0])
    population = {layer: routed[layer][1] for layer in tested}
    kept = {layer: frozenset(minimal[layer]) for layer in tested}
    count = sum(population.values())
    rungs = [Rung("full", None, None, None, count, "exact", "exact")]
    least = sum(len(of) for of in kept.values())
    verdict, message = climber.outcome(kept, bits, -1, -1)
    rungs.append(Rung("minimal", None, None, None, least, "exact", verdict, message))
    trivial = []
    blank = bool(logits.max() == logits.min())
    if blank:
        trivial.append(
            f"all logits are {logits.flat[0]}, so that any run equals any other; the weights are "
            f"blank or damaged"
        )
    for layer in tested:
        expert = top[layer]
        without = kept[layer] - {expert}
        others = [e for e in range(population[layer]) if e not in kept[layer]]
        verdict, message = climber.outcome({**kept, layer: without}, bits, layer, expert)
        refused = "refused(residency)"
        rungs.append(Rung("removed", layer, expert, None, least - 1, refused, verdict, message))
        if others:
            padded = without | {others[0]}
            verdict, message = climber.outcome({**kept, layer: padded}, bits, layer, expert)
            rungs.append(Rung("padded", layer, expert, others[0], least, refused, verdict, message))
        else:
            trivial.append(
                f"every expert of layer {layer} was chosen, so its minimal population leaves none "
                f"out, and none is left to pad with"
            )
        verdict, message = climber.outcome(kept, bits, layer, expert)
        rungs.append(Rung("restored", layer, expert, None, least, "exact", verdict, message))
    return Ladder(tested, population, minimal, tuple(rungs), tuple(trivial), blank)


def _routed(run: Run) -> dict[int, tuple[int, int]]:
    """Return by layer the number of its routed block and its population."""
    blocks = [(layer.index, b) for layer in run.prepared.plan.layers for b in layer.blocks]
    return {
        index: (number, block.mixer.bank.experts)
        for number, (index, block) in enumerate(blocks)
        if isinstance(block.mixer, RoutedFfn)
    }


def _tested(
    routed: tuple[int, ...], layers: tuple[int, int] | None, container: Container
) -> tuple[int, ...]:
    if not routed:
        raise UsageError(f"{container.path}: the layers that run have no routed experts")
    if layers is None:
        count = min(TESTED, len(routed))
        places = np.linspace(0, len(routed) - 1, count).round().astype(int)
        return tuple(routed[place] for place in places)
    found = tuple(layer for layer in routed if layers[0] <= layer < layers[1])
    if not found:
        raise UsageError(
            f"--layers {layers[0]}:{layers[1]}: no layer of the range has routed experts; "
            f"{routed[0]} to {routed[-1]} have"
        )
    return found
