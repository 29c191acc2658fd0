"""Records: replayed they give the same events, changed they are caught, cut short they say so."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from larql.errors import CheckFailed, OutputError, RecordError
from larql.format.container import Container
from larql.runtime.observe.basis import seeded_basis
from larql.runtime.observe.declaration import Declaration, Extent, header_of
from larql.runtime.observe.events import (
    CarrierWrite,
    End,
    Event,
    HeadNorms,
    InterventionFired,
    Pattern,
    PositionDone,
    Readout,
    Restored,
    RoutingTrace,
    Truncated,
)
from larql.runtime.observe.interventions import Intervention
from larql.runtime.observe.lens import Lens
from larql.runtime.observe.lines import encode_line, events_of, line_of
from larql.runtime.observe.record import RecordReader, RecordWriter, create_record
from larql.runtime.observe.sites import WriteSite
from larql.runtime.observe.soundness import fingerprint
from larql.runtime.observe.summary import FinalPosition, summarize
from larql.runtime.observe.view import view_of
from tests.runtime.observing import Events, everything, recorded
from tests.runtime.test_invariants import TOKENS, run_of

NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(NUMBERS, max_size=4).map(tuple)
COUNTS = st.integers(0, 2**40)
TEXTS = st.text(max_size=5)
AT = {"position": COUNTS, "write": COUNTS}
EVENTS = st.one_of(
    st.builds(InterventionFired, **AT, intervention=COUNTS),
    st.builds(HeadNorms, **AT, norms=ROWS),
    st.builds(Pattern, **AT, first=COUNTS, weights=st.lists(ROWS, max_size=3).map(tuple)),
    st.builds(
        RoutingTrace,
        **AT,
        scores=ROWS,
        chosen=st.lists(COUNTS, max_size=3).map(tuple),
        weights=ROWS,
        margin=NUMBERS,
    ),
    st.builds(
        Readout, **AT, reader=TEXTS, values=st.dictionaries(TEXTS, st.lists(NUMBERS, max_size=2))
    ),
    st.builds(PositionDone, position=COUNTS, token=st.none() | COUNTS),
    st.builds(Restored, position=COUNTS, state_sha256=TEXTS),
    st.builds(Truncated, position=COUNTS),
    st.builds(
        End,
        position=COUNTS,
        generated=st.lists(COUNTS, max_size=2).map(tuple),
        top=st.lists(st.tuples(COUNTS, st.floats(-9, 9), st.floats(-9, 0)), max_size=2).map(tuple),
        texts=st.dictionaries(TEXTS, TEXTS, max_size=2),
    ),
)


@pytest.fixture(scope="module")
def record(containers: dict[str, Container]) -> bytes:
    run = run_of(containers["llama"], "production")
    return recorded(run, TOKENS[:5], everything(run), generate=3)[0]


def read(path: Path, data: bytes) -> tuple[RecordReader, list[Event]]:
    path.write_bytes(data)
    reader = RecordReader(path)
    return reader, list(reader.events())


# Small numbers, so that writes follow each other, with and without a projection.
WRITES = st.builds(
    CarrierWrite,
    position=st.integers(0, 1),
    write=st.integers(0, 2),
    carrier=NUMBERS,
    delta=NUMBERS,
    projection=st.sampled_from([(), (1.5, None)]),
)


@example(events=[CarrierWrite(0, 0, 1.0, 1.0), CarrierWrite(0, 1, 1.0, 1.0, (1.5, None))])
@given(events=st.lists(EVENTS | WRITES | WRITES, max_size=8))
def test_any_events_come_back_from_their_lines(events: list[Event]) -> None:
    stream = io.BytesIO()
    writer = RecordWriter({}, stream)
    for event in events:
        writer.take(event)
    writer.flush()
    found: list[Event] = []
    for line in stream.getvalue().splitlines()[1:]:
        seq, decoded = events_of(json.loads(line))
        assert seq == len(found)
        found += decoded
    assert found == events
    assert writer.events == len(events)


def test_a_record_replays_to_the_events_of_the_run(
    containers: dict[str, Container], tmp_path: Path
) -> None:
    from larql.runtime.observe.run import observe

    run = run_of(containers["gemma"], "production")
    sink, path = Events(), tmp_path / "r.jsonl"
    with create_record(path, force=False) as stream:
        found = observe(
            run, Extent(tuple(TOKENS), 3), everything(run), [sink], context=64,
            record=lambda: (path, stream),
        )  # fmt: skip
    reader = RecordReader(path)
    assert list(reader.events()) == sink.all
    assert reader.problems == []
    assert reader.receipt == found.receipt
    assert reader.header == json.loads(json.dumps(found.header))
    log = path.read_bytes().rsplit(b'{"kind":"receipt"', 1)[0]
    assert found.receipt.sha256 == hashlib.sha256(log).hexdigest()
    assert found.receipt.events == len(sink.all)
    assert found.receipt.positions == len(TOKENS) + 2


def test_a_record_names_no_time_no_path_and_no_thread(record: bytes) -> None:
    for word in (b"seconds", b"threads", b"chunk", b'"/', b"time", b"context"):
        assert word not in record.lower().replace(b"runtime", b"")


def test_the_header_says_what_the_log_is_a_function_of(containers: dict[str, Container]) -> None:
    run = run_of(containers["llama"], "production")
    extent = Extent((1, 2), 3)
    plain = header_of(run, extent, Declaration(), None, 8)
    assert plain["run_id"] == str(plain["provenance_fingerprint"])[:16]
    assert header_of(run, extent, Declaration(), "mine", 8)["run_id"] == "mine"
    others = [
        header_of(run, Extent((1, 3), 3), Declaration(), None, 8),
        header_of(run, Extent((1, 2), 4), Declaration(), None, 8),
        header_of(run, Extent((1, 2), 3, (7,)), Declaration(), None, 8),
        header_of(run, extent, everything(run), None, 8),
        header_of(run, extent, Declaration((Lens(run.prepared, [1]),)), None, 8),
        header_of(run, extent, Declaration((Lens(run.prepared, [1], tokens=[4]),)), None, 8),
        header_of(run_of(containers["llama"], "reference"), extent, Declaration(), None, 8),
        header_of(run_of(containers["llama"], "production q8"), extent, Declaration(), None, 8),
        header_of(run_of(containers["llama"], "production", 2), extent, Declaration(), None, 8),
        header_of(run_of(containers["llama3"], "production"), extent, Declaration(), None, 8),
    ]
    prints = [header["provenance_fingerprint"] for header in (plain, *others)]
    assert len(set(prints)) == len(prints)


def test_every_changed_byte_of_the_log_is_caught(record: bytes, tmp_path: Path) -> None:
    """Whatever byte is changed to a digit: the hash, or the line itself, tells."""
    receipt = record.rindex(b'{"kind":"receipt"')
    for at in range(0, receipt, 211):
        changed = bytearray(record)
        changed[at] = ord("7") if changed[at] != ord("7") else ord("8")
        try:
            reader, _ = read(tmp_path / "r.jsonl", bytes(changed))
        except RecordError:
            assert at < record.index(b"\n")
            continue
        assert reader.problems
        with pytest.raises(CheckFailed):
            reader.require_sound()


def _lines(record: bytes) -> list[bytes]:
    return record.splitlines(keepends=True)


def _forged(lines: list[bytes]) -> bytes:
    """Give changed lines a receipt that vouches for them."""
    log = b"".join(lines[:-1])
    return log + _sealed(json.loads(lines[-1]) | {"sha256": hashlib.sha256(log).hexdigest()})


def _sealed(receipt: dict[str, Any]) -> bytes:
    """A receipt's line that vouches for itself."""
    fields = {name: value for name, value in receipt.items() if name != "receipt_sha256"}
    own = hashlib.sha256(encode_line(fields)[:-1]).hexdigest()
    return encode_line({**fields, "receipt_sha256": own})


def _with(line: bytes, **fields: Any) -> bytes:
    return _sealed(json.loads(line) | fields)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda v: v[:3] + v[4:], "begins with event"),
        (lambda v: [v[0], v[2], v[1], *v[3:]], "begins with event"),
        (lambda v: [*v[:-2], v[-1]], "the receipt counts"),
        (lambda v: [*v, v[-2]], "follows the receipt"),
        (lambda v: [v[0], b"[]\n", *v[1:]], "line 2 is not a JSON object"),
        (lambda v: [v[0], b'{"kind":"fable","seq":0,"position":0}\n', *v[1:]], "unknown kind"),
        (lambda v: [v[0], v[1].replace(b'{"kind"', b'{"more":1,"kind"'), *v[2:]], "unknown field"),
        (lambda v: [v[0], v[1].replace(b'"carrier":[', b'"carrier":[1,'), *v[2:]], "unequal"),
        (lambda v: [v[0], v[1].replace(b'"position":0', b'"position":-1'), *v[2:]], "position"),
        (lambda v: [v[0], v[1].replace(b'"delta":[', b'"delta":["1",'), *v[2:]], "number or null"),
        (lambda v: [v[0], v[1].replace(b":[", b": [", 1), *v[2:]], "do not give its bytes again"),
        (lambda v: [v[0], b'{"kind":"position","seq":NaN}\n', *v[1:]], "is not JSON"),
        (lambda v: [v[0], v[1].replace(b'"delta":[', b'"delta":[1e999,'), *v[2:]], "is not JSON"),
        (lambda v: [*v[:-1], _with(v[-1], complete=False)], "ended before"),
        (lambda v: [*v[:-1], _with(v[-1], fired=[7])], "interventions fired [7] times"),
        (lambda v: [*v[:-1], v[-1].replace(b'"events"', b'"event"')], "is a receipt, but not"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: Any, problem: str, record: bytes, tmp_path: Path) -> None:
    """Even where the hash is right."""
    lines = change(_lines(record))
    forged = lines[-1].startswith(b'{"kind":"receipt","complete":true,"events"')
    data = _forged(lines) if forged else b"".join(lines)
    reader, _ = read(tmp_path / "r.jsonl", data)
    assert problem in reader.problems[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda receipt: receipt["environment"].update(numba="9.9.9"),
        lambda receipt: receipt["readers"]["lens"].update(head_passes=1000),
        lambda receipt: receipt.update(fired=[9]),
        lambda receipt: receipt.update(complete=False),
        lambda receipt: receipt.update(receipt_sha256="0" * 64),
    ],
)
def test_a_changed_receipt_is_noticed(change: Any, record: bytes, tmp_path: Path) -> None:
    *log, last = _lines(record)
    receipt = json.loads(last)
    change(receipt)
    reader, _ = read(tmp_path / "r.jsonl", b"".join(log) + encode_line(receipt))
    assert reader.problems[0].startswith("the receipt was changed")
    with pytest.raises(CheckFailed, match="receipt was changed"):
        reader.require_unchanged()


def test_a_receipt_in_other_bytes_is_noticed(record: bytes, tmp_path: Path) -> None:
    *log, last = _lines(record)
    spaced = last.replace(b'"complete":', b'"complete": ')
    twice = last.replace(b'{"kind"', b'{"fired":[3],"kind"')
    for line in (spaced, twice):
        reader, _ = read(tmp_path / "r.jsonl", b"".join(log) + line)
        assert reader.problems[0].startswith("the receipt was changed")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is not JSON"),
        (b"\x7fELF", "is not JSON"),
        (b"[1]\n", "not a JSON object"),
        (b'{"kind":"header","schema":"other"}\n', "no header of larql.run-record"),
        (b'{"kind":"header","schema":"larql.run-record","version":1}\n', "reads version 2"),
    ],
)
def test_other_files_are_no_records(data: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=problem):
        read(tmp_path / "r.jsonl", data)
    with pytest.raises(RecordError, match="cannot be read: No such file"):
        RecordReader(tmp_path / "absent")


def test_a_record_that_was_cut_is_read_to_its_last_whole_line(
    record: bytes, tmp_path: Path
) -> None:
    whole = _lines(record)
    _, events = read(tmp_path / "whole.jsonl", record)
    for cut in range(len(whole[0]) + 1, len(record), 997):
        reader, found = read(tmp_path / "r.jsonl", record[:cut])
        assert found == events[: len(found)]
        assert reader.receipt is None
        assert "has no receipt: the run that wrote it was killed" in reader.problems[0]


def test_a_failing_run_leaves_a_receipt_that_is_not_complete(
    containers: dict[str, Container], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from larql.runtime.observe.run import observe

    run = run_of(containers["llama"], "production")
    original, calls = run.prepared.backend.write, []

    def breaks(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(run.prepared.backend, "write", breaks)
    stream = io.BytesIO()
    with pytest.raises(KeyboardInterrupt):
        observe(
            run, Extent(tuple((TOKENS * 3)[:100])), Declaration(), [], context=100,
            record=lambda: (Path("memory"), stream),
        )  # fmt: skip
    reader, events = read(tmp_path / "r.jsonl", stream.getvalue())
    assert reader.receipt is not None and not reader.receipt.complete
    assert reader.problems == ["the run ended before it was complete; the receipt says so"]
    assert sum(isinstance(event, PositionDone) for event in events) == 64


KILLED = """
import os, signal, sys
from pathlib import Path
from larql.format.container import Container
from larql.runtime.observe.declaration import Declaration, Extent
from larql.runtime.observe.record import create_record
from larql.runtime.observe.run import observe
from larql.runtime.run import RunOptions, open_run

class Killer:
    positions = 0
    def take(self, event):
        pass
    def flush(self):
        self.positions += 1
        if self.positions == 3:
            os.kill(os.getpid(), signal.SIGKILL)

run = open_run(Container(Path(sys.argv[1])), RunOptions())
path = Path(sys.argv[2])
with create_record(path, force=False) as stream:
    observe(run, Extent(tuple(range(200))), Declaration(), [Killer()], context=200,
            record=lambda: (path, stream))
"""


def test_a_killed_run_leaves_what_it_had_done(
    containers: dict[str, Container], tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    command = [sys.executable, "-c", KILLED, str(containers["llama"].path), str(path)]
    process = subprocess.run(command, check=False, env=dict(os.environ))
    assert process.returncode == -signal.SIGKILL
    reader = RecordReader(path)
    events = list(reader.events())
    assert sum(isinstance(event, PositionDone) for event in events) == 192
    assert reader.problems[0].startswith("has no receipt")


def test_a_record_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("precious")
    with pytest.raises(OutputError, match="exists; give --force"):
        create_record(path, force=False)
    with pytest.raises(OutputError, match="parent directory does not exist"):
        create_record(tmp_path / "absent" / "r.jsonl", force=False)
    create_record(path, force=True).close()
    assert path.read_text() == ""


def test_a_line_is_the_same_bytes_after_reading() -> None:
    event = Readout(3, 4, "lens", {"top": [[1, 0.1, -2.5e-7]], "text": "é\u2028"})
    line = encode_line(line_of(7, event))
    assert line.count(b"\n") == 1
    assert events_of(json.loads(line)) == (7, [event])
    assert encode_line(line_of(7, events_of(json.loads(line))[1][0])) == line


def test_statistics_of_a_long_run_stay_small(
    containers: dict[str, Container], tmp_path: Path
) -> None:
    """A write costs about 20 bytes a position, whatever the model."""
    run = run_of(containers["llama"], "production")
    data, found = recorded(run, (TOKENS * 8)[:256], Declaration())
    writes = 1 + 2 * len(run.prepared.plan.layers)
    assert len(data) / found.receipt.positions < 160 + 24 * writes


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Name every value of a JSON document by the keys that lead to it."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value[:3])
    return [at, *(path for key, item in items for path in _paths(item, (*at, key)))]


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("new", [None, -1, 10**9, "x", [], {}, [[None, "embed"], ["1", "ffn"]]])
def test_wrong_values_are_refused_or_told_and_never_a_defect(
    new: Any, containers: dict[str, Container], tmp_path: Path
) -> None:
    """A hash that is right does not make a record sound: each value in turn is something else."""
    run = run_of(containers["llama"], "production")
    declared = Declaration(
        (Lens(run.prepared, [0, 1], tokens=[4], top=2),),
        basis=seeded_basis(2, 64, 0),
        interventions=(Intervention(WriteSite(0, "ffn"), None, "zero", "write"),),
    )
    lines = recorded(run, [1, 2], declared, generate=2)[0].splitlines()
    seen = set()
    for number, text in enumerate(lines):
        line = json.loads(text)
        if number and (line["kind"] in seen or seen.add(line["kind"])):
            continue
        for path in _paths(line):
            changed = _replaced(line, path, new)
            if number == 0 and isinstance(changed, dict) and "identity" in changed:
                identity = changed["identity"]
                changed = changed | {"provenance_fingerprint": fingerprint(identity)}
            made = [encode_line(json.loads(other)) for other in lines]
            made[number] = json.dumps(changed, separators=(",", ":")).encode() + b"\n"
            data = made[:-1] if number == len(lines) - 1 else [_forged(made)]
            path_of = tmp_path / "r.jsonl"
            try:
                reader, events = read(path_of, b"".join(data))
            except RecordError:
                continue
            final = FinalPosition()
            for event in events:
                final.take(event)
            summarize(reader.header, final, reader.receipt, None)
            view_of(reader.header, reader.receipt, events)


def test_the_fingerprint_is_checked(record: bytes, tmp_path: Path) -> None:
    first, rest = record.split(b"\n", 1)
    header = json.loads(first)
    header["identity"]["generate"] = 9
    with pytest.raises(RecordError, match="line 1 provenance_fingerprint: is not the hash"):
        read(tmp_path / "r.jsonl", encode_line(header) + rest)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b'"write":2', b'"write":9', "the run has 7 sites"),
        (b'"projection":[[', b'"projection":[[0,', "does not fit the basis"),
        (b'"ranks":[', b'"ranks":[1,', "not a readout of the lens"),
        (b'"top":[[', b'"top":[[', ""),
        (b'"values":{"top"', b'"values":{"pot"', "not a readout of the lens"),
    ],
)
def test_events_that_do_not_belong_to_the_header(
    old: bytes, new: bytes, problem: str, record: bytes, tmp_path: Path
) -> None:
    assert old in record
    lines = _lines(record.replace(old, new, 1))
    reader, _ = read(tmp_path / "r.jsonl", _forged(lines))
    assert (problem in reader.problems[0]) if problem else not reader.problems
