"""What tests of observation share: sinks, a second reader, a run that sees everything."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from larql.runtime.expert_trace import ExpertTrace
from larql.runtime.observe.basis import seeded_basis
from larql.runtime.observe.declaration import Declaration, Extent
from larql.runtime.observe.events import Event, Readout
from larql.runtime.observe.lens import Lens
from larql.runtime.observe.readers import ArmedRows
from larql.runtime.observe.run import Observed, observe
from larql.runtime.observe.sites import WriteSite
from larql.runtime.run import Run
from larql.runtime.taps import Keep, Taps

Rows = npt.NDArray[np.float32]


class Events:
    """A sink that keeps all."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self.flushed = 0

    def take(self, event: Event) -> None:
        self.all.append(event)

    def flush(self) -> None:
        self.flushed = len(self.all)

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.all if isinstance(event, kind)]


class ExpertTraces:
    """An observer of a session that keeps the traces of its routed blocks.

    Attributes
    ----------
    last : list of ExpertTrace
        Of the last walk.
    all : list of bytes
        Every checkpoint of every walk.
    """

    keep, most = Keep(experts=True), 64

    def __init__(self) -> None:
        self.last: list[ExpertTrace] = []
        self.all: list[bytes] = []

    def changes(self, start: int, count: int) -> None:
        return None

    def begin_step(self) -> None: ...

    def end_step(self) -> None: ...

    def abandon_step(self) -> None: ...

    def restored(self, snapshot: object) -> None: ...

    def truncated(self, length: int) -> None: ...

    def saw(self, start: int, tokens: object, taps: Taps, state: object) -> None:
        self.last = [block.experts for block in taps.blocks if block.experts is not None]
        for trace in self.last:
            self.all += [values.tobytes() for values in trace.arrays().values()]


def readouts(sink: Events) -> list[Readout]:
    return [event for event in sink.all if isinstance(event, Readout)]


class Means:
    """A second reader: it tells the mean of a carrier, and knows nothing of heads."""

    name = "means"

    def __init__(self) -> None:
        self.calls: list[int] = []

    def declaration(self) -> Mapping[str, object]:
        return {"of": "carrier"}

    def arms(self, site: WriteSite) -> bool:
        return site.site == "attention"

    def read(self, rows: ArmedRows) -> Sequence[Mapping[str, object] | None]:
        self.calls.append(len(rows.carriers))
        return [{"mean": float(row.astype(np.float64).mean())} for row in rows.carriers]

    def receipt(self) -> Mapping[str, object]:
        return {"calls": len(self.calls)}


def everything(run: Run) -> Declaration:
    layers = run.prepared.plan.executed_layers
    return Declaration(
        readers=(Lens(run.prepared, layers, attention=True, tokens=[3, 250], top=4), Means()),
        basis=seeded_basis(3, run.prepared.plan.component.hidden_size, 7),
        head_norms=True,
        patterns=True,
    )


def recorded(
    run: Run, tokens: Sequence[int], declaration: Declaration, generate: int = 0
) -> tuple[bytes, Observed]:
    stream = io.BytesIO()
    found = observe(
        run,
        Extent(tuple(tokens), generate, top=3),
        declaration,
        [],
        context=len(tokens) + generate,
        record=lambda: (Path("memory"), stream),
    )
    return stream.getvalue(), found
