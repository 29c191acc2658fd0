"""``larql reconstruct``: write the checkpoint back that a container was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.models import open_model
from larql.cli.options import Force, Model
from larql.cli.output import output_of
from larql.format.generation import Generation

__all__ = ["command"]

Out = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="DIR", help="Checkpoint to create.", show_default=False),
]


def command(ctx: typer.Context, model: Model, output_path: Out, force: Force = False) -> None:
    """Write a container's checkpoint back.

    Tensors get the names, shapes and encodings that they had in the checkpoint, from the first
    representation of each operand, whatever a profile selects. What was carried is hashed and
    compared with the checkpoint's own bytes; what was re-encoded is decoded, and called
    approximate. `reconstruction.json` beside the weights says what is what, and which tensors of
    the checkpoint the container never carried. Only checkpoints in safetensors can be written.

    Examples
    --------
    larql reconstruct model.vindex3 -o checkpoint
    """
    output = output_of(ctx)
    container = open_model(model, output, only=Generation.VINDEX3)
    from larql.format.source.reconstruct import reconstruct

    with render.progress(output) as progress:
        made = reconstruct(container, output_path, force=force, progress=progress)
    if not made.configuration:
        render.warning(
            output,
            "the container carries no configuration, so there is no config.json; put the "
            "checkpoint's own beside the weights",
        )
    if made.left:
        render.warning(output, f"{len(made.left)} tensors were never carried and are not written")
    if output.json:
        render.document(
            output,
            {
                "path": made.path.absolute(),
                "container": container.fingerprint,
                "bytes": made.nbytes,
                "authority": made.authority.document(),
                "recipes": dict(made.recipes),
                "approximate": list(made.approximate),
                "left": dict(made.left),
                "configuration": made.configuration,
            },
        )
        return
    recipes = ", ".join(f"{count} by {name}" for name, count in made.recipes.items())
    render.key_values(
        [
            ("checkpoint", made.path),
            ("size", render.bytes_text(made.nbytes)),
            ("authority", made.authority.level),
            ("tensors", recipes),
            ("approximate", f"{len(made.approximate)} tensors" if made.approximate else None),
        ]
    )
    for name, why in made.left.items():
        render.line(f"not written: {render.printable(name)} ({render.printable(why)})")
