"""``larql extract``: compile a checkpoint into a container."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.models import tell
from larql.cli.options import Force, Source
from larql.cli.output import output_of
from larql.errors import UnsupportedRefusal, UsageError
from larql.format.source.locate import locate

__all__ = ["command"]


class Generation(StrEnum):
    """The two generations of containers."""

    V3 = "v3"
    V2 = "v2"


class Quant(StrEnum):
    """Encodings that matrices can be re-encoded to."""

    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_K = "q4_k"
    Q6_K = "q6_k"
    MXFP4 = "mxfp4"


Out = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="OUT", help="Container to create.", show_default=False),
]
GenerationOption = Annotated[
    Generation,
    typer.Option(
        "--generation", metavar="NAME", help="v3 (VINDEX3); this build does not write v2."
    ),
]
QuantOption = Annotated[
    Quant | None,
    typer.Option(
        "--quant",
        metavar="ENCODING",
        help=(
            "Re-encode matrices to q8_0, q4_0, q4_k, q6_k or mxfp4; a matrix whose rows do not "
            "hold whole blocks is stored in the next wider encoding that fits, and that is "
            "recorded."
        ),
        show_default="carry every byte as it is",
    ),
]


def command(
    ctx: typer.Context,
    source: Source,
    output_path: Out,
    generation: GenerationOption = Generation.V3,
    quant: QuantOption = None,
    force: Force = False,
) -> None:
    """Compile a checkpoint into a container.

    The model's computation is judged once and written down; afterwards the checkpoint is not
    needed. Tensors are streamed, and the container appears whole or not at all. A configuration
    key that may change what the model computes and that is not understood is refused by name.

    Examples
    --------
    larql extract model.gguf -o model.vindex3

    larql extract hf://owner/name -o model.vindex3 --quant q8_0
    """
    output = output_of(ctx)
    if generation is Generation.V2:
        raise UnsupportedRefusal(
            "--generation v2: this build writes VINDEX3 containers only; leave the option out"
        )
    from larql.format.source.checkpoint import open_checkpoint
    from larql.format.source.extract import extract

    with render.progress(output) as progress:
        located = locate(source, progress=progress)
        if located.kind != "checkpoint":
            raise UsageError(f"{source}: is a container already; extract takes a checkpoint")
        with open_checkpoint(located.path) as checkpoint:
            made = extract(
                checkpoint,
                output_path,
                quant=None if quant is None else quant.value,
                force=force,
                progress=progress,
            )
    tell(output, [*located.notes, *made.notes])
    if output.json:
        render.document(
            output,
            {
                "path": made.path.absolute(),
                "fingerprint": made.fingerprint,
                "bytes": made.nbytes,
                "notes": list(made.notes),
                "left": dict(made.left),
            },
        )
        return
    render.key_values(
        [
            ("container", made.path),
            ("size", render.bytes_text(made.nbytes)),
            ("fingerprint", made.fingerprint),
            ("left behind", f"{len(made.left)} tensors" if made.left else None),
        ]
    )
