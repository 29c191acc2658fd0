"""``larql tokenize``: text to token ids, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.inputs import end_ids, exactly_one, read_text, tokenizer_of
from larql.cli.models import open_model
from larql.cli.options import Model, NoBos, PromptFile, token_ids
from larql.cli.output import output_of

__all__ = ["command"]

Text = Annotated[
    str | None,
    typer.Argument(
        metavar="TEXT", help="Text to tokenize, or - for standard input.", show_default=False
    ),
]
Decode = Annotated[
    str | None,
    typer.Option(
        "--decode",
        metavar="IDS",
        help="Token ids to turn into text instead, or - for standard input.",
        show_default=False,
    ),
]
Pieces = Annotated[
    bool,
    typer.Option("--pieces", help="List each token with its text, one a line.", show_default=False),
]


def command(
    ctx: typer.Context,
    model: Model,
    text: Text = None,
    prompt_file: PromptFile = None,
    decode: Decode = None,
    no_bos: NoBos = False,
    pieces: Pieces = False,
) -> None:
    """Convert text to token ids, and back.

    Ids are printed on one line, separated by commas, as `--tokens` takes them. A model that was
    trained with a beginning-of-sequence token gets exactly one, unless --no-bos is given.

    Examples
    --------
    larql tokenize model.vindex3 "The capital of France is"

    larql tokenize model.vindex3 --decode 504,3575,282
    """
    output = output_of(ctx)
    exactly_one({"TEXT": text, "--prompt-file": prompt_file, "--decode": decode})
    container = open_model(model, output)
    tokenizer = tokenizer_of(container)
    if decode is not None:
        given = read_text(None, "--decode") if decode == "-" else decode
        ids = list(token_ids(given, "--decode"))
        shown = tokenizer.decode(ids, skip_special=False)
    else:
        shown = read_text(prompt_file, "--prompt-file") if text is None else text
        shown = read_text(Path("-"), "TEXT") if text == "-" else shown
        ids = tokenizer.encode(shown, add_bos=not no_bos)
    if output.json:
        render.document(
            output,
            {
                "ids": ids,
                "pieces": [tokenizer.token_text(i) for i in ids],
                "text": shown,
                "bos_ids": list(tokenizer.bos_ids),
                "end_of_text_ids": list(end_ids(container, tokenizer)),
            },
        )
    elif pieces:
        render.table(
            ["token", "text"], [(i, repr(tokenizer.token_text(i))) for i in ids], right=["token"]
        )
    elif decode is not None:
        render.line(render.printable(shown, keep="\n\t"))
    else:
        render.line(",".join(map(str, ids)))
