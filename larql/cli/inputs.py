"""Tokens and text that a command was given, in any of the ways that they can be given."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from larql.cli import render
from larql.cli.options import token_ids
from larql.cli.output import Output
from larql.errors import UsageError
from larql.format.container import Container
from larql.runtime.container_text import end_ids, tokenizer_of

if TYPE_CHECKING:
    from larql.format.graph import Component
    from larql.runtime.text import TextTokenizer

__all__ = [
    "MAX_CONTEXT",
    "Given",
    "TextSource",
    "end_ids",
    "exactly_one",
    "read_input",
    "read_text",
    "room_for",
    "tokenizer_of",
]

MAX_CONTEXT = 1 << 24


@dataclass(frozen=True)
class TextSource:
    """The four options that name an input; exactly one must be used.

    Attributes
    ----------
    tokens, tokens_file, prompt, prompt_file
        As on the command line.
    """

    tokens: str | None = None
    tokens_file: Path | None = None
    prompt: str | None = None
    prompt_file: Path | None = None


@dataclass(frozen=True)
class Given:
    """Tokens to run, and the tokenizer if the input was text.

    Attributes
    ----------
    ids : tuple of int
    tokenizer : TextTokenizer or None
        None where ids were given, so that a tokenizer is never loaded for nothing.
    option : str
        The option that they were given with.
    """

    ids: tuple[int, ...]
    tokenizer: TextTokenizer | None
    option: str


def read_text(path: Path | None, what: str) -> str:
    """Read a UTF-8 file, or standard input where ``path`` is None or ``-``.

    Raises
    ------
    UsageError
        If it cannot be read or is not UTF-8.
    """
    try:
        if path is None or str(path) == "-":
            if sys.stdin is None:
                raise UsageError(f"{what} -: standard input is closed")
            return sys.stdin.buffer.read().decode()
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{what} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path or '-'}: is not UTF-8 at byte {error.start}") from None


def exactly_one(inputs: Mapping[str, object]) -> None:
    """Refuse a command line that does not use exactly one of some inputs.

    Parameters
    ----------
    inputs : mapping
        What the user wrote for each input by its name, None for what he left out.

    Raises
    ------
    UsageError
        Naming those that were used.
    """
    used = [name for name, value in inputs.items() if value is not None]
    if len(used) != 1:
        names = list(inputs)
        raise UsageError(
            f"expected one of {', '.join(names[:-1])} and {names[-1]}, found "
            f"{' and '.join(used) or 'none'}"
        )


def read_input(container: Container, source: TextSource, *, add_bos: bool) -> Given:
    """Return the tokens that a command was given.

    Raises
    ------
    UsageError
        If not exactly one input was given, or it is empty.
    TokenizerError
        If text was given and the container has no tokenizer for it.
    """
    exactly_one(
        {
            "--tokens": source.tokens,
            "--tokens-file": source.tokens_file,
            "--prompt": source.prompt,
            "--prompt-file": source.prompt_file,
        }
    )
    if source.tokens is not None:
        if source.tokens.startswith("text:"):
            return _encoded(container, source.tokens.removeprefix("text:"), add_bos, "--tokens")
        text = read_text(None, "--tokens") if source.tokens == "-" else source.tokens
        return Given(token_ids(text, "--tokens"), None, "--tokens")
    if source.tokens_file is not None:
        text = read_text(source.tokens_file, "--tokens-file")
        return Given(token_ids(text, "--tokens-file"), None, "--tokens-file")
    if source.prompt is not None:
        text = read_text(None, "--prompt") if source.prompt == "-" else source.prompt
        return _encoded(container, text, add_bos, "--prompt")
    text = read_text(source.prompt_file, "--prompt-file")
    return _encoded(container, text, add_bos, "--prompt-file")


def room_for(
    component: Component, given: int, generated: int, context: int | None, output: Output
) -> int:
    """Return how many positions a run of ``given`` and ``generated`` tokens makes room for.

    Beyond the context that the model was made for there is a warning, but no refusal: rotary
    positions go on, and what a model does there can be the question.

    Raises
    ------
    UsageError
        If a ``--context`` has no room for them, or nobody has.
    """
    # The last generated token is reported and not run.
    needed = given + max(0, generated - 1)
    room = needed if context is None else context
    if room < needed:
        raise UsageError(
            f"--context {context}: the run takes {needed} positions; give a larger --context"
        )
    if room > MAX_CONTEXT:
        raise UsageError(f"a context of {room} positions: expected at most {MAX_CONTEXT}")
    if needed > component.context_length:
        render.warning(
            output,
            f"the run takes {needed} positions; the model was made for {component.context_length}",
        )
    return room


def _encoded(container: Container, text: str, add_bos: bool, option: str) -> Given:
    tokenizer = tokenizer_of(container)
    ids: Sequence[int] = tokenizer.encode(text, add_bos=add_bos)
    if not ids:
        raise UsageError(
            f"{option}: the text is empty and the model has no beginning token; give some text"
        )
    return Given(tuple(ids), tokenizer, option)
