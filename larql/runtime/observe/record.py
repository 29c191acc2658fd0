"""Run records: written line by line as events come, read back and checked.

A record is a header, lines of events, and a receipt. The log, which is everything before the
receipt, holds no time, path, thread count or machine: its sha256 stands on the receipt. The receipt
ends with a hash of itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from larql.errors import CheckFailed, OutputError, RecordError, refusal_of
from larql.format.atomic import explain_os_error, set_aside
from larql.runtime.observe.events import CarrierWrite, Event, InterventionFired, PositionDone
from larql.runtime.observe.lines import encode_line, events_of, line_of, writes_line
from larql.runtime.observe.soundness import check_event, check_header

__all__ = [
    "SCHEMA",
    "VERSION",
    "Receipt",
    "RecordReader",
    "RecordWriter",
    "create_record",
    "write_record",
]

SCHEMA = "larql.run-record"
VERSION = 2
_MOST_HEADER = 1 << 28


def create_record(path: Path, *, force: bool) -> BinaryIO:
    """Open a file for a record.

    Raises
    ------
    OutputError
        If it exists without ``force``, or cannot be written.
    """
    try:
        return path.open("wb" if force else "xb")
    except FileExistsError:
        raise OutputError(
            f"{path}: exists; give --force to replace it, or choose another path"
        ) from None
    except OSError as error:
        raise explain_os_error(error, path) from None


@contextmanager
def write_record(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Open a file for a record, and have a run that is refused leave what stood there before.

    A run that something else ends leaves its record, as far as it goes.

    Raises
    ------
    OutputError
        As :func:`create_record`.
    """
    with set_aside(path) if force else nullcontext(lambda: None) as put_back:
        stream = create_record(path, force=force)
        try:
            with stream:
                yield stream
        except BaseException as error:
            if refusal_of(error) is not None and path.is_file():
                path.unlink()
                put_back()
            raise


@dataclass(frozen=True)
class Receipt:
    """What stands at the end of a record.

    Attributes
    ----------
    complete : bool
        False where the run ended by an error.
    events, positions : int
        How many the log holds.
    sha256 : str
        Of the log.
    readers : mapping
        What each reader says of itself, by name: passes through the head, the first failure.
    fired : tuple of int
        How often each declared intervention changed the carrier of a position.
    environment : mapping
        Versions and instruction set.
    receipt_sha256 : str
        Of the receipt's own line without this field.
    """

    complete: bool
    events: int
    positions: int
    sha256: str
    readers: Mapping[str, object]
    fired: tuple[int, ...]
    environment: Mapping[str, object]
    receipt_sha256: str


class RecordWriter:
    """Counts and hashes events, and writes them where there is a stream.

    Parameters
    ----------
    header : mapping
        Everything the run is a function of.
    stream : binary stream or None
    path : Path or None
        What to call the stream in an error.
    """

    def __init__(
        self, header: Mapping[str, object], stream: BinaryIO | None, path: Path | None = None
    ) -> None:
        self.events = 0
        self.positions = 0
        self._digest = hashlib.sha256()
        self._stream = stream
        self._path = path or Path("record")
        self._writes: list[CarrierWrite] = []
        self._put({"kind": "header", "schema": SCHEMA, "version": VERSION, **header})
        self.flush()

    def take(self, event: Event) -> None:
        """Add an event to the log."""
        if isinstance(event, CarrierWrite):
            if self._writes and not _follows(self._writes[-1], event):
                self._end_writes()
            self._writes.append(event)
            return
        self._end_writes()
        self._put(line_of(self.events, event))
        self.events += 1
        self.positions += isinstance(event, PositionDone)

    def flush(self) -> None:
        """Hand everything to the operating system, where a killed process leaves it."""
        self._end_writes()
        if self._stream is not None:
            try:
                self._stream.flush()
            except OSError as error:
                raise explain_os_error(error, self._path) from None

    def receipt(
        self,
        *,
        complete: bool,
        readers: Mapping[str, object],
        fired: tuple[int, ...],
        environment: Mapping[str, object],
    ) -> Receipt:
        """Write the receipt; nothing follows it."""
        self._end_writes()
        fields: dict[str, Any] = {
            "complete": complete,
            "events": self.events,
            "positions": self.positions,
            "sha256": self._digest.hexdigest(),
            "readers": readers,
            "fired": fired,
            "environment": environment,
        }
        fields["receipt_sha256"] = _line_sha256({"kind": "receipt", **fields})
        made = Receipt(**fields)
        self._put({"kind": "receipt", **fields})
        self.flush()
        return made

    def _end_writes(self) -> None:
        if self._writes:
            self._put(writes_line(self.events, self._writes))
            self.events += len(self._writes)
            self._writes.clear()

    def _put(self, line: Mapping[str, object]) -> None:
        data = encode_line(line)
        self._digest.update(data)
        if self._stream is not None:
            try:
                self._stream.write(data)
            except OSError as error:
                raise explain_os_error(error, self._path) from None


def _follows(last: CarrierWrite, event: CarrierWrite) -> bool:
    """Return whether a write may stand on the same line as the one before it."""
    return (event.position, event.write, len(event.projection)) == (
        last.position, last.write + 1, len(last.projection)
    )  # fmt: skip


class RecordReader:
    """Reads a record from its beginning, checking it on the way.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    header : dict
        The header's fields.
    receipt : Receipt or None
        Known when :meth:`events` has ended.
    problems : list of str
        What was found wrong, complete when :meth:`events` has ended.
    interruptions : list of str
        Those of the problems that tell of a run that ended early, and of no change to the file.

    Raises
    ------
    RecordError
        If the file does not begin as a record of this version does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.receipt: Receipt | None = None
        self.problems: list[str] = []
        self.interruptions: list[str] = []
        self.seen_events = 0
        self.seen_positions = 0
        self._fired: Counter[int] = Counter()
        self._digest = hashlib.sha256()
        try:
            with path.open("rb") as stream:
                first = stream.readline(_MOST_HEADER)
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
        self.header = self._check_header(first)

    def _check_header(self, first: bytes) -> dict[str, Any]:
        try:
            header = _document(first)
        except RecordError as error:
            raise RecordError(f"{self.path}: is no run record: line 1 {error}") from None
        if header.get("kind") != "header" or header.get("schema") != SCHEMA:
            raise RecordError(f"{self.path}: is no run record: line 1 is no header of {SCHEMA}")
        if header.get("version") != VERSION:
            raise RecordError(
                f"{self.path}: is a run record of version {header.get('version')!r:.40}; this "
                f"build reads version {VERSION}"
            )
        fields = {key: value for key, value in header.items() if key not in _HEADER_TAGS}
        try:
            check_header(fields)
        except RecordError as error:
            raise RecordError(f"{self.path}: line 1 {error}") from None
        return fields

    def events(self) -> Iterator[Event]:
        """Yield the events of the record, up to its end or the first line that is not whole."""
        copy = RecordWriter(self.header, None)
        try:
            with self.path.open("rb") as stream:
                self._digest.update(stream.readline())
                for number, data in enumerate(stream, start=2):
                    if not data.endswith(b"\n"):
                        break  # the process was killed while it wrote this line
                    try:
                        events = self._take(data)
                    except RecordError as error:
                        self.problems.append(f"line {number} {error}")
                        return
                    for event in events:
                        copy.take(event)
                        yield event
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be read: {error.strerror}") from None
        self._conclude(copy)

    def _take(self, data: bytes) -> list[Event]:
        if self.receipt is not None:
            raise RecordError("follows the receipt, after which nothing may stand")
        line = _document(data)
        if line.get("kind") == "receipt":
            self.receipt = _receipt(line)
            stated = line.pop("receipt_sha256")
            if stated != _line_sha256(line) or data != encode_line(
                {**line, "receipt_sha256": stated}
            ):
                self.problems.append(
                    f"the receipt was changed: it states sha256 {stated:.64} of itself, found "
                    f"{_line_sha256(line)}"
                )
            return []
        self._digest.update(data)
        seq, events = events_of(line)
        if seq != self.seen_events:
            raise RecordError(f"begins with event {seq}, expected {self.seen_events}")
        for event in events:
            check_event(self.header, event)
        self.seen_events += len(events)
        for event in events:
            if isinstance(event, InterventionFired):
                self._fired[event.intervention] += 1
        self.seen_positions += sum(isinstance(event, PositionDone) for event in events)
        return events

    def _conclude(self, copy: RecordWriter) -> None:
        receipt = self.receipt
        if receipt is None:
            self._interrupted(
                f"has no receipt: the run that wrote it was killed; what can be read is "
                f"{self.seen_positions} positions, and no hash vouches for them"
            )
            return
        found = self._digest.hexdigest()
        if receipt.sha256 != found:
            self.problems.append(
                f"the log was changed: the receipt states sha256 {receipt.sha256}, found {found}"
            )
        elif copy.receipt(complete=True, readers={}, fired=(), environment={}).sha256 != found:
            self.problems.append("its events do not give its bytes again")
        counts = (receipt.events, receipt.positions)
        if counts != (self.seen_events, self.seen_positions):
            self.problems.append(
                f"the receipt counts {counts[0]} events of {counts[1]} positions, found "
                f"{self.seen_events} of {self.seen_positions}"
            )
        fired = {number: count for number, count in enumerate(receipt.fired) if count}
        if fired != dict(self._fired):
            self.problems.append(
                f"the receipt says that interventions fired {list(receipt.fired)} times, which is "
                f"not what the events say"
            )
        if not receipt.complete:
            self._interrupted("the run ended before it was complete; the receipt says so")

    def _interrupted(self, problem: str) -> None:
        self.problems.append(problem)
        self.interruptions.append(problem)

    def require_unchanged(self) -> None:
        """Refuse a record that was changed; one of a run that ended early is none of these.

        Raises
        ------
        CheckFailed
            Naming the first thing that was found wrong.
        """
        changed = [problem for problem in self.problems if problem not in self.interruptions]
        if changed:
            raise CheckFailed(f"{self.path}: {changed[0]}")

    def require_sound(self) -> None:
        """Refuse a record in which something was found wrong.

        Raises
        ------
        CheckFailed
            Naming the first thing.
        """
        if self.problems:
            raise CheckFailed(f"{self.path}: {self.problems[0]}")


_HEADER_TAGS = ("kind", "schema", "version")


def _document(data: bytes) -> dict[str, Any]:
    try:
        line = json.loads(
            data.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite_float
        )
    except (ValueError, RecursionError):
        raise RecordError("is not JSON") from None
    if not isinstance(line, dict):
        raise RecordError("is not a JSON object")
    return line


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # 1e999 is JSON, and no number that a record may hold
        raise ValueError(text)
    return value


def _receipt(line: dict[str, Any]) -> Receipt:
    fields = {key: value for key, value in line.items() if key != "kind"}
    expected = {
        "complete": bool,
        "events": int,
        "positions": int,
        "sha256": str,
        "readers": dict,
        "fired": list,
        "environment": dict,
        "receipt_sha256": str,
    }
    if fields.keys() != expected.keys() or not all(
        isinstance(fields[name], kind) for name, kind in expected.items()
    ):
        raise RecordError(f"is a receipt, but not of the fields {', '.join(expected)}")
    return Receipt(**{**fields, "fired": tuple(fields["fired"])})


def _line_sha256(line: Mapping[str, object]) -> str:
    """Return the hash of a line as it is written, without its end."""
    return hashlib.sha256(encode_line(line).removesuffix(b"\n")).hexdigest()
