"""From token ids back to text, one id at a time or all at once.

A token stands for bytes, which need not be whole characters. Text is made from the bytes alone, so
a stream of single tokens and one call over all of them agree by construction.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from larql.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["DecoderRule", "PieceTable", "TextStream", "displayed", "read_decoder"]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class DecoderRule:
    """How pieces become bytes.

    Attributes
    ----------
    byte_level : bool
        Pieces are spelled in GPT-2's alphabet: one printable character for each byte.
    space : str or None
        A character that stands for a space inside pieces.
    byte_fallback : bool
        Pieces ``<0x00>`` to ``<0xFF>`` are single bytes.
    strip : int
        Up to so many spaces are taken off the start of a text.
    """

    byte_level: bool = False
    space: str | None = None
    byte_fallback: bool = False
    strip: int = 0


def read_decoder(decoder: Mapping[str, object] | None, where: str) -> DecoderRule:
    """Read the ``decoder`` of a ``tokenizer.json``.

    Parameters
    ----------
    decoder : Mapping or None
        The section.
    where : str
        The file, to start messages with.

    Returns
    -------
    DecoderRule
        For ``ByteLevel``, ``Metaspace``, and the sequences that SentencePiece models are published
        with (``Replace``, ``ByteFallback``, ``Fuse``, ``Strip``).

    Raises
    ------
    TokenizerError
        For any other decoder, by name.
    """
    steps: list[object] = [decoder]
    if decoder is not None and decoder.get("type") == "Sequence":
        listed = decoder.get("decoders")
        steps = listed if isinstance(listed, list) else []
    byte_level = byte_fallback = False
    space: str | None = None
    strip = 0
    for step in steps:
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "Metaspace", "replacement": str(space), "prepend_scheme": scheme}:
                strip = 0 if scheme == "never" else 1
            case {"type": "Replace", "pattern": {"String": str(space)}, "content": " "}:
                pass
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "start": int(strip), "stop": 0}:
                pass
            case _:
                name = step.get("type") if isinstance(step, Mapping) else step
                raise TokenizerError(
                    f"{where}: decoder {name} is unknown to this build; expected ByteLevel, "
                    f"Metaspace, or Replace, ByteFallback, Fuse and Strip; use --tokens"
                )
    if byte_level and len(steps) > 1:
        raise TokenizerError(f"{where}: decoder ByteLevel is combined with others; use --tokens")
    return DecoderRule(byte_level, space, byte_fallback, strip)


@cache
def _byte_of_character() -> Mapping[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the rest for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


class PieceTable:
    """The bytes of each token.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        The vocabulary.
    rule : DecoderRule
        How its pieces become bytes.
    where : str
        The file, to start messages with.
    """

    def __init__(self, tokenizer: Tokenizer, rule: DecoderRule, where: str) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.strip = rule.strip
        self._added = frozenset(added)
        self._rule = rule
        self._tokenizer = tokenizer
        self._where = where
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for.

        Raises
        ------
        TokenizerError
            If there is no such token.
        """
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._bytes(token_id)
        return known

    def __contains__(self, token_id: int) -> bool:
        return self._piece(token_id) is not None

    def _piece(self, token_id: int) -> str | None:
        # The library takes a u32 and raises OverflowError for anything else.
        return self._tokenizer.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None

    def missing_bytes(self) -> frozenset[int]:
        """Byte values that no token stands for; empty unless the vocabulary is byte-level."""
        if not self._rule.byte_level:
            return frozenset()
        return frozenset(
            byte
            for character, byte in _byte_of_character().items()
            if self._tokenizer.token_to_id(character) is None
        )

    def _bytes(self, token_id: int) -> bytes:
        piece = self._piece(token_id)
        if piece is None:
            raise TokenizerError(
                f"{self._where}: {token_id} is no token; the vocabulary has "
                f"{self._tokenizer.get_vocab_size()} of them"
            )
        if self._rule.byte_level:
            alphabet = _byte_of_character()
            if token_id in self._added or not all(letter in alphabet for letter in piece):
                return piece.encode()
            return bytes(alphabet[letter] for letter in piece)
        found = _BYTE_PIECE.fullmatch(piece) if self._rule.byte_fallback else None
        if found is not None and token_id not in self._added:
            return bytes([int(found[1], 16)])
        if self._rule.space is not None:
            piece = piece.replace(self._rule.space, " ")
        return piece.encode()


class TextStream:
    """Text from ids as they come, whole characters only.

    The pushed parts and the final :meth:`flush` joined are what
    :meth:`~larql.runtime.text.TextTokenizer.decode` returns for all ids.

    Parameters
    ----------
    table : PieceTable
        The bytes of each token.
    skip_special : bool
        Leave special tokens such as BOS out.
    continuing : bool
        The ids continue an earlier text: a leading space belongs to the text and is kept.
    """

    def __init__(self, table: PieceTable, *, skip_special: bool, continuing: bool) -> None:
        self._table = table
        self._skip = table.special if skip_special else frozenset()
        self._strip = 0 if continuing else table.strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take one id and return the text that is complete with it, perhaps none.

        Raises
        ------
        TokenizerError
            If there is no such token; the stream is as before.
        """
        content = self._table[token_id]
        if token_id in self._skip:
            return ""
        return self._stripped(self._decoder.decode(content))

    def flush(self) -> str:
        """Return what is left: U+FFFD if the ids ended inside a character, else nothing."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text


def displayed(content: bytes) -> str:
    """Return the text of one token, with bytes that are no whole character as ``<0xF0>``."""
    shown = ""
    while content:
        try:
            return shown + content.decode()
        except UnicodeDecodeError as problem:
            shown += content[: problem.start].decode()
            shown += "".join(f"<0x{byte:02X}>" for byte in content[problem.start : problem.end])
            content = content[problem.end :]
    return shown
