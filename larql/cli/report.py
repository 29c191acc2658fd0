"""``larql report``: draw a run record."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.options import Force
from larql.cli.output import output_of
from larql.errors import PlatformError, UsageError

if TYPE_CHECKING:
    from larql.report.contents import Contents
    from larql.report.ladder import Ladder

__all__ = ["command"]

RecordFile = Annotated[
    Path,
    typer.Argument(
        metavar="RUN.jsonl",
        help="A record that larql observe wrote, or a ladder.",
        show_default=False,
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Page to write: HTML that holds all it needs.",
        show_default=False,
    ),
]
Png = Annotated[
    Path | None,
    typer.Option(
        "--png",
        metavar="FILE",
        help="Picture to write: the lens and the curves of the last position.",
        show_default=False,
    ),
]
Svg = Annotated[
    Path | None,
    typer.Option("--svg", metavar="FILE", help="The same picture in lines.", show_default=False),
]


def command(
    ctx: typer.Context,
    record: RecordFile,
    page: Page = None,
    png: Png = None,
    svg: Svg = None,
    force: Force = False,
) -> None:
    """Draw a run record as a page, or as a picture.

    The page shows the lens by depth and position, log-probability and rank of the declared tokens
    over depth, norms, routing where there was any, and the provenance. It opens in any browser
    and fetches nothing. Pictures are drawn without a browser. The same record gives the same
    bytes. A record that was changed is not drawn (exit status 1); that of a killed run is, with
    a note. What `larql vindex3 ladder` wrote is drawn too: how near each depth is to the whole
    model, and what drafting with it would give.

    What draws is an extra: pip install 'larql-vindex3[report]'

    Examples
    --------
    larql report run.jsonl -o report.html

    larql report run.jsonl --png lens.png --svg lens.svg

    larql report ladder.json -o ladder.html
    """
    output = output_of(ctx)
    wanted = {
        name: path
        for name, path in (("page", page), ("png", png), ("svg", svg))
        if path is not None
    }
    _check_outputs(record, list(wanted.values()), force)
    _check_installed(wanted)
    from larql.format.atomic import write_file
    from larql.report.ladder import is_ladder, read_ladder

    notes: tuple[str, ...] = ()
    if is_ladder(record):
        ladder = read_ladder(record)
        drawn = {name: _drawn_ladder(ladder, name) for name in wanted}
    else:
        from larql.report.contents import read_contents

        contents = read_contents(record)
        notes = contents.notes
        drawn = {name: _drawn(contents, name) for name in wanted}
    for note in notes:
        render.warning(output, note)
    for name, path in wanted.items():
        with write_file(path) as temporary:
            temporary.write_bytes(drawn[name])
    if output.json:
        files = {
            name: {
                "path": path.absolute(),
                "bytes": len(drawn[name]),
                "sha256": hashlib.sha256(drawn[name]).hexdigest(),
            }
            for name, path in wanted.items()
        }
        render.document(output, {**files, "notes": notes})
    else:
        render.key_values(
            (name, f"{path}, {render.bytes_text(len(drawn[name]))}")
            for name, path in wanted.items()
        )


def _check_outputs(record: Path, paths: list[Path], force: bool) -> None:
    """Refuse output paths before any work is done."""
    from larql.format.atomic import check_output_file

    if not paths:
        raise UsageError("nothing to write; give -o, --png or --svg")
    resolved = [path.resolve() for path in paths]
    if len(set(resolved)) < len(resolved):
        raise UsageError("two outputs have the same path; give each its own")
    for path in paths:
        if path.exists() and record.exists() and path.samefile(record):
            raise UsageError(f"{path}: is the record itself; choose another path")
        check_output_file(path, force=force)


def _check_installed(wanted: dict[str, Path]) -> None:
    """Refuse before any work is done where what draws is missing."""
    from importlib.util import find_spec

    needed = {"page": "plotly", "png": "matplotlib", "svg": "matplotlib"}
    for name in wanted:
        if find_spec(needed[name]) is None:
            raise PlatformError(
                f"{needed[name]}, which draws reports, is not installed; "
                f"pip install 'larql-vindex3[report]'"
            )


def _drawn_ladder(ladder: Ladder, name: str) -> bytes:
    from larql.report.ladder import ladder_page, ladder_picture

    if name == "page":
        return ladder_page(ladder).encode("utf-8")
    return ladder_picture(ladder, "png" if name == "png" else "svg")


def _drawn(contents: Contents, name: str) -> bytes:
    if name == "page":
        from larql.report.page import page

        return page(contents).encode("utf-8")
    from larql.report.paper import picture

    return picture(contents, "png" if name == "png" else "svg")
