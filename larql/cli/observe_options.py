"""Options of ``larql observe`` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "BasisDims",
    "BasisRows",
    "BasisSeed",
    "Capture",
    "CaptureOut",
    "HeadNorms",
    "Intervene",
    "LensAttention",
    "LensLayers",
    "LensTokens",
    "LensTopK",
    "Patterns",
    "Record",
    "RunId",
]

Record = Annotated[
    Path | None,
    typer.Option(
        "--record",
        metavar="FILE",
        help=(
            "Write the run record, one JSON object a line, as the run goes on; it ends with a "
            "receipt that has the hash of all lines before it."
        ),
        show_default=False,
    ),
]
RunId = Annotated[
    str | None,
    typer.Option(
        "--run-id",
        metavar="NAME",
        help="Name of the run in its record.",
        show_default="the beginning of the provenance fingerprint",
    ),
]
BasisDims = Annotated[
    int,
    typer.Option(
        "--basis-dims",
        metavar="N",
        min=0,
        help="Project the carrier after each write on a seeded basis of N random sign vectors.",
    ),
]
BasisSeed = Annotated[
    int | None,
    typer.Option(
        "--basis-seed",
        metavar="N",
        min=0,
        help="Seed of the basis of --basis-dims.",
        show_default="0",
    ),
]
BasisRows = Annotated[
    Path | None,
    typer.Option(
        "--basis-rows",
        metavar="FILE",
        help="A basis of yours instead: a .npy file, float32 [dims, hidden].",
        show_default=False,
    ),
]
LensLayers = Annotated[
    str,
    typer.Option(
        "--lens-layers",
        metavar="LAYERS",
        help=(
            "Layers whose output the lens reads, which is the carrier after their feed-forward "
            "block: all, every:K (the last is among them), a list like 0,5,11, or none."
        ),
    ),
]
LensAttention = Annotated[
    bool,
    typer.Option(
        "--lens-attention",
        help="Let the lens read the same layers' carrier after attention too.",
        show_default=False,
    ),
]
LensTokens = Annotated[
    str | None,
    typer.Option(
        "--lens-tokens",
        metavar="IDS",
        help=(
            "Tokens whose log-probability and exact rank the lens tells: ids separated by commas, "
            "or text:… for the tokens of a text."
        ),
        show_default=False,
    ),
]
LensTopK = Annotated[
    int,
    typer.Option(
        "--lens-top-k", metavar="K", min=1, help="How many of the likeliest tokens the lens tells."
    ),
]
HeadNorms = Annotated[
    bool,
    typer.Option(
        "--head-norms",
        help="Record the norm of each attention head's output, before the output projection.",
        show_default=False,
    ),
]
Patterns = Annotated[
    bool,
    typer.Option(
        "--attention-patterns",
        help="Record each attention head's softmax weights; long for long inputs.",
        show_default=False,
    ),
]
Intervene = Annotated[
    Path | None,
    typer.Option(
        "--intervene",
        metavar="FILE",
        help="Change the carrier as a JSON file of interventions declares.",
        show_default=False,
    ),
]
Capture = Annotated[
    str | None,
    typer.Option(
        "--capture",
        metavar="SITES",
        help=(
            "Keep carrier and write at SITE@POSITIONS, separated by commas, for example "
            "12.ffn@4,3.attention@0:5."
        ),
        show_default=False,
    ),
]
CaptureOut = Annotated[
    Path | None,
    typer.Option(
        "--capture-out",
        metavar="FILE",
        help="Where --capture is written, as safetensors, for the interventions of another run.",
        show_default=False,
    ),
]
