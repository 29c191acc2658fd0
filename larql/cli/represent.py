"""``larql represent``: a container with further representations of what it holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.models import open_model
from larql.cli.options import Force, Model
from larql.cli.output import output_of
from larql.errors import UsageError
from larql.format.generation import Generation

__all__ = ["command"]

Out = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="DIR", help="Container to create.", show_default=False),
]
Pack = Annotated[
    bool,
    typer.Option(
        "--pack",
        help="Add the matrices with the blocks of 16 rows interleaved.",
        show_default=False,
    ),
]


def command(
    ctx: typer.Context,
    model: Model,
    output_path: Out,
    pack: Pack = False,
    force: Force = False,
) -> None:
    """Write a container that holds further representations.

    The new container holds all that MODEL holds, linked where the file system allows it, and beside
    it, with --pack, its quantised matrices in the order in which wide vectors read them. They are
    the same bits in another order: each is unpacked again and compared while it is written, and
    `larql verify` does so at any time. The profile `packed` selects them; without it nothing
    changes. Matrices whose rows are not a multiple of 16, vectors, floats and experts stay as they
    are, and are listed.

    Examples
    --------
    larql represent model.vindex3 -o packed.vindex3 --pack

    larql exec packed.vindex3 --profile packed --prompt "The capital of France is"
    """
    output = output_of(ctx)
    if not pack:
        raise UsageError(
            "no representation is asked for; give --pack, the only one that this build writes"
        )
    container = open_model(model, output, only=Generation.VINDEX3)
    from larql.format.represent import PACKED, pack_container

    with render.progress(output) as progress:
        made = pack_container(container, output_path, force=force, progress=progress)
    encodings = Counter(value.encoding.name for value in made.packed.values())
    if output.json:
        render.document(
            output,
            {
                "path": made.path.absolute(),
                "fingerprint": made.fingerprint,
                "container": container.fingerprint,
                "bytes": made.nbytes,
                "added_bytes": made.added,
                "profile": PACKED,
                "packed": {name: value.encoding.name for name, value in made.packed.items()},
                "not_packed": dict(made.left),
            },
        )
        return
    render.key_values(
        [
            ("container", made.path),
            ("size", render.bytes_text(made.nbytes)),
            ("added", render.bytes_text(made.added)),
            ("fingerprint", made.fingerprint),
            ("profile", PACKED),
            ("packed", ", ".join(f"{count} {name}" for name, count in sorted(encodings.items()))),
        ]
    )
    for reason, count in Counter(made.left.values()).items():
        operands = "1 operand" if count == 1 else f"{count} operands"
        render.line(f"not packed: {operands}: {render.printable(reason)}")
