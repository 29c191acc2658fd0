"""The observer of a session: turns what walks leave behind into events, position by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from larql.format.graph import LatentAttention, SoftmaxAttention, kept_by
from larql.runtime.backends.base import Backend
from larql.runtime.latent_region import LatentRegion
from larql.runtime.observe.capture import CaptureRequest
from larql.runtime.observe.declaration import Declaration
from larql.runtime.observe.events import (
    CarrierWrite,
    Event,
    EventSink,
    HeadNorms,
    InterventionFired,
    Pattern,
    PositionDone,
    Readout,
    Restored,
    RoutingTrace,
    Truncated,
)
from larql.runtime.observe.lines import digits, numbers
from larql.runtime.observe.readers import ArmedRows, Reader
from larql.runtime.observe.sites import find_site, write_sites
from larql.runtime.observe.statistics import WriteStatistics, norms, write_statistics
from larql.runtime.prepared import PreparedOperands
from larql.runtime.regions import KvRegion
from larql.runtime.state import State, StateSnapshot
from larql.runtime.taps import Changes, Keep, Routing, Taps

__all__ = ["MOST_POSITIONS", "MOST_ROWS", "Observation"]

MOST_POSITIONS = 64  # walked at once: their carriers after every write are in memory
PATTERN_POSITIONS = 8  # with patterns, which are numbers of Python's: a step can be interrupted
MOST_ROWS = 256  # carriers that a reader is given at once, unless one position arms more


@dataclass
class _Seen:
    """One position, until its readouts are known."""

    position: int
    token: int | None
    events: list[list[Event]]
    armed: Mapping[str, npt.NDArray[np.float32]]


@dataclass
class _Tally:
    """What counts only when the step ends."""

    fired: list[int]
    captured: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)


class Observation:
    """Observes one session as a declaration asks, and tells a sink.

    Parameters
    ----------
    prepared : PreparedOperands
        What the session runs on.
    declaration : Declaration
    sink : EventSink
        Told of a step's events when the step is complete.

    Attributes
    ----------
    fired : tuple of int
        How often each intervention changed the carrier of a position.
    captured : dict
        Captured vectors by name, float64 ``[hidden]``.

    Raises
    ------
    UsageError
        If an intervention or a capture is at a site that the run does not have.
    """

    def __init__(
        self, prepared: PreparedOperands, declaration: Declaration, sink: EventSink
    ) -> None:
        self.keep = Keep(heads=declaration.head_norms, queries=declaration.patterns)
        self.most = PATTERN_POSITIONS if declaration.patterns else MOST_POSITIONS
        self.sites = write_sites(prepared.plan)
        self._declaration = declaration
        self._backend: Backend = prepared.backend
        self._sink = sink
        self._blocks = [(layer.index, b) for layer in prepared.plan.layers for b in layer.blocks]
        self._interventions = [
            (find_site(self.sites, made.site, f"intervention {number}"), made)
            for number, made in enumerate(declaration.interventions)
        ]
        self._captures = [
            (find_site(self.sites, wanted.site, "--capture"), wanted)
            for wanted in declaration.captures
        ]
        self._armed = {
            reader.name: [w for w, site in enumerate(self.sites) if reader.arms(site)]
            for reader in declaration.readers
        }
        most = max(map(len, self._armed.values()), default=0)
        self._group = max(1, MOST_ROWS // max(1, most))
        self._tally = _Tally([0] * len(self._interventions))
        self._step = self._fresh()
        self._waiting: list[_Seen] = []
        self._told: list[Event] = []

    @property
    def fired(self) -> tuple[int, ...]:
        """How often each intervention changed the carrier of a position."""
        return tuple(self._tally.fired)

    @property
    def captured(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """Captured vectors by name."""
        return self._tally.captured

    def changes(self, start: int, count: int) -> Changes | None:
        """Return the interventions that change any of the positions."""
        here = [(w, made, made.rows(start, count)) for w, made in self._interventions]
        if not any(len(rows) for _, _, rows in here):
            return None

        def change(write: int, before: npt.NDArray[np.float32], after: Rows) -> None:
            for at, made, rows in here:
                if at == write and len(rows):
                    part = slice(rows.start, rows.stop)
                    made.apply(before[part], after[part])

        return change

    def begin_step(self) -> None:
        """Forget what a step that did not end may have left."""
        self._step = self._fresh()
        self._waiting.clear()
        self._told.clear()

    def saw(
        self, start: int, tokens: npt.NDArray[np.int64] | None, taps: Taps, state: State
    ) -> None:
        """Take the statistics of a walk; have readers read as soon as they have enough rows."""
        count = taps.carriers.shape[1]
        events = self._events(start, count, taps, state)
        self._capture(start, count, taps)
        for t in range(count):
            armed = {name: taps.carriers[w, t] for name, w in self._armed.items() if w}
            token = None if tokens is None else int(tokens[t])
            self._waiting.append(_Seen(start + t, token, events[t], armed))
            if len(self._waiting) == self._group:
                self._read()

    def end_step(self) -> None:
        """Tell the sink of the step."""
        self._read()
        for event in self._told:
            self._sink.take(event)
        self._told.clear()
        for number, count in enumerate(self._step.fired):
            self._tally.fired[number] += count
        self._tally.captured |= self._step.captured
        self._sink.flush()

    def abandon_step(self) -> None:
        """Forget the step."""
        self.begin_step()

    def restored(self, snapshot: StateSnapshot) -> None:
        """Tell the sink where the session went on."""
        self._sink.take(Restored(snapshot.length, snapshot.sha256()))
        self._sink.flush()

    def truncated(self, length: int) -> None:
        """Tell the sink where the session went on."""
        self._sink.take(Truncated(length))
        self._sink.flush()

    def _fresh(self) -> _Tally:
        return _Tally([0] * len(self._interventions))

    def _events(self, start: int, count: int, taps: Taps, state: State) -> list[list[list[Event]]]:
        """Return the events of each position and write, without readouts."""
        statistics = write_statistics(taps.carriers, self._declaration.basis)
        events = [
            [[_write(statistics, start + t, w, t)] for w in range(len(self.sites))]
            for t in range(count)
        ]
        for number, (w, made) in enumerate(self._interventions):
            for t in made.rows(start, count):
                events[t][w].append(InterventionFired(start + t, w, number))
                self._step.fired[number] += 1
        for w, (layer, block) in enumerate(self._blocks, start=1):
            kept = taps.blocks[w - 1]
            if kept.heads is not None:
                for t, row in enumerate(norms(kept.heads).tolist()):
                    events[t][w].append(HeadNorms(start + t, w, numbers(row)))
            mixer = block.mixer
            if kept.queries is not None and isinstance(mixer, SoftmaxAttention | LatentAttention):
                region = state.at(kept_by(block, layer), block.site)[0]
                keys = region.kept if isinstance(region, LatentRegion) else region
                assert isinstance(keys, KvRegion)
                found = self._backend.attention_pattern(
                    mixer, kept.queries, keys, start, kept.mixes
                )
                for t, weights in enumerate(found):
                    first = start + t + 1 - weights.shape[1]
                    rows = tuple(map(numbers, weights.tolist()))
                    events[t][w].append(Pattern(start + t, w, first, rows))
            if kept.routing is not None:
                for t in range(count):
                    events[t][w].append(_routing(kept.routing, start + t, w, t))
        return events

    def _capture(self, start: int, count: int, taps: Taps) -> None:
        for w, wanted in self._captures:
            for t in _inside(wanted, start, count):
                after = taps.carriers[w, t].astype(np.float64)
                before = taps.carriers[w - 1, t].astype(np.float64) if w else np.zeros_like(after)
                name = f"{self.sites[w]}@{start + t}"
                self._step.captured[f"{name}/carrier"] = after
                self._step.captured[f"{name}/write"] = after - before

    def _read(self) -> None:
        """Have every reader read the positions that wait, and put the readouts in their place."""
        if not self._waiting:
            return
        for reader in self._declaration.readers:
            writes = self._armed[reader.name]
            if writes:
                self._read_with(reader, writes)
        for seen in self._waiting:
            for events in seen.events:
                self._told.extend(events)
            self._told.append(PositionDone(seen.position, seen.token))
        self._waiting.clear()

    def _read_with(self, reader: Reader, writes: Sequence[int]) -> None:
        rows = ArmedRows(
            [seen.position for seen in self._waiting for _ in writes],
            [self.sites[w] for _ in self._waiting for w in writes],
            np.concatenate([seen.armed[reader.name] for seen in self._waiting]),
        )
        answers = iter(reader.read(rows))
        for seen in self._waiting:
            for w in writes:
                values = next(answers)
                if values is not None:
                    seen.events[w].append(Readout(seen.position, w, reader.name, values))


Rows = npt.NDArray[np.float32]


def _inside(wanted: CaptureRequest, start: int, count: int) -> range:
    if wanted.positions is None:
        return range(count)
    first, last = wanted.positions.start - start, wanted.positions.stop - start
    return range(max(0, first), min(count, last))


def _write(statistics: WriteStatistics, position: int, write: int, t: int) -> Event:
    return CarrierWrite(
        position,
        write,
        digits(float(statistics.carrier[write, t])),
        digits(float(statistics.delta[write, t])),
        numbers(statistics.projection[write, t].tolist()),
    )


def _routing(routing: Routing, position: int, write: int, t: int) -> RoutingTrace:
    scores = routing.scores[t]
    chosen = tuple(map(int, routing.chosen[t]))
    left = np.delete(scores, chosen)
    margin = float(scores[list(chosen)].min()) - float(left.max()) if left.size else None
    return RoutingTrace(
        position,
        write,
        numbers(scores.tolist()),
        chosen,
        numbers(routing.weights[t].tolist()),
        None if margin is None else digits(margin),
    )
