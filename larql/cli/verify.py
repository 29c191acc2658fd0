"""``larql verify``: check that a container's bytes are what its index says, and will bind."""

from __future__ import annotations

from typing import Annotated

import typer

from larql.cli import render
from larql.cli.models import open_model
from larql.cli.options import Model
from larql.cli.output import output_of
from larql.errors import CheckFailed, UsageError
from larql.format.container import verify_container
from larql.format.source.locate import locate

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


def command(ctx: typer.Context, model: Model, source: SourceOption = None) -> None:
    """Check a container's bytes, and whether it will run.

    Every file is hashed, the graph is read, and each operand of each operation is looked up with
    its shape and encoding; nothing is executed. Exit status 1 means that something is wrong; each
    defect is one line. The output is the same on every run.

    Examples
    --------
    larql verify model.vindex3

    larql verify model.vindex3 --source model.gguf
    """
    output = output_of(ctx)
    container = open_model(model, output)
    with render.progress(output) as progress:
        defects = verify_container(container, progress)
        if source is not None:
            from larql.format.source.checkpoint import open_checkpoint
            from larql.format.source.compare import compare_with_source

            located = locate(source, progress=progress)
            if located.kind != "checkpoint":
                raise UsageError(f"{source}: is a container; --source takes a checkpoint")
            with open_checkpoint(located.path) as checkpoint:
                defects += compare_with_source(container, checkpoint, progress)
    operands = len(container.index.representations)
    if output.json:
        render.document(
            output,
            {
                "container": container.path.absolute(),
                "fingerprint": container.fingerprint,
                "files": len(container.index.files),
                "operands": operands,
                "source": source,
                "ok": not defects,
                "defects": [{"where": d.where, "problem": d.problem} for d in defects],
            },
        )
    else:
        for defect in defects:
            render.line(render.printable(defect.line()))
        if not defects:
            render.line(f"{len(container.index.files)} files have the recorded sizes and hashes")
            render.line(f"{operands} operands are present and will bind")
            if source is not None:
                render.line("the source compiles to this graph and holds these bytes")
    if defects:
        raise CheckFailed(
            f"{container.path}: {len(defects)} defect{'s' if len(defects) > 1 else ''} found"
        )
