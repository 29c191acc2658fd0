"""Prompts that a command was given: one, in the usual ways, or a bank of them."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli.inputs import TextSource, exactly_one, read_input
from larql.runtime.container_text import tokenizer_of

if TYPE_CHECKING:
    from larql.format.container import Container
    from larql.runtime.draft.bank import Entry, RefusedEntry

__all__ = ["Prompts", "read_entries"]

Prompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="F.jsonl",
        help=(
            "A bank of prompts, one JSON object a line with prompt, tokens or messages (a whole "
            "conversation), and perhaps an id."
        ),
        show_default=False,
    ),
]


def read_entries(
    container: Container, component: str, source: TextSource, prompts: Path | None, *, add_bos: bool
) -> list[Entry | RefusedEntry]:
    """Return the prompts that a command was given, at least one.

    Raises
    ------
    UsageError
        If not exactly one input was given, or it cannot be read.
    """
    from larql.runtime.draft.bank import Entry, Reading, read_bank
    from larql.runtime.plan import check_tokens, make_plan
    from larql.runtime.slices import Full

    found = make_plan(container, component, Full()).component
    if prompts is None:
        given = read_input(container, source, add_bos=add_bos)
        check_tokens(given.ids, found.embed.vocab, given.option)
        return [Entry("1", given.ids)]
    exactly_one(
        {
            "--tokens": source.tokens,
            "--tokens-file": source.tokens_file,
            "--prompt": source.prompt,
            "--prompt-file": source.prompt_file,
            "--prompts": prompts,
        }
    )

    from larql.runtime.chat import load_chat_template

    reading = Reading(
        found.embed.vocab,
        found.context_length,
        cache(partial(tokenizer_of, container)),
        cache(lambda: load_chat_template(container.text_files())),
        add_bos,
    )
    return read_bank(prompts, reading)
