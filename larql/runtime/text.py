"""Text to token ids and back, from the files that a container carries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import TokenizerError
from larql.format.untrusted import (
    POINTER_LIMIT,
    open_regular,
    read_exactly,
    read_json_object,
    refuse_pointer,
    shown,
)
from larql.runtime.detokenize import PieceTable, TextStream, displayed, read_decoder
from larql.runtime.resident import trim

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["TOKENIZER", "TextTokenizer", "load_tokenizer", "special_token_texts"]

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"
GENERATION = "generation_config.json"
# These classes of the transformers library put BOS before a text unless told not to.
_BOS_CLASSES = frozenset(
    f"{family}Tokenizer{fast}"
    for family in ("Llama", "CodeLlama", "Gemma", "Cohere")
    for fast in ("", "Fast")
)


class TextTokenizer:
    """A tokenizer that has been loaded; :func:`load_tokenizer` makes one.

    Attributes
    ----------
    bos_ids : tuple of int
        What stands before each text that the model was trained on: nothing, BOS, or in rare models
        several tokens.
    declared_end_ids : tuple of int
        End-of-text ids that the tokenizer's own files declare, ascending.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        table: PieceTable,
        where: str,
        *,
        bos_ids: tuple[int, ...],
        declared_end_ids: tuple[int, ...],
    ) -> None:
        self.bos_ids = bos_ids
        self.declared_end_ids = declared_end_ids
        self._tokenizer = tokenizer
        self._table = table
        self._where = where
        self._missing = frozenset(table.missing_bytes())

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens; a model's embedding may have more rows."""
        return int(self._tokenizer.get_vocab_size())

    def vocabulary(self) -> dict[str, int]:
        """Return the id of every token by its text, as the tokenizer's own file spells it."""
        return dict(self._tokenizer.get_vocab())

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Return the ids of a text.

        Special tokens that are spelled out in the text are recognised. EOS is never added, since
        ids are made to be continued.

        Parameters
        ----------
        text : str
            The text.
        add_bos : bool
            Put BOS in front if the model was trained with it and the text does not begin with it,
            so that there is exactly one.

        Returns
        -------
        list of int
            The ids.

        Raises
        ------
        TokenizerError
            If the text is not valid Unicode, or has bytes that the vocabulary cannot express.
        """
        try:
            content = text.encode()
        except UnicodeEncodeError as problem:
            raise TokenizerError(
                f"text: character {problem.start} is half a surrogate pair; expected valid Unicode"
            ) from None
        if self._missing and not self._missing.isdisjoint(content):
            byte = min(self._missing.intersection(content))
            raise TokenizerError(
                f"{self._where}: text contains byte 0x{byte:02X}, for which the vocabulary has no "
                f"token; remove the character"
            )
        ids = [int(item) for item in self._tokenizer.encode(text, add_special_tokens=False).ids]
        if add_bos and tuple(ids[: len(self.bos_ids)]) != self.bos_ids:
            return [*self.bos_ids, *ids]
        return ids

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, continuing: bool = False
    ) -> str:
        """Return the text of ids.

        Parameters
        ----------
        ids : iterable of int
            The ids.
        skip_special : bool
            Leave special tokens such as BOS out.
        continuing : bool
            The ids continue an earlier text. Models that put a space before each text lose it
            again at the start, but not where a text is continued.

        Returns
        -------
        str
            The text; bytes that are no characters become U+FFFD.

        Raises
        ------
        TokenizerError
            If an id is no token.
        """
        stream = self.stream(skip_special=skip_special, continuing=continuing)
        return "".join([stream.push(token_id) for token_id in ids]) + stream.flush()

    def stream(self, *, skip_special: bool = True, continuing: bool = False) -> TextStream:
        """Return an incremental decoder; parameters as for :meth:`decode`."""
        return TextStream(self._table, skip_special=skip_special, continuing=continuing)

    def token_text(self, token_id: int) -> str:
        """Return one token for display.

        Spaces are as in decoded text, bytes that are no whole character are ``<0xF0>``, and an id
        beyond the vocabulary, as the padded rows of an embedding have, is ``<id 151700>``.
        """
        if token_id not in self._table:
            return f"<id {token_id}>"
        return displayed(self._table[token_id])

    def end_of_text(self, extra: Iterable[int] = ()) -> tuple[int, ...]:
        """Return every id that ends a text, ascending.

        Parameters
        ----------
        extra : iterable of int
            Ids that other places declare, such as the model's own configuration.

        Returns
        -------
        tuple of int
            Their union with ``declared_end_ids``. Tokens that merely look like ends are not in it.
        """
        return tuple(sorted({*self.declared_end_ids, *extra}))


def load_tokenizer(files: Mapping[str, Path], *, reason: str | None = None) -> TextTokenizer:
    """Load the tokenizer of a container.

    Parameters
    ----------
    files : Mapping of str to Path
        The container's text files by name; of interest are ``tokenizer.json``,
        ``tokenizer_config.json``, ``special_tokens_map.json`` and ``generation_config.json``.
    reason : str, optional
        Why there is no ``tokenizer.json``, as recorded when the container was made.

    Returns
    -------
    TextTokenizer
        Ready to use.

    Raises
    ------
    TokenizerError
        If there is no tokenizer, or a file is malformed or contradicts another.
    """
    path = files.get(TOKENIZER)
    if path is None:
        because = f" ({reason})" if reason else ""
        raise TokenizerError(
            f"the model carries no tokenizer{because}; give token ids with --tokens instead of text"
        )
    tokenizer = _parse(path)
    settings = _Settings.read(files)
    state = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else None
    table = PieceTable(tokenizer, read_decoder(state, str(path)), str(path))
    trim()
    return TextTokenizer(
        tokenizer,
        table,
        str(path),
        bos_ids=_bos_ids(tokenizer, settings),
        declared_end_ids=_end_ids(tokenizer, settings),
    )


def special_token_texts(files: Mapping[str, Path]) -> dict[str, str]:
    """Return special tokens by name (``bos_token``, ...), as chat templates refer to them.

    Raises
    ------
    TokenizerError
        If a file is malformed.
    """
    return _Settings.read(files).special


@dataclass(frozen=True)
class _Settings:
    """What the JSON files beside ``tokenizer.json`` say."""

    config: Mapping[str, object]
    generation: Mapping[str, object]
    where: Mapping[str, str]
    special: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(files: Mapping[str, Path]) -> _Settings:
        def content(name: str) -> Mapping[str, object]:
            return read_json_object(files[name], TokenizerError) if name in files else {}

        config = content(CONFIG)
        special: dict[str, str] = {}
        for source in (content(SPECIAL), config):
            for key, value in source.items():
                text = value.get("content") if isinstance(value, Mapping) else value
                if key.endswith("_token") and isinstance(text, str):
                    special[key] = text
        where = {name: str(path) for name, path in files.items()}
        return _Settings(config, content(GENERATION), where, special)

    def token_id(self, tokenizer: Tokenizer, role: str) -> int | None:
        """Id of ``bos`` or ``eos`` as ``tokenizer_config.json`` and its companion name it."""
        text = self.special.get(f"{role}_token")
        if text is None:
            return None
        token_id = tokenizer.token_to_id(text)
        if token_id is None:
            where = self.where.get(CONFIG) or self.where[SPECIAL]
            raise TokenizerError(
                f"{where}: {role}_token is {shown(text)}, which is no token of tokenizer.json"
            )
        return int(token_id)


def _parse(path: Path) -> Tokenizer:
    with open_regular(path, TokenizerError) as (descriptor, status):
        head = read_exactly(
            descriptor, 0, min(status.st_size, POINTER_LIMIT), str(path), TokenizerError
        )
    refuse_pointer(head, str(path), TokenizerError)
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    # The library raises bare Exception, and a panic of its Rust code derives from BaseException.
    except BaseException as problem:  # noqa: BLE001
        raise TokenizerError(
            f"{path}: is not a tokenizer that can be loaded: {shown(str(problem))}; extract the "
            f"model again"
        ) from None


def _bos_ids(tokenizer: Tokenizer, settings: _Settings) -> tuple[int, ...]:
    """Return what stands before a text: as declared, else as the post-processor does it."""
    declared = settings.config.get("add_bos_token")
    if declared is False:
        return ()
    bos = settings.token_id(tokenizer, "bos")
    if declared is True:
        if bos is None:
            raise TokenizerError(
                f"{settings.where[CONFIG]}: add_bos_token is true, but no bos_token is named"
            )
        return (bos,)
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    processed = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(processed) - len(plain) + 1):
        if processed[start : start + len(plain)] == plain and start:
            return tuple(int(item) for item in processed[:start])
    if bos is not None and settings.config.get("tokenizer_class") in _BOS_CLASSES:
        return (bos,)
    return ()


def _end_ids(tokenizer: Tokenizer, settings: _Settings) -> tuple[int, ...]:
    ends: set[int] = set()
    eos = settings.token_id(tokenizer, "eos")
    if eos is not None:
        ends.add(eos)
    stored = settings.generation.get("eos_token_id")
    for value in stored if isinstance(stored, list) else [stored]:
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise TokenizerError(
                f"{settings.where[GENERATION]}: eos_token_id is {shown(str(stored))}; expected a "
                f"token id or a list of them"
            )
        ends.add(value)
    return tuple(sorted(ends))
