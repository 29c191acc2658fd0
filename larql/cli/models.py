"""What commands share: opening the model that an argument names, starting it, telling of both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from larql.cli import render
from larql.cli.output import Output
from larql.format.container import Container
from larql.format.source.resolve import resolve

if TYPE_CHECKING:
    from larql.runtime.run import Run, RunOptions

__all__ = ["open_model", "start_run", "tell"]


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


def start_run(container: Container, options: RunOptions, output: Output) -> Run:
    """Prepare a container for execution; say so if kernels must be compiled first.

    Raises
    ------
    LarqlError
        As :func:`larql.runtime.run.open_run` does.
    """
    from larql.runtime.run import open_run
    from larql.runtime.warm import is_warm, warm

    run = open_run(container, options)
    if not is_warm(run):
        render.notice(output, "compiling the kernels for this machine, once; it can take a minute")
        render.notice(output, f"compiled in {warm(run):.1f} s")
    return run
