"""``larql verify``: check that a container's bytes are what its index says, and will bind."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.checked import check_document, checked
from larql.cli.models import tell
from larql.cli.options import Model, Threads
from larql.cli.output import Output, output_of
from larql.errors import UsageError
from larql.format.closure import Defect
from larql.format.container import Container
from larql.format.generation import Generation
from larql.format.moe.presence import presence_of
from larql.format.progress import Progress
from larql.format.source.locate import Located, locate

__all__ = ["command"]

SourceOption = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="SRC",
        help=(
            "Also prove that the container holds what this checkpoint holds, by compiling it "
            "again and hashing both ends."
        ),
        show_default=False,
    ),
]


def command(
    ctx: typer.Context, model: Model, source: SourceOption = None, threads: Threads = None
) -> None:
    """Check a container's bytes, and whether it will run.

    Every file is hashed, the graph is read, and each operand of each operation is looked up with
    its shape and encoding; nothing is executed. Exit status 1 means that something is wrong; each
    defect is one line. The output is the same on every run. What vouches for the files is
    `index.json`; what vouches for that is the fingerprint, its hash, which a copy must share.

    Examples
    --------
    larql verify model.vindex3

    larql verify model.vindex3 --source model.gguf
    """
    output = output_of(ctx)
    more = None if source is None else partial(_compare, _locate(source, output))
    # Only VINDEX3 records which bytes of the checkpoint an operand was made of.
    only = None if source is None else Generation.VINDEX3
    container = checked(model, output, threads, source, more, only)
    if output.json:
        render.document(output, check_document(container, source, []))
        return
    index = container.index
    render.line(f"{len(index.files)} files have the recorded sizes and hashes")
    found = presence_of(container)
    others = len(index.representations) - len(found.in_part)
    render.line(f"{others} operands are present and will bind")
    if found.in_part:
        runs = sorted({run for part in found.in_part for run in part.experts})
        held = ", ".join(f"{first}:{end}" for first, end in runs)
        render.line(
            f"{len(found.in_part)} operands of experts are here in part, experts {held} of "
            f"{found.in_part[0].population}; by itself the container runs what chooses among these"
        )
    if found.elsewhere:
        where = "declared to be elsewhere" if index.profiles else "of a higher level"
        render.line(
            f"{len(found.elsewhere)} operands are {where}, {found.elsewhere[0]} "
            f"first; what reads them is refused here"
        )
    if source is not None:
        render.line("the source compiles to this graph and holds these bytes")
    render.line(f"fingerprint {container.fingerprint}")


def _locate(source: str, output: Output) -> Located:
    with render.progress(output) as progress:
        located = locate(source, progress=progress)
    tell(output, located.notes)
    if located.kind != "checkpoint":
        raise UsageError(f"{source}: is a container; --source takes a checkpoint")
    return located


def _compare(located: Located, container: Container, progress: Progress) -> list[Defect]:
    from larql.format.source.checkpoint import open_checkpoint
    from larql.format.source.compare import compare_with_source

    with open_checkpoint(located.path) as checkpoint:
        return compare_with_source(container, checkpoint, progress)
