"""Writing a large ``tokenizer.json`` in small pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from larql.format.tokenizer.vocabulary import Vocabulary

__all__ = ["document", "encoded", "quoted"]

_CHUNK_CHARACTERS = 1 << 16
_STRING = json.JSONEncoder(ensure_ascii=False).encode


def quoted(text: str) -> str:
    """Return ``text`` as a JSON string, quotation marks included."""
    return _STRING(text)


def encoded(parts: Iterator[str]) -> Iterator[bytes]:
    """Gather text into UTF-8 chunks of roughly 64 KB."""
    held: list[str] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _CHUNK_CHARACTERS:
            yield "".join(held).encode()
            held, size = [], 0
    if held:
        yield "".join(held).encode()


def document(
    vocabulary: Vocabulary,
    pipeline: Mapping[str, object],
    model: Mapping[str, object],
    merges: Iterable[tuple[str, str]],
    *,
    normalized_user_tokens: bool,
) -> Iterator[str]:
    """Yield a ``tokenizer.json`` (format of the Hugging Face ``tokenizers`` library, version 1.0).

    Parameters
    ----------
    vocabulary : Vocabulary
        Pieces in id order, and their kinds.
    pipeline : Mapping
        ``normalizer``, ``pre_tokenizer``, ``post_processor`` and ``decoder``.
    model : Mapping
        Fields of the BPE model other than ``vocab`` and ``merges``.
    merges : iterable of (str, str)
        Pairs of pieces, the one merged first in front.
    normalized_user_tokens : bool
        Whether user-defined tokens are searched in the normalised text instead of the raw text.

    Yields
    ------
    str
        The document in pieces of a line or so.
    """
    pieces = vocabulary.pieces
    yield '{\n"version": "1.0",\n"truncation": null,\n"padding": null,\n"added_tokens": ['
    lead = "\n"
    for token_id, special in vocabulary.added():
        normalized = not special and normalized_user_tokens
        yield (
            f'{lead}{{"id": {token_id}, "content": {_STRING(pieces[token_id])}, '
            f'"single_word": false, "lstrip": false, "rstrip": false, '
            f'"normalized": {_STRING(normalized)}, "special": {_STRING(special)}}}'
        )
        lead = ",\n"
    yield "\n],\n"
    for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        yield f'"{key}": {json.dumps(pipeline[key], ensure_ascii=False)},\n'
    yield '"model": {\n"type": "BPE",\n'
    for key, value in model.items():
        yield f'"{key}": {json.dumps(value, ensure_ascii=False)},\n'
    yield '"vocab": {'
    lead = "\n"
    for token_id, piece in enumerate(pieces):
        yield f"{lead}{_STRING(piece)}: {token_id}"
        lead = ",\n"
    yield '\n},\n"merges": ['
    lead = "\n"
    for left, right in merges:
        yield f"{lead}[{_STRING(left)}, {_STRING(right)}]"
        lead = ",\n"
    yield "\n]\n}\n}\n"
