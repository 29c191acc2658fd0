from __future__ import annotations

import enum
import json
import math
import os
import pty
import re
import subprocess
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.cli import render
from larql.cli.output import Output


def written(value: object, capsys: pytest.CaptureFixture[str]) -> object:
    render.document(Output(json=True), value)

    def refuse(token: str) -> object:
        raise AssertionError(f"{token} is not strict JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


class Kind(enum.Enum):
    ONE = "one"


@dataclass(frozen=True)
class Pair:
    left: int
    right: Path


def test_what_json_has_no_word_for_becomes_null(capsys: pytest.CaptureFixture[str]) -> None:
    values = [math.nan, math.inf, -math.inf, np.float32("nan"), np.array([np.inf, 1.5])]
    assert written({"values": values}, capsys) == {"values": [None] * 4 + [[None, 1.5]]}


def test_numpy_and_our_own_types_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    value = {
        "count": np.int64(3),
        "flag": np.bool_(True),
        "half": np.float32(0.5),
        "ids": np.arange(3, dtype=np.uint32),
        "kind": Kind.ONE,
        "pair": Pair(1, Path("a/b")),
        "none": None,
        7: (1, 2),
    }
    assert written(value, capsys) == {
        "count": 3,
        "flag": True,
        "half": 0.5,
        "ids": [0, 1, 2],
        "kind": "one",
        "pair": {"left": 1, "right": "a/b"},
        "none": None,
        "7": [1, 2],
    }


def test_a_name_that_is_not_text_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    # A lone surrogate escape would be accepted by some parsers and refused by others.
    assert written({"\udcff": Path("a\udcff")}, capsys) == {r"\udcff": r"a\udcff"}


def test_numpy_scalars_need_no_numpy_import() -> None:
    program = (
        "import sys; from larql.cli import render; from larql.cli.output import Output\n"
        "render.document(Output(json=True), {'a': 1.5}); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize("value", [object(), {1.5: 2}, {True: 1}, {None: 1}, {1, 2}])
def test_what_has_no_json_form_is_a_defect(value: object) -> None:
    with pytest.raises(TypeError):
        render.document(Output(json=True), value)


def test_a_second_document_is_a_defect(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(json=True)
    render.document(output, 1)
    with pytest.raises(RuntimeError, match="one JSON document"):
        render.document(output, 2)
    assert capsys.readouterr().out == "1\n"


@given(st.text(st.characters(exclude_categories=())))
def test_printable_text_holds_nothing_a_terminal_obeys(text: str) -> None:
    shown = render.printable(text)
    assert not any(unicodedata.category(character) in {"Cc", "Cs"} for character in shown)
    assert "\u202e" not in shown
    assert all(character in shown for character in text if character.isalnum())


def test_printable_keeps_what_it_is_asked_to() -> None:
    assert render.printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"
    assert render.printable("héllo 日本 🦙") == "héllo 日本 🦙"


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_strict_json_and_harmless(text: str) -> None:
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as stream:
        render.document(Output(json=True), [text])
    shown = stream.getvalue()
    shown.encode("utf-8")
    assert not any(unicodedata.category(c) == "Cc" for c in shown if c != "\n")
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert json.loads(shown) == [text]


def test_a_table_in_a_pipe_is_aligned_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    render.table(["name", "bytes"], [["日本", 5], ["abc", 12345], [long, None]], right=["bytes"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name" + " " * 296 + "  bytes"
    assert lines[1] == "日本" + " " * 296 + "      5"
    assert lines[2] == "abc" + " " * 297 + "  12345"
    assert lines[3] == long


def test_a_table_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(["name"], [["a\x1b[2J\nb"]])
    assert capsys.readouterr().out == "name\na\\x1b[2J\\nb\n"


def test_key_values_leave_out_what_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    render.key_values([("name", "a\x07"), ("parameters", 12), ("licence", None)])
    assert capsys.readouterr().out == "name        a\\x07\nparameters  12\n"


def test_quiet_silences_notices_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    render.notice(Output(), "extracting\x1b")
    render.warning(Output(), "slow")
    render.notice(Output(quiet=True), "extracting")
    render.warning(Output(quiet=True), "slow")
    assert capsys.readouterr() == ("", "larql: extracting\\x1b\nlarql: warning: slow\n")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (98_362_432, "98.4 MB"),
        (999_960, "1.0 MB"),
        (25_276_502_016, "25.3 GB"),
        (2 * 10**15, "2000.0 TB"),
    ],
)
def test_bytes_for_people(nbytes: int, text: str) -> None:
    assert render.bytes_text(nbytes) == text


PROGRESS = """
import sys
from larql.cli import render
from larql.cli.output import Output
with render.progress(Output({flags})) as bar:
    bar.start("hashing [red]x[/red]", 100)
    bar.advance(60)
    bar.advance(-10)
    bar.finish()
    bar.start("copying", None)
    bar.advance(5)
    {last}
"""


def on_a_terminal(flags: str, last: str, term: str = "xterm") -> bytes:
    """Run the program above with a terminal as standard error; give what it wrote there."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRESS.format(flags=flags, last=last)],
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**os.environ, "TERM": term},
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not part:
            break
        seen += part
    os.close(leader)
    assert process.communicate()[0] == b""
    return seen


def test_progress_is_drawn_on_a_terminal_and_the_terminal_restored() -> None:
    seen = on_a_terminal("", "bar.finish()")
    assert b"hashing [red]x[/red]" in seen
    assert b"copying" in seen
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l") >= 0  # cursor shown again


def test_nothing_is_drawn_or_loaded_before_there_is_progress() -> None:
    program = (
        "import sys; from larql.cli import render; from larql.cli.output import Output\n"
        "with render.progress(Output()) as bar:\n"
        "    print('rich' in sys.modules)\n"
        "    bar.finish()\n"
    )
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    )
    assert process.communicate()[0] == "False\n"
    os.set_blocking(leader, False)
    os.close(follower)
    with pytest.raises(OSError):
        os.read(leader, 1)
    os.close(leader)


def test_progress_restores_the_terminal_when_work_is_interrupted() -> None:
    seen = on_a_terminal("", "raise KeyboardInterrupt")
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l") >= 0


@pytest.mark.parametrize("flags", ["quiet=True", "json=True"])
def test_progress_is_silent_when_asked(flags: str) -> None:
    assert on_a_terminal(flags, "bar.finish()") == b""


def test_progress_is_silent_where_it_cannot_be_drawn() -> None:
    assert on_a_terminal("", "bar.finish()", term="dumb") == b""
    process = subprocess.run(
        [sys.executable, "-c", PROGRESS.format(flags="", last="bar.finish()")],
        capture_output=True,
        check=True,
    )
    assert process.stderr == b""


def table_on_a_terminal(rows: str) -> str:
    leader, follower = pty.openpty()
    program = (
        f"import sys; from larql.cli import render; render.table(['name', 'n'], {rows}, ['n'])\n"
        "print('rich' in sys.modules, file=sys.stderr)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=follower,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "60"},
    )
    loaded = process.communicate()[1].strip()
    text = os.read(leader, 65536).decode()
    os.close(follower)
    os.close(leader)
    return f"{loaded}\n{text}"


def test_a_table_that_fits_a_terminal_is_drawn_without_rich() -> None:
    assert table_on_a_terminal("[['[red]', 12], ['b', 3]]").splitlines() == [
        "False",
        "\x1b[1mname    n\x1b[0m",
        "[red]  12",
        "b       3",
    ]


def test_a_table_on_a_terminal_folds_and_takes_no_markup() -> None:
    text = table_on_a_terminal("[['[red]' + 'x' * 100, 1]]")
    assert "[red]" in text
    assert text.count("x") == 100
    plain = re.sub(r"\x1b\[\d+m", "", text)
    assert max(map(len, plain.splitlines())) == 60
