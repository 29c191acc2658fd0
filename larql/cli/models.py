"""What commands share: opening the model that an argument names, starting it, telling of both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from larql.cli import render
from larql.cli.output import Output
from larql.errors import GenerationError
from larql.format.container import Container
from larql.format.generation import Generation
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


def open_model(name: str, output: Output, *, only: Generation | None = None) -> Container:
    """Open the container that ``name`` leads to, extracting a source into the cache once.

    Raises
    ------
    GenerationError
        If what was asked for works on one generation only, and this is of the other.
    LarqlError
        As :func:`~larql.format.source.resolve.resolve` does.
    """
    with render.progress(output) as progress:
        resolved = resolve(name, progress)
    tell(output, resolved.notes)
    found = resolved.container.generation
    if only is not None and found is not only:
        raise GenerationError(
            f"{name}: is of generation {found.value}, and what was asked for works on "
            f"{only.value} alone; extract the checkpoint into one: larql extract SRC -o OUT"
        )
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
