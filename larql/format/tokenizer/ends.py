"""The end-of-text id that a tokenizer's files declare, found without loading the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from larql.errors import TokenizerError
from larql.format.json_scan import JsonScanner
from larql.format.untrusted import open_regular, read_exactly, read_json_object

__all__ = ["declared_end_id"]

_ADDED = re.compile(rb'"added_tokens"[ \t\r\n]*:')
_NUMBER = re.compile(rb"[0-9]{1,9}(?![0-9.eE])")
_KEY_LIMIT, _MEMBER_LIMIT, _TEXT_LIMIT = 256, 64, 1 << 16


def declared_end_id(files: Mapping[str, Path]) -> int | None:
    """Return the id of the ``eos_token`` that ``tokenizer_config.json`` or its companion names.

    Parameters
    ----------
    files : Mapping of str to Path
        A model's text files by name.

    Returns
    -------
    int or None
        None where no such token is named, or where it is not among the added tokens of
        ``tokenizer.json``; also where a file is malformed, which is refused by whoever needs text.
    """
    try:
        text = _eos_text(files)
        path = files.get("tokenizer.json")
        return None if text is None or path is None else _added_id(path, text)
    except TokenizerError:
        return None


def _eos_text(files: Mapping[str, Path]) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if name in files:
            value = read_json_object(files[name], TokenizerError).get("eos_token")
            text = value.get("content") if isinstance(value, Mapping) else value
            if isinstance(text, str):
                return text
    return None


def _added_id(path: Path, text: str) -> int | None:
    with open_regular(path, TokenizerError) as (descriptor, status):
        data = read_exactly(descriptor, 0, status.st_size, str(path), TokenizerError)
    scanner = JsonScanner(data, str(path), TokenizerError)
    # The vocabulary may come before, which takes too long to walk.
    found = _ADDED.search(data)
    if found is None:
        return None
    scanner.position = found.end()
    scanner.take(b"[")
    while scanner.peek() == b"{":
        token: dict[str, object] = {}
        for key in scanner.members(_KEY_LIMIT, _MEMBER_LIMIT):
            if key == "content":
                token[key] = scanner.string(_TEXT_LIMIT)
            elif key == "id" and scanner.peek() and (number := scanner.match(_NUMBER)):
                token[key] = int(number[0])
            else:
                scanner.skip()
        value = token.get("id")
        if token.get("content") == text and isinstance(value, int):
            return value
        if scanner.peek() == b",":
            scanner.position += 1
    return None
