"""``larql extract``: compile a checkpoint into a container."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.models import tell
from larql.cli.options import Force, Source, Threads
from larql.cli.output import output_of
from larql.errors import UsageError
from larql.format.source.locate import Located, locate

if TYPE_CHECKING:
    from larql.format.progress import Progress
    from larql.format.source.checkpoint import Checkpoint
    from larql.format.source.extract import Extraction
    from larql.format.vindex2.write import Options

__all__ = ["command"]


class Generation(StrEnum):
    """The two generations of containers."""

    V3 = "v3"
    V2 = "v2"


class LevelName(StrEnum):
    """How much of a model a VINDEX2 directory has."""

    BROWSE = "browse"
    ATTENTION = "attention"
    INFERENCE = "inference"
    ALL = "all"


class FfnLayoutName(StrEnum):
    """Where a VINDEX2 directory has dense feed-forward networks."""

    FLAT = "flat"
    PER_LAYER = "per_layer"


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
    typer.Option("--generation", metavar="NAME", help="v3 (VINDEX3) or v2 (VINDEX2, the older)."),
]
LevelOption = Annotated[
    LevelName | None,
    typer.Option(
        "--level",
        metavar="LEVEL",
        help=(
            "With --generation v2: browse (gate vectors, embeddings, tokens that features write, "
            "tokenizer), attention (and attention, norms), inference (and feed-forward networks, "
            "experts) or all (and a head of its own)."
        ),
        show_default="inference",
    ),
]
FfnLayoutOption = Annotated[
    FfnLayoutName | None,
    typer.Option(
        "--ffn-layout",
        metavar="NAME",
        help=(
            "With --generation v2: flat (one file for all layers) or per_layer (dense networks in "
            "files of their own, as experts are)."
        ),
        show_default="flat",
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
    level: LevelOption = None,
    ffn_layout: FfnLayoutOption = None,
    threads: Threads = None,
    force: Force = False,
) -> None:
    """Compile a checkpoint into a container.

    The model's computation is judged once and written down; afterwards the checkpoint is not
    needed. Tensors are streamed, and the container appears whole or not at all. A configuration
    key that may change what the model computes and that is not understood is refused by name.

    VINDEX2 stores decoded numbers, f16 or f32 as they come, unless `--quant` re-encodes them; gate
    vectors, embeddings, norms and routers stay as they are. The tokens that each feature writes
    are computed at extraction, which takes its time; `--threads` is for that.

    Examples
    --------
    larql extract model.gguf -o model.vindex3

    larql extract hf://owner/name -o model.vindex3 --quant q8_0

    larql extract model.gguf -o model.vindex --generation v2 --level all
    """
    output = output_of(ctx)
    if generation is Generation.V3:
        for option, value in (("--level", level), ("--ffn-layout", ffn_layout)):
            if value is not None:
                raise UsageError(f"{option}: belongs to --generation v2; leave it out")
    from larql.format.source.checkpoint import open_checkpoint

    with render.progress(output) as progress:
        located = locate(source, progress=progress)
        if located.kind != "checkpoint":
            raise UsageError(f"{source}: is a container already; extract takes a checkpoint")
        encoding = None if quant is None else quant.value
        with open_checkpoint(located.path) as checkpoint:
            if generation is Generation.V3:
                from larql.format.source.extract import extract

                made = extract(
                    checkpoint, output_path, quant=encoding, force=force, progress=progress
                )
            else:
                wanted = _options(level, ffn_layout, encoding)
                made = _vindex2(checkpoint, output_path, located, wanted, threads, force, progress)
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


def _options(
    level: LevelName | None, ffn_layout: FfnLayoutName | None, quant: str | None
) -> Options:
    from larql.format.vindex2.layout import FfnLayout, Level
    from larql.format.vindex2.write import Options

    apart = ffn_layout is FfnLayoutName.PER_LAYER
    return Options(
        Level.INFERENCE if level is None else Level(level.value),
        quant,
        FfnLayout.PER_LAYER if apart else None,
    )


def _vindex2(
    checkpoint: Checkpoint,
    path: Path,
    located: Located,
    options: Options,
    threads: int | None,
    force: bool,
    progress: Progress,
) -> Extraction:
    """Join the writer with what computes the tokens of features."""
    from larql.format.vindex2.write import Origin, extract_vindex2
    from larql.runtime.feature_tokens import KernelTokens

    fetched = located.revision is not None
    origin = Origin(located.origin, located.revision) if fetched else Origin()
    return extract_vindex2(
        checkpoint,
        path,
        KernelTokens(threads),
        options=options,
        origin=origin,
        force=force,
        progress=progress,
    )
