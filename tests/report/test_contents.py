"""What a report takes from a record, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from larql.errors import CheckFailed, RecordError
from larql.report.contents import read_contents, shortened, site_ticks
from larql.runtime.observe.sites import WriteSite
from tests.builders.records import EXPERTS, TEXTS, header_of, write_record


def test_a_whole_record_has_no_notes(tmp_path: Path) -> None:
    contents = read_contents(write_record(tmp_path / "r.jsonl"))
    assert contents.notes == ()
    assert contents.positions == (0, 1, 2, 3)
    assert contents.name(2) == repr(TEXTS["2"])
    assert (contents.name(7), contents.name(-1)) == ("7", "none")
    assert contents.prompt() == repr("".join(TEXTS[str(token)] for token in range(4)))
    assert contents.generated() == "' cat'"


def test_provenance_is_everything_the_header_and_the_receipt_say(tmp_path: Path) -> None:
    long = [n % 7 for n in range(100)]
    contents = read_contents(write_record(tmp_path / "r.jsonl", tokens=long))
    told = dict(contents.provenance)
    header = header_of(long, (2, 4))
    assert told["provenance"] == header["provenance_fingerprint"]
    assert told["log sha256"] == contents.view.receipt.sha256  # type: ignore[union-attr]
    assert told["identity.container.model"] == "tiny <i>model</i>"
    assert told["identity.observed.readers.lens.tokens"] == "[2, 4]"
    assert told["identity.observed.basis"] == "null"
    assert told["environment.tool"] == "larql"
    assert told["readers.lens.head_passes"] == "1"
    assert told["identity.tokens"].endswith("… (100 in all; the record holds them)")
    assert contents.prompt().endswith(" … (100 tokens)")


def test_a_killed_run_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    contents = read_contents(write_record(tmp_path / "r.jsonl", ending="killed"))
    assert contents.positions == (0, 1, 2)
    (note,) = contents.notes
    assert "no receipt" in note and "3 complete positions" in note
    assert contents.prompt() == "0, 1, 2, 3"


def test_a_run_that_failed_is_read_with_a_note(tmp_path: Path) -> None:
    contents = read_contents(write_record(tmp_path / "r.jsonl", ending="failed"))
    assert contents.notes == ("The run ended before it was complete; its receipt says so.",)


def test_what_the_lens_could_not_read_is_told(tmp_path: Path) -> None:
    contents = read_contents(write_record(tmp_path / "r.jsonl", unread=(1, 2)))
    assert contents.notes == (
        "The lens failed, and what it could not read is left out: position 1, 2.ffn: <odd>.",
    )


@pytest.mark.parametrize(
    ("found", "wrong", "problem"),
    [
        (b'"token":2}', b'"token":5}', "the log was changed"),
        (b'"kind":"end"', b'"kind":"odd"', "unknown kind"),
        (b'"kind":"receipt"', b'"kind":"receive"', "line"),
    ],
)
def test_a_changed_record_is_refused(
    found: bytes, wrong: bytes, problem: str, tmp_path: Path
) -> None:
    path = write_record(tmp_path / "r.jsonl")
    data = path.read_bytes()
    assert data.count(found) == 1
    path.write_bytes(data.replace(found, wrong))
    with pytest.raises(CheckFailed, match=problem):
        read_contents(path)


def test_a_changed_record_of_a_failed_run_is_refused(tmp_path: Path) -> None:
    """That the run ended early excuses nothing else."""
    path = write_record(tmp_path / "r.jsonl", ending="failed")
    path.write_bytes(path.read_bytes().replace(b'"token":2}', b'"token":5}'))
    with pytest.raises(CheckFailed, match="the log was changed"):
        read_contents(path)


def test_routing_is_counted(tmp_path: Path) -> None:
    routing = read_contents(write_record(tmp_path / "r.jsonl", routed=True)).routing
    assert routing is not None
    assert list(map(str, routing.sites)) == ["1.ffn", "2.ffn"]
    assert routing.counts.tolist() == [[2, 1, 1, 4]] * 2
    assert routing.positions.tolist() == [4, 4]
    assert routing.weights.tolist() == [[0.25, 0.25, 0.25, 0.75]] * 2
    assert routing.margins.tolist() == [0.25, 0.25]
    assert read_contents(write_record(tmp_path / "plain.jsonl")).routing is None


def test_routing_of_a_position_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r.jsonl", routed=True, ending="killed")
    routing = read_contents(path).routing
    assert routing is not None and routing.positions.tolist() == [3, 3]


def test_routing_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r.jsonl", routed=True, experts=EXPERTS - 1)
    with pytest.raises(RecordError, match=r"routing of position 0 at 1\.ffn does not fit its 3"):
        read_contents(path)


def test_a_record_without_a_readout_has_no_lens(tmp_path: Path) -> None:
    assert read_contents(write_record(tmp_path / "r.jsonl", declared=None)).lens is None


def test_ticks_name_ends_of_layers_and_the_last_always() -> None:
    blocks = [WriteSite(k, site) for k in range(7) for site in ("attention", "ffn")]
    sites = [WriteSite(None, "embed"), *blocks]
    assert site_ticks(sites, 99)[1] == ["embed", *map(str, range(7))]
    assert site_ticks(sites, 4) == ([2, 6, 10, 14], ["0", "2", "4", "6"])


def test_texts_are_cut_visibly() -> None:
    assert (shortened("abc", 3), shortened("abcd", 3)) == ("abc", "ab…")
