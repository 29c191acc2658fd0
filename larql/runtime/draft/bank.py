"""A bank of prompts: lines of JSON, each a text, token ids or a whole conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import LarqlError, UsageError
from larql.format.untrusted import open_regular, read_exactly, shown
from larql.runtime.plan import check_tokens

if TYPE_CHECKING:
    from larql.runtime.chat import ChatTemplate
    from larql.runtime.text import TextTokenizer

__all__ = ["Entry", "Reading", "RefusedEntry", "read_bank"]

_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Entry:
    """One prompt of a bank.

    Attributes
    ----------
    id : str
        As the line says, else the number of the line, from 1.
    tokens : tuple of int
    """

    id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class RefusedEntry:
    """A line that is no prompt for the model, and why."""

    id: str
    why: str


@dataclass(frozen=True)
class Reading:
    """What turns the lines of a bank into tokens.

    Attributes
    ----------
    vocab : int
    context : int
        Most positions of an entry.
    tokenizer : callable
        Gives the tokenizer; called only where a line has text.
    template : callable
        Gives the chat template; called only where a line is a conversation.
    add_bos : bool
        Put the model's beginning token before a text.
    """

    vocab: int
    context: int
    tokenizer: Callable[[], TextTokenizer]
    template: Callable[[], ChatTemplate]
    add_bos: bool


def read_bank(path: Path, reading: Reading) -> list[Entry | RefusedEntry]:
    """Read a bank.

    Each line is an object with just one of ``prompt`` (text), ``tokens`` (ids) and ``messages`` (a
    conversation, put into the model's template without asking for a reply), and perhaps an ``id``.
    Empty lines are left out.

    Raises
    ------
    UsageError
        If the file cannot be read, holds no prompt, or an id twice. What is wrong with a line
        refuses that line.
    """
    with open_regular(path, UsageError) as (descriptor, status):
        if status.st_size > _MOST_BYTES:
            raise UsageError(f"{path}: {status.st_size} bytes, expected at most {_MOST_BYTES}")
        raw = read_exactly(descriptor, 0, status.st_size, str(path), UsageError)
    found: dict[str, Entry | RefusedEntry] = {}
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        entry = _entry(line, number, reading)
        if entry.id in found:
            raise UsageError(f"{path}: line {number}: the id {shown(entry.id)} stands there twice")
        found[entry.id] = entry
    if not found:
        raise UsageError(f"{path}: holds no prompt; write one JSON object a line")
    return list(found.values())


def _entry(line: bytes, number: int, reading: Reading) -> Entry | RefusedEntry:
    name = str(number)
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            raise UsageError("is no JSON object")
        if isinstance(document.get("id"), str):
            name = document["id"]
        return Entry(name, tuple(_tokens(document, reading)))
    except (ValueError, RecursionError) as error:
        return RefusedEntry(name, f"line {number}: is not JSON: {error}")
    except LarqlError as error:
        return RefusedEntry(name, f"line {number}: {error}")


def _tokens(document: Mapping[str, object], reading: Reading) -> Sequence[int]:
    unknown = sorted(document.keys() - {"id", "prompt", "tokens", "messages"})
    if unknown:
        raise UsageError(f"the key {shown(unknown[0])} is not known")
    used = [key for key in ("prompt", "tokens", "messages") if key in document]
    if len(used) != 1:
        raise UsageError(f"expected one of prompt, tokens and messages, found {used or 'none'}")
    value = document[used[0]]
    ids: Sequence[int]
    if used[0] == "prompt":
        if not isinstance(value, str):
            raise UsageError("prompt is no text")
        ids = reading.tokenizer().encode(value, add_bos=reading.add_bos)
    elif used[0] == "messages":
        if not isinstance(value, list) or not all(isinstance(m, dict) for m in value):
            raise UsageError("messages is no list of objects")
        text = reading.template().render(value, add_generation_prompt=False)
        ids = reading.tokenizer().encode(text)
    else:
        if not isinstance(value, list):
            raise UsageError("tokens is no list")
        ids = value
    check_tokens(ids, reading.vocab)
    if not ids:
        raise UsageError("it holds no token")
    if len(ids) > reading.context:
        raise UsageError(f"{len(ids)} positions do not fit a context of {reading.context}")
    return ids
