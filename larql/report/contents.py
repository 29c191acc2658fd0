"""What a report shows of a run record, as arrays and texts; nothing here draws."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from larql.errors import RecordError
from larql.runtime.observe.events import Event, PositionDone, RoutingTrace
from larql.runtime.observe.record import RecordReader
from larql.runtime.observe.sites import WriteSite
from larql.runtime.observe.summary import FinalPosition, Summary, summarize
from larql.runtime.observe.view import LensView, RunView, view_of

__all__ = ["Contents", "Routing", "read_contents", "shortened", "site_ticks"]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_MOST_ITEMS = 64


@dataclass(frozen=True, eq=False)
class Routing:
    """How often experts were chosen: R routed sites, E experts.

    Attributes
    ----------
    sites : tuple of WriteSite
    positions : int64 ``[R]``
        Positions that the site routed.
    counts : int64 ``[R, E]``
        Positions for which an expert was chosen.
    weights : float64 ``[R, E]``
        Mean weight where it was chosen; NaN where it never was.
    margins : float64 ``[R]``
        The least margin; NaN where none was recorded.
    """

    sites: tuple[WriteSite, ...]
    positions: Int64
    counts: Int64
    weights: Float64
    margins: Float64


@dataclass(frozen=True, eq=False)
class Contents:
    """A run record, made ready to be drawn: P positions.

    Attributes
    ----------
    title : str
        The model's name.
    notes : tuple of str
        What a reader of the pictures has to know: that the run was killed, that the lens failed.
    positions : tuple of int
        The number of each of the P positions.
    view : RunView
    lens : LensView or None
        None where nothing was read.
    routing : Routing or None
        None where nothing was routed.
    summary : Summary
        The last position, and the facts that a terminal shows.
    provenance : tuple of (str, str)
        Everything the run is a function of, and what the receipt says.
    """

    title: str
    notes: tuple[str, ...]
    positions: tuple[int, ...]
    view: RunView
    lens: LensView | None
    routing: Routing | None
    summary: Summary
    provenance: tuple[tuple[str, str], ...]

    def name(self, token: int) -> str:
        """Return how a token is shown: its text as Python spells it, or its number."""
        if token < 0:
            return "none"
        texts = {} if self.view.end is None else self.view.end.texts
        return repr(texts[str(token)]) if str(token) in texts else str(token)

    def tokens(self) -> tuple[str, ...]:
        """Return how the token of each position is shown."""
        return tuple(self.name(int(token)) for token in self.view.tokens)

    def prompt(self) -> str:
        """Return the given tokens as one text, cut where it is long."""
        return self._text(self.view.header["identity"]["tokens"])

    def generated(self) -> str:
        """Return the generated tokens as one text, cut where it is long."""
        return self._text(() if self.view.end is None else self.view.end.generated)

    def _text(self, tokens: Sequence[object]) -> str:
        """Return tokens as one text, or their numbers where the record lacks the text of one."""
        texts = {} if self.view.end is None else self.view.end.texts
        shown = [str(token) for token in tokens[:_MOST_ITEMS]]
        more = "" if len(shown) == len(tokens) else f" … ({len(tokens)} tokens)"
        if shown and all(token in texts for token in shown):
            return repr("".join(texts[token] for token in shown)) + more
        return ", ".join(shown) + more


def read_contents(path: Path) -> Contents:
    """Read a record for a report.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Contents

    Raises
    ------
    RecordError
        If the file is no run record.
    CheckFailed
        If the record was changed. One of a run that ended early is read, with a note.
    """
    reader, final = RecordReader(path), FinalPosition()
    events = []
    for event in reader.events():
        final.take(event)
        events.append(event)
    reader.require_unchanged()
    view = view_of(reader.header, reader.receipt, events)
    lens = view.lens
    if lens is not None and not (lens.top_tokens >= 0).any():
        lens = None
    summary = summarize(reader.header, final, reader.receipt, None)
    notes = []
    if reader.receipt is None:
        notes.append(
            f"This record has no receipt: the run that wrote it was killed. Shown are its "
            f"{reader.seen_positions} complete positions; no hash vouches for them."
        )
    elif not reader.receipt.complete:
        notes.append("The run ended before it was complete; its receipt says so.")
    failure = dict(summary.facts).get("lens failure")
    if failure is not None:
        notes.append(f"The lens failed, and what it could not read is left out: {failure}.")
    return Contents(
        str(reader.header["identity"]["container"].get("model") or "unnamed model"),
        tuple(notes),
        tuple(event.position for event in events if isinstance(event, PositionDone)),
        view,
        lens,
        _routing(path, view.sites, events),
        summary,
        (*summary.facts, *_provenance(view)),
    )


def shortened(text: str, most: int) -> str:
    """Cut a text to so many characters, with an ellipsis where something is missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def site_ticks(sites: Sequence[WriteSite], most: int) -> tuple[list[int], list[str]]:
    """Choose which sites along an axis are named, the last always: ends of layers, by the layer.

    Returns
    -------
    tuple of list
        Indices and names.
    """
    ends = list({site.layer: i for i, site in enumerate(sites)}.values())
    step = max(1, -(-len(ends) // most))
    chosen = ends[(len(ends) - 1) % step :: step]
    return chosen, [str(sites[i] if sites[i].layer is None else sites[i].layer) for i in chosen]


def _provenance(view: RunView) -> Iterable[tuple[str, str]]:
    yield from _flattened("identity", view.header["identity"])
    if view.receipt is not None:
        yield from _flattened("environment", view.receipt.environment)
        yield from _flattened("readers", view.receipt.readers)


def _flattened(name: str, value: object) -> Iterable[tuple[str, str]]:
    """Yield each value of a JSON document under its dotted name; long lists are cut, and say so."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flattened(f"{name}.{key}", item)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from _flattened(f"{name}.{number}", item)
    elif isinstance(value, list) and len(value) > _MOST_ITEMS:
        shown = json.dumps(value[:_MOST_ITEMS], ensure_ascii=False)[:-1]
        yield name, f"{shown}, … ({len(value)} in all; the record holds them)"
    elif isinstance(value, str):
        yield name, value
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def _routing(path: Path, sites: Sequence[WriteSite], events: Sequence[Event]) -> Routing | None:
    traces: list[RoutingTrace] = []
    pending: list[RoutingTrace] = []
    for event in events:
        if isinstance(event, RoutingTrace):
            pending.append(event)
        elif isinstance(event, PositionDone):  # what belongs to no complete position is left out
            traces += pending
            pending = []
    if not traces:
        return None
    routed = sorted({trace.write for trace in traces})
    experts = max(len(trace.scores) for trace in traces)
    shape = (len(routed), experts)
    positions, margins = np.zeros(len(routed), np.int64), np.full(len(routed), np.nan)
    counts, sums = np.zeros(shape, np.int64), np.zeros(shape)
    for trace in traces:
        row, chosen = routed.index(trace.write), list(trace.chosen)
        if len(trace.weights) != len(chosen) or any(expert >= experts for expert in chosen):
            raise RecordError(
                f"{path}: routing of position {trace.position} at {sites[trace.write]} does not "
                f"fit its {experts} experts"
            )
        positions[row] += 1
        counts[row, chosen] += 1
        sums[row, chosen] += [np.nan if weight is None else weight for weight in trace.weights]
        if trace.margin is not None:
            margins[row] = np.fmin(margins[row], trace.margin)
    weights = np.divide(sums, counts, out=np.full(shape, np.nan), where=counts > 0)
    return Routing(tuple(sites[w] for w in routed), positions, counts, weights, margins)
