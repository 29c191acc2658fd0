"""How answers, notices and progress reach the user; the only module that uses rich.

Standard output carries the answer: text from :func:`line`, :func:`table` and :func:`key_values`,
or the one document of :func:`document` when ``--json`` was given. Everything else goes to standard
error. Text from files and from the user is passed through :func:`printable`, so that a model's
name cannot move the cursor or recolour the terminal.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, TextIO

from larql.errors import OutputError
from larql.format.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from larql.cli.output import Output

__all__ = [
    "bytes_text",
    "document",
    "key_values",
    "line",
    "notice",
    "plain",
    "printable",
    "progress",
    "table",
    "warning",
]

# Formatting characters that reorder or break displayed text: bidirectional controls, line and
# paragraph separators. The control characters proper (C0, DEL, C1) are found by category.
_MISLEADING = frozenset("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def printable(text: str, keep: str = "") -> str:
    r"""Replace control and bidirectional characters by visible escapes.

    Parameters
    ----------
    text : str
        Any text, also with lone surrogates.
    keep : str
        Characters to let through, e.g. ``"\n\t"`` for generated text.

    Returns
    -------
    str
        The text with ``\x1b``, ``\n``, ``\u202e`` and their like spelled out.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character in keep or not _is_unsafe(character) else _escaped(character)
        for character in text
    )


def _is_unsafe(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs"} or character in _MISLEADING


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def line(text: str = "") -> None:
    """Write one line of an answer.

    Parameters
    ----------
    text : str
        The line; it is written as it is, so text that came from a file goes through
        :func:`printable` first.
    """
    if sys.stdout is None:
        raise OutputError("standard output is closed, so the answer has nowhere to go; open it")
    print(text, file=sys.stdout)


def document(output: Output, value: object) -> None:
    """Write the one JSON document of a run.

    Parameters
    ----------
    output : Output
        How this run answers; it remembers that the answer has been given.
    value : object
        Mappings, sequences, strings, numbers, paths, enumerations, dataclasses and numpy scalars
        or arrays. Not-a-number and the infinities become null: JSON has no word for them.

    Raises
    ------
    RuntimeError
        If the document has been written before: two documents are not a document.
    TypeError
        If a value has no JSON form.
    """
    if output.answered:
        raise RuntimeError("a command may write only one JSON document")
    text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False, indent=2)
    output.answered = True
    # json escapes C0; the rest of what a terminal obeys is escaped here, which stays valid JSON.
    line(
        "".join(
            f"\\u{ord(character):04x}" if _is_unsafe(character) and character != "\n" else character
            for character in text
        )
    )


def plain(value: object) -> object:
    """Return a value as JSON has it; see :func:`document`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        # A lone surrogate (a file name that is not UTF-8) has no place in strict JSON.
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return plain(str(value))
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    # A numpy value can only be here if numpy has been imported, so this never imports it.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _key(key: object) -> str:
    found = plain(key)
    if isinstance(found, bool) or not isinstance(found, (str, int)):
        raise TypeError(f"{key!r} cannot be a key of a JSON object")
    return str(found)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()
) -> None:
    """Write rows in aligned columns: folded to a terminal's width, whole in a pipe.

    Parameters
    ----------
    columns : sequence of str
        Headings.
    rows : iterable of sequences
        One cell per column; ``None`` is an empty cell, everything else is shown by ``str``.
    right : sequence of str
        Headings of the columns to align to the right: numbers.
    """
    cells = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
    lines = list(_aligned([list(columns), *cells], [name in right for name in columns]))
    if not _is_terminal(sys.stdout):
        for text in lines:
            line(text)
    elif max(map(_width, lines)) <= shutil.get_terminal_size().columns:
        # Without rich, whose import takes as long as a short command.
        line(f"{_BOLD}{lines[0]}{_PLAIN}")
        for text in lines[1:]:
            line(text)
    else:
        _rich_table(columns, cells, right)


def key_values(pairs: Iterable[tuple[str, object]]) -> None:
    """Write facts, one a line: a name, then its value.

    Parameters
    ----------
    pairs : iterable of (str, object)
        A value of ``None`` leaves its line out.
    """
    rows = [[name, printable(str(value))] for name, value in pairs if value is not None]
    for text in _aligned(rows, [False, False]):
        line(text)


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    widths = [max((_width(row[i]) for row in rows), default=0) for i in range(len(right))]
    for row in rows:
        padded = [
            " " * (width - _width(cell)) + cell if flush else cell + " " * (width - _width(cell))
            for cell, width, flush in zip(row, widths, right, strict=True)
        ]
        yield "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Count terminal columns: wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(character) or unicodedata.category(character) == "Cf"
        else 2
        if unicodedata.east_asian_width(character) in "WF"
        else 1
        for character in text
    )


def _rich_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        drawn.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in cells:
        # Text, not str: brackets in a name are not markup.
        drawn.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, highlight=False).print(drawn)


def notice(output: Output, text: str) -> None:
    """Tell something that is worth knowing, on standard error, unless ``--quiet``.

    Parameters
    ----------
    output : Output
        How this run answers.
    text : str
        One line.
    """
    if not output.quiet:
        print(f"larql: {printable(text)}", file=sys.stderr)


def warning(output: Output, text: str) -> None:
    """Warn on standard error, unless ``--quiet``.

    Parameters
    ----------
    output : Output
        How this run answers.
    text : str
        One line: what is not as it should be, and what to do.
    """
    notice(output, f"warning: {text}")


def bytes_text(nbytes: int) -> str:
    """Spell a number of bytes for people, in decimal units.

    Parameters
    ----------
    nbytes : int
        Number of bytes.

    Returns
    -------
    str
        For example ``"98.4 MB"``.
    """
    if nbytes < 1000:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


class _Bar:
    """Progress drawn on a terminal, one stage at a time; nothing before the first stage."""

    def __init__(self) -> None:
        self._drawn: RichProgress | None = None
        self._stage: TaskID | None = None

    def start(self, label: str, total: int | None) -> None:
        self.finish()
        if self._drawn is None:
            self._drawn = _drawn_progress()
            self._drawn.start()
        self._stage = self._drawn.add_task(printable(label), total=total)

    def advance(self, n: int) -> None:
        if self._drawn is not None and self._stage is not None:
            self._drawn.advance(self._stage, n)

    def finish(self) -> None:
        if self._drawn is not None and self._stage is not None:
            self._drawn.remove_task(self._stage)
            self._stage = None

    def close(self) -> None:
        """Take what is drawn off the terminal."""
        if self._drawn is not None:
            self._drawn.stop()


@contextmanager
def progress(output: Output) -> Iterator[Progress]:
    """Give long work something to report to.

    Drawn on standard error when that is a terminal; silent in a pipe, with ``--quiet`` and with
    ``--json``. The terminal is restored however the work ends.

    Parameters
    ----------
    output : Output
        How this run answers.

    Yields
    ------
    Progress
    """
    if output.quiet or output.json or not _is_terminal(sys.stderr):
        yield SilentProgress()
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()


def _drawn_progress() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as DrawnProgress

    return DrawnProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )


def _is_terminal(stream: TextIO | None) -> bool:
    # A closed standard stream is None; a "dumb" terminal cannot move its cursor.
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
