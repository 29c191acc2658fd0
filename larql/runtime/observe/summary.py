"""What a run came to, in a few lines: made whole from header, last position and receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from larql.runtime.observe.events import CarrierWrite, End, Event, PositionDone, Readout
from larql.runtime.observe.record import Receipt
from larql.runtime.observe.view import sites_of

__all__ = ["FinalPosition", "Summary", "Table", "summarize"]


class FinalPosition:
    """A sink that keeps the events of the last complete position, and the run's end."""

    def __init__(self) -> None:
        self.events: tuple[Event, ...] = ()
        self.done: PositionDone | None = None
        self.end: End | None = None
        self._open: list[Event] = []

    def take(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, PositionDone):
            self.events, self.done = tuple(self._open), event
            self._open = []
        elif isinstance(event, End):
            self.end = event
        else:
            self._open.append(event)

    def flush(self) -> None:
        """Do nothing: what counts is the last position."""


@dataclass(frozen=True)
class Table:
    """Cells as text.

    Attributes
    ----------
    columns : tuple of str
    rows : tuple of tuple of str
    right : tuple of str
        Columns of numbers.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """A run in facts and tables.

    Attributes
    ----------
    facts : tuple of (str, str)
    depths : Table
        The last position, write by write.
    top : Table
        The likeliest tokens after the last position.
    """

    facts: tuple[tuple[str, str], ...]
    depths: Table
    top: Table


def summarize(
    header: Mapping[str, Any],
    final: FinalPosition,
    receipt: Receipt | None,
    step_seconds: float | None,
) -> Summary:
    """Build everything that is told of a run before any of it is printed."""
    texts = {} if final.end is None else final.end.texts

    def name(token: int) -> str:
        return repr(texts[str(token)]) if str(token) in texts else str(token)

    identity = header["identity"]
    layers = identity["executed_layers"]
    facts = [
        ("run", header["run_id"]),
        ("container", identity["container"]["fingerprint"]),
        ("provenance", header["provenance_fingerprint"]),
        (
            "backend",
            f"{identity['backend']}, activations {identity['activations']}, kv {identity['kv']}",
        ),
        ("layers", f"{len(layers)} executed, {layers[0]}:{layers[-1] + 1}"),
        ("tokens", f"{len(identity['tokens'])} given, sha256 {identity['tokens_sha256']}"),
    ]
    if identity["container"].get("profile") is not None:
        facts.insert(2, ("profile", identity["container"]["profile"]))
    made = identity["observed"]["interventions"]
    if made is not None:
        facts.append(("interventions", f"{len(made['declared'])}, sha256 {made['sha256']}"))
    facts += _receipt_facts(receipt)
    if step_seconds is not None:
        facts.append(("seconds", f"{step_seconds:.3f} stepping"))
    if final.end is not None and final.end.generated:
        facts.append(("generated", ",".join(map(str, final.end.generated))))
    leads = _leads(header, final)
    if leads is not None:
        facts.append(("leads", f"{name(leads[1])} from {leads[0]} on"))
    return Summary(tuple(facts), _depths(header, final, name), _top(final, name))


def _receipt_facts(receipt: Receipt | None) -> list[tuple[str, str]]:
    if receipt is None:
        return [("receipt", "none; the run was killed")]
    facts = [
        ("events", f"{receipt.events} of {receipt.positions} positions"),
        ("log sha256", receipt.sha256),
        ("complete", "yes" if receipt.complete else "no"),
    ]
    if receipt.fired:
        facts.append(("fired", ", ".join(map(str, receipt.fired))))
    lens = receipt.readers.get("lens")
    if isinstance(lens, Mapping):
        facts.append(("head passes", f"{lens.get('head_passes')} for {lens.get('rows')} rows"))
        failure = lens.get("failure")
        if isinstance(failure, Mapping):
            where = f"position {failure.get('position')}, {failure.get('layer')}."
            facts.append(("lens failure", f"{where}{failure.get('site')}: {failure.get('reason')}"))
    return facts


def _lens_values(final: FinalPosition) -> dict[int, Mapping[str, Any]]:
    return {
        event.write: event.values
        for event in final.events
        if isinstance(event, Readout) and event.reader == "lens"
    }


def _leads(header: Mapping[str, Any], final: FinalPosition) -> tuple[str, int] | None:
    """Return from which read site on the lens's first token is that of the last site."""
    lens, sites = _lens_values(final), sites_of(header)
    firsts = [(w, values["top"][0][0]) for w, values in sorted(lens.items()) if values.get("top")]
    if not firsts:
        return None
    since = len(firsts) - 1
    while since and firsts[since - 1][1] == firsts[-1][1]:
        since -= 1
    return str(sites[firsts[since][0]]), firsts[-1][1]


def _depths(header: Mapping[str, Any], final: FinalPosition, name: Any) -> Table:
    lens = _lens_values(final)
    declared = header["identity"]["observed"]["readers"].get("lens")
    tokens: Sequence[int] = declared["tokens"] if declared and lens else ()
    numbers = ["carrier", "delta"]
    columns = ["site", *numbers]
    if lens:
        columns += ["log p", "lens"]
        numbers.append("log p")
    for token in tokens:
        columns += [f"log p {name(token)}", f"rank {name(token)}"]
        numbers += columns[-2:]
    sites, rows = sites_of(header), []
    for event in final.events:
        if not isinstance(event, CarrierWrite):
            continue
        row = [str(sites[event.write]), _number(event.carrier), _number(event.delta)]
        values = lens.get(event.write)
        if lens and values is None:
            row += [""] * (2 + 2 * len(tokens))
        elif values is not None:
            first = values["top"][0]
            row += [f"{first[2]:.3f}", name(first[0])]
            for i in range(len(tokens)):
                row += [f"{values['log_probabilities'][i]:.3f}", str(values["ranks"][i])]
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows), tuple(numbers))


def _top(final: FinalPosition, name: Any) -> Table:
    entries = () if final.end is None else final.end.top
    rows = tuple((str(t), f"{logit:.6f}", f"{p:.6f}", name(t)) for t, logit, p in entries)
    return Table(("token", "logit", "log p", "text"), rows, ("token", "logit", "log p"))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
