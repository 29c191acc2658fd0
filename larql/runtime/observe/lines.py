"""Events as lines of JSON, and back: the same event is always the same bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from larql.errors import RecordError
from larql.runtime.observe.events import (
    CarrierWrite,
    End,
    Event,
    HeadNorms,
    InterventionFired,
    Number,
    Pattern,
    PositionDone,
    Readout,
    Restored,
    RoutingTrace,
    Truncated,
)

__all__ = ["digits", "encode_line", "events_of", "line_of", "numbers", "writes_line"]


def digits(value: float) -> Number:
    """Round to seven significant digits, as statistics are recorded; None if not finite."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


def numbers(values: Sequence[float]) -> tuple[Number, ...]:
    """Round each value as :func:`digits` does."""
    return tuple(map(digits, values))


def encode_line(document: Mapping[str, object]) -> bytes:
    """Return a JSON object as one line of UTF-8."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def writes_line(seq: int, writes: Sequence[CarrierWrite]) -> dict[str, object]:
    """Return consecutive writes of one position as one line, a column for each statistic."""
    line: dict[str, object] = {
        "kind": "writes",
        "seq": seq,
        "position": writes[0].position,
        "write": writes[0].write,
        "carrier": [write.carrier for write in writes],
        "delta": [write.delta for write in writes],
    }
    if writes[0].projection:
        line["projection"] = [write.projection for write in writes]
    return line


def line_of(seq: int, event: Event) -> dict[str, object]:
    """Return any other event as a line."""
    match event:
        case CarrierWrite():
            return writes_line(seq, [event])
        case InterventionFired():
            return _site("intervention", seq, event) | {"intervention": event.intervention}
        case HeadNorms():
            return _site("heads", seq, event) | {"norms": event.norms}
        case Pattern():
            return _site("pattern", seq, event) | {"first": event.first, "weights": event.weights}
        case RoutingTrace():
            return _site("routing", seq, event) | {
                "scores": event.scores,
                "chosen": event.chosen,
                "weights": event.weights,
                "margin": event.margin,
            }
        case Readout():
            return _site("readout", seq, event) | {"reader": event.reader, "values": event.values}
        case PositionDone():
            return _line("position", seq, event.position) | {"token": event.token}
        case Restored():
            return _line("restored", seq, event.position) | {"state_sha256": event.state_sha256}
        case Truncated():
            return _line("truncated", seq, event.position)
        case End():
            return _line("end", seq, event.position) | {
                "generated": event.generated,
                "top": event.top,
                "texts": event.texts,
            }


def _line(kind: str, seq: int, position: int) -> dict[str, object]:
    return {"kind": kind, "seq": seq, "position": position}


def _site(
    kind: str,
    seq: int,
    event: InterventionFired | HeadNorms | Pattern | RoutingTrace | Readout,
) -> dict[str, object]:
    return _line(kind, seq, event.position) | {"write": event.write}


class _Fields:
    """The fields of one line, taken one by one; what is left over is an error."""

    def __init__(self, line: Mapping[str, Any]) -> None:
        self._left = dict(line)

    def take(self, name: str) -> Any:
        if name not in self._left:
            raise RecordError(f"has no {name!r}")
        return self._left.pop(name)

    def has(self, name: str) -> bool:
        return name in self._left

    def whole(self, name: str) -> int:
        return _whole(self.take(name), name)

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str):
            raise RecordError(f"{name}: expected a text, found {value!r:.40}")
        return value

    def items(self, name: str) -> list[Any]:
        return _items(self.take(name), name)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.take(name)
        if not isinstance(value, dict):
            raise RecordError(f"{name}: expected an object, found {value!r:.40}")
        return value

    def number_row(self, name: str) -> tuple[Number, ...]:
        return _number_row(self.take(name), name)

    def done(self) -> None:
        if self._left:
            raise RecordError(f"has an unknown field {next(iter(self._left))!r:.40}")


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RecordError(f"{name}: expected a whole number of at least 0, found {value!r:.40}")
    return value


def _number(value: object, name: str) -> Number:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise RecordError(f"{name}: expected a number or null, found {value!r:.40}")
    return None if value is None else float(value)


def _items(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError(f"{name}: expected a list, found {value!r:.40}")
    return value


def _number_row(value: object, name: str) -> tuple[Number, ...]:
    return tuple(_number(v, name) for v in _items(value, name))


def events_of(line: Mapping[str, Any]) -> tuple[int, list[Event]]:
    """Return the number of a line's first event, and its events.

    Raises
    ------
    RecordError
        If it is no line that :func:`line_of` or :func:`writes_line` makes.
    """
    fields = _Fields(line)
    kind, seq, position = fields.text("kind"), fields.whole("seq"), fields.whole("position")
    events = _decoded(kind, position, fields)
    fields.done()
    return seq, events


def _decoded(kind: str, position: int, fields: _Fields) -> list[Event]:
    match kind:
        case "writes":
            return _writes(position, fields)
        case "position":
            token = fields.take("token")
            return [PositionDone(position, None if token is None else _whole(token, "token"))]
        case "restored":
            return [Restored(position, fields.text("state_sha256"))]
        case "truncated":
            return [Truncated(position)]
        case "end":
            return [_end(position, fields)]
        case "intervention" | "heads" | "pattern" | "routing" | "readout":
            return [_at_site(kind, position, fields.whole("write"), fields)]
        case _:
            raise RecordError(f"is of an unknown kind {kind!r:.40}")


def _writes(position: int, fields: _Fields) -> list[Event]:
    first = fields.whole("write")
    carrier, delta = fields.number_row("carrier"), fields.number_row("delta")
    projection: list[tuple[Number, ...]] = [()] * len(carrier)
    if fields.has("projection"):
        rows = fields.items("projection")
        projection = [_number_row(row, "projection") for row in rows]
    if not len(carrier) == len(delta) == len(projection) > 0:
        raise RecordError("has columns of unequal length, or none")
    columns = zip(carrier, delta, projection, strict=True)
    return [CarrierWrite(position, first + i, *values) for i, values in enumerate(columns)]


def _at_site(kind: str, position: int, write: int, fields: _Fields) -> Event:
    if kind == "intervention":
        return InterventionFired(position, write, fields.whole("intervention"))
    if kind == "heads":
        return HeadNorms(position, write, fields.number_row("norms"))
    if kind == "pattern":
        first = fields.whole("first")
        rows = tuple(_number_row(row, "weights") for row in fields.items("weights"))
        return Pattern(position, write, first, rows)
    if kind == "routing":
        return RoutingTrace(
            position,
            write,
            fields.number_row("scores"),
            tuple(_whole(v, "chosen") for v in fields.items("chosen")),
            fields.number_row("weights"),
            _number(fields.take("margin"), "margin"),
        )
    return Readout(position, write, fields.text("reader"), fields.mapping("values"))


def _end(position: int, fields: _Fields) -> End:
    top = []
    for entry in fields.items("top"):
        token, logit, log_probability = _three(entry)
        top.append((_whole(token, "top"), _finite(logit), _finite(log_probability)))
    return End(
        position,
        tuple(_whole(v, "generated") for v in fields.items("generated")),
        tuple(top),
        {key: str(value) for key, value in fields.mapping("texts").items()},
    )


def _three(value: object) -> list[Any]:
    entry = _items(value, "top")
    if len(entry) != 3:
        raise RecordError("top: expected token, logit and log-probability")
    return [entry[0], entry[1], entry[2]]


def _finite(value: object) -> float:
    number = _number(value, "top")
    if number is None:
        raise RecordError("top: expected a number")
    return number
