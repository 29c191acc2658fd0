"""An observed run: given tokens, then the likeliest ones, in steps of a fixed size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.format.progress import Progress
from larql.provenance import environment
from larql.runtime.observe.declaration import Declaration, Extent, header_of
from larql.runtime.observe.events import End, Event, EventSink, PositionDone, Readout
from larql.runtime.observe.observation import Observation
from larql.runtime.observe.record import Receipt, RecordWriter
from larql.runtime.plan import check_tokens
from larql.runtime.routes import told
from larql.runtime.run import Run
from larql.runtime.sampling import greedy, top_tokens
from larql.runtime.session import Session

__all__ = ["Observed", "OpenRecord", "observe"]

Names = Callable[[int], str]
# Opens the file of a record when all else is known to fit, so that a refusal leaves none behind.
OpenRecord = Callable[[], tuple[Path, BinaryIO]]


@dataclass(frozen=True)
class Observed:
    """What an observed run came to.

    Attributes
    ----------
    header : mapping
        Of the record.
    receipt : Receipt
    generated : tuple of int
    captured : mapping
        Captured vectors by name, float64 ``[hidden]``.
    logits : float32 ``[vocab]``
        Of the last position.
    """

    header: Mapping[str, object]
    receipt: Receipt
    generated: tuple[int, ...]
    captured: Mapping[str, npt.NDArray[np.float64]]
    logits: npt.NDArray[np.float32]


class _Tee:
    """Passes events on to several sinks, and notes the tokens that they name."""

    def __init__(self) -> None:
        self.tokens: set[int] = set()
        self.sinks: Sequence[EventSink] = ()

    def take(self, event: Event) -> None:
        if isinstance(event, PositionDone) and event.token is not None:
            self.tokens.add(event.token)
        elif isinstance(event, Readout):
            self._note(event.values.get("top"))
        for sink in self.sinks:
            sink.take(event)

    def flush(self) -> None:
        for sink in self.sinks:
            sink.flush()

    def _note(self, top: object) -> None:
        if isinstance(top, list):
            self.tokens.update(int(entry[0]) for entry in top)


def observe(
    run: Run,
    extent: Extent,
    declaration: Declaration,
    sinks: Sequence[EventSink],
    *,
    context: int,
    run_id: str | None = None,
    names: Names | None = None,
    record: OpenRecord | None = None,
    progress: Progress | None = None,
) -> Observed:
    """Run tokens under observation.

    The record is a function of the container, the run's options but threads and chunk, the extent
    and the declaration.

    Parameters
    ----------
    run : Run
    extent : Extent
    declaration : Declaration
    sinks : sequence of EventSink
        Told of the events as steps complete.
    context : int
        Positions to make room for.
    run_id : str or None
    names : callable or None
        Displays a token; its answers end the record.
    record : callable or None
        Opens what the record is written to, as it comes to be, and says what to call it.
    progress : Progress or None
        Told of positions.

    Raises
    ------
    LarqlError
        As the session does. The record then ends with a receipt that is not complete.
    """
    if not extent.tokens:
        raise UsageError("tokens: expected at least one, found none")
    header = header_of(run, extent, declaration, run_id, context)
    check_tokens(extent.tokens, run.prepared.plan.component.embed.vocab)
    tee = _Tee()
    observation = Observation(run.prepared, declaration, tee)
    session = run.session(context, observation)
    path, stream = (None, None) if record is None else record()
    writer = RecordWriter(header, stream, path)
    tee.sinks = (writer, *sinks)
    complete = False
    try:
        row, generated = _steps(run, session, extent, observation.most, progress)
        end = _end(run, session, extent, row, generated, tee.tokens, names)
        tee.take(end)
        tee.flush()
        complete = True
    finally:
        receipt = writer.receipt(
            complete=complete,
            readers={reader.name: dict(reader.receipt()) for reader in declaration.readers},
            fired=observation.fired,
            environment={
                **environment(),
                **run.prepared.backend.environment(),
                **({} if run.left_out is None else {"best_effort": told(run.left_out)}),
            },
        )
    return Observed(header, receipt, generated, observation.captured, row)


def _steps(
    run: Run, session: Session, extent: Extent, size: int, progress: Progress | None
) -> tuple[npt.NDArray[np.float32], tuple[int, ...]]:
    """Advance over the given tokens, `size` at a time, and as many likeliest ones as wanted."""
    began = time.perf_counter()
    if progress is not None:
        progress.start("positions", len(extent.tokens) + max(0, extent.generate - 1))
    # Steps of one size, whatever the chunk: what readers read at once hangs on nothing else.
    for first in range(0, len(extent.tokens), size):
        some = extent.tokens[first : first + size]
        carrier = session.advance(some)
        if progress is not None:
            progress.advance(len(some))
    row = session.logits(carrier[-1:])[0]
    generated: list[int] = []
    while len(generated) < extent.generate:
        generated.append(greedy(row))
        if generated[-1] in extent.end_ids or len(generated) == extent.generate:
            break
        row = session.step(generated[-1:])
        if progress is not None:
            progress.advance(1)
    run.step_seconds += time.perf_counter() - began
    if progress is not None:
        progress.finish()
    return row, tuple(generated)


def _end(
    run: Run,
    session: Session,
    extent: Extent,
    row: npt.NDArray[np.float32],
    generated: tuple[int, ...],
    tokens: set[int],
    names: Names | None,
) -> End:
    top: tuple[tuple[int, float, float], ...] = ()
    if np.isfinite(row).all():
        total = float(run.prepared.backend.log_sum_exp(row[None])[0])
        top = tuple((t, logit, logit - total) for t, logit in top_tokens(row, extent.top))
    named = sorted(tokens | set(generated) | {t for t, _, _ in top})
    texts = {} if names is None else {str(t): names(t) for t in named}
    return End(session.position, generated, top, texts)
