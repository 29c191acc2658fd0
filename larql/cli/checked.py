"""Checking a container, and telling what is wrong with it: what `verify` and `publish` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from larql.cli import render
from larql.cli.models import open_model
from larql.cli.output import Output
from larql.errors import CheckFailed, GenerationError, LarqlError, Refusal
from larql.format.closure import Defect
from larql.format.container import Container, verify_container
from larql.format.generation import Generation
from larql.format.index import INDEX_NAME
from larql.format.moe.presence import presence_of
from larql.format.progress import Progress
from larql.format.vindex2.layout import GATE

__all__ = ["check_document", "checked"]

More = Callable[[Container, Progress], list[Defect]]


def checked(
    model: str,
    output: Output,
    threads: int | None,
    source: str | None = None,
    more: More | None = None,
    only: Generation | None = None,
) -> Container:
    """Open the container that ``model`` leads to, and check every byte of it.

    Defects are the answer of the command: they are written to standard output.

    Parameters
    ----------
    model : str
    output : Output
    threads : int or None
        To hash with.
    source : str or None
        The checkpoint that ``more`` compares with, for the answer.
    more : callable or None
        A further check.
    only : Generation or None
        The one generation that it may be of.

    Raises
    ------
    CheckFailed
        If anything is wrong with it.
    LarqlError
        If there is no container to check.
    """
    try:
        container = open_model(model, output, only=only)
    except LarqlError as error:
        if isinstance(error, GenerationError | Refusal) or not _was_container(Path(model)):
            raise
        _report_index(Path(model), source, error, output)
    with render.progress(output) as progress:
        defects = verify_container(container, progress, threads)
        if more is not None:
            defects += more(container, progress)
    if not defects:
        return container
    if output.json:
        render.document(output, check_document(container, source, defects))
    for defect in [] if output.json else defects:
        render.line(render.printable(defect.line()))
    raise CheckFailed(
        f"{container.path}: {len(defects)} defect{'s' if len(defects) > 1 else ''} found"
    )


def check_document(
    container: Container, source: str | None, defects: Sequence[Defect]
) -> dict[str, object]:
    """Return what a check found, as JSON."""
    return {
        "container": container.path.absolute(),
        "fingerprint": container.fingerprint,
        "files": len(container.index.files),
        "operands": len(container.index.representations),
        "source": source,
        "ok": not defects,
        "defects": [{"where": d.where, "problem": d.problem, "place": d.place} for d in defects],
        "binds": None if defects else presence_of(container),
    }


def _was_container(path: Path) -> bool:
    """Tell a container with a damaged index from what never was one."""
    inside = (path / "segments").is_dir() or (path / GATE).is_file()
    return (path / INDEX_NAME).is_file() and inside


def _report_index(path: Path, source: str | None, error: LarqlError, output: Output) -> NoReturn:
    problem = str(error).removeprefix(f"{path / INDEX_NAME}: ").removeprefix(f"{path}: ")
    if output.json:
        render.document(
            output,
            {
                "container": path.absolute(),
                "source": source,
                "ok": False,
                "defects": [{"where": INDEX_NAME, "problem": problem, "place": None}],
            },
        )
    else:
        render.line(render.printable(f"{INDEX_NAME}: {problem}"))
    raise CheckFailed(f"{path}: 1 defect found; without its index nothing else can be checked")
