"""What commands share: opening the model that an argument names, and telling what was done."""

from __future__ import annotations

from collections.abc import Iterable

from larql.cli import render
from larql.cli.output import Output
from larql.format.container import Container
from larql.format.source.resolve import resolve

__all__ = ["open_model", "tell"]


def tell(output: Output, notes: Iterable[str]) -> None:
    """Write notes to standard error; those that begin with ``warning:`` as warnings."""
    for note in notes:
        if note.startswith("warning: "):
            render.warning(output, note.removeprefix("warning: "))
        else:
            render.notice(output, note)


def open_model(name: str, output: Output) -> Container:
    """Open the container that ``name`` leads to, extracting a source into the cache once."""
    with render.progress(output) as progress:
        resolved = resolve(name, progress)
    tell(output, resolved.notes)
    return resolved.container
