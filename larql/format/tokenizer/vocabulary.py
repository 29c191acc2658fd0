"""The vocabulary and text settings in GGUF metadata (GGUF specification, ggml docs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from larql.errors import SourceError, TokenizerError
from larql.format.tokenizer.pretokenizers import PRE_TOKENIZERS
from larql.format.untrusted import shown

__all__ = [
    "KNOWN_TOKENIZER_KEYS",
    "Kind",
    "TextSettings",
    "Vocabulary",
    "read_settings",
    "read_vocabulary",
]

PREFIX = "tokenizer.ggml."
_ABSENT_ID = 0xFFFFFFFF  # -1 stored in a u32: converters write it for "there is none"
# The names on the right are those of tokenizer_config.json. GGUF spells "separator" so.
_SPECIAL_KEYS: Mapping[str, str] = {
    "bos_token_id": "bos",
    "eos_token_id": "eos",
    "eot_token_id": "eot",
    "eom_token_id": "eom",
    "unknown_token_id": "unk",
    "padding_token_id": "pad",
    "seperator_token_id": "sep",
    "cls_token_id": "cls",
    "mask_token_id": "mask",
}
_END_ROLES = ("eos", "eot", "eom")


class Kind(IntEnum):
    """What a token is: the values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


KNOWN_TOKENIZER_KEYS = frozenset(
    f"tokenizer.{key}"
    for key in (
        "huggingface.json",
        "rwkv.world",
        *(
            f"ggml.{name}"
            for name in (
                "model", "pre", "tokens", "scores", "token_type", "token_type_count", "merges",
                "add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix",
                "remove_extra_whitespaces", "precompiled_charsmap", "added_tokens",
                *(
                    f"{role}_token_id"
                    for role in (
                        "bos", "eos", "eot", "eom", "unknown", "separator", "seperator", "padding",
                        "cls", "mask", "prefix", "suffix", "middle", "fim_pre", "fim_suf",
                        "fim_mid", "fim_pad", "fim_rep", "fim_sep",
                    )
                ),
            )
        ),
    )
)  # fmt: skip
"""Keys of GGUF metadata that say something of text; templates come on top."""

_KINDS = frozenset(int(kind) for kind in Kind)


@dataclass(frozen=True)
class TextSettings:
    """What metadata says about text, the vocabulary itself apart.

    Attributes
    ----------
    model : str
        ``tokenizer.ggml.model``: ``"gpt2"`` is byte-level BPE, ``"llama"`` SentencePiece BPE.
    pre : str or None
        ``tokenizer.ggml.pre``, the name of the rule that splits text before merging.
    add_bos, add_eos : bool
        Whether the model was trained with a token before and after each text.
    add_space_prefix : bool
        Whether a text is read as if a space stood before it.
    special : Mapping of str to int
        Declared ids by role: ``"bos"``, ``"eos"``, ``"eot"``, ``"eom"``, ``"unk"``, ``"pad"``, ...
    special_text : Mapping of str to str
        The same tokens' text.
    """

    model: str
    pre: str | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    special: Mapping[str, int]
    special_text: Mapping[str, str]

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All declared ids that end a text or a turn, ascending."""
        return tuple(sorted({self.special[role] for role in _END_ROLES if role in self.special}))


@dataclass(frozen=True)
class Vocabulary:
    """Pieces in id order.

    Attributes
    ----------
    pieces : list of str
        Text of each token; unique, never empty.
    kinds : bytes
        :class:`Kind` of each token.
    forced_special : frozenset of int
        Ids that are special whatever their kind, because metadata gives them such a role.
    """

    pieces: list[str] = field(repr=False)
    kinds: bytes = field(repr=False)
    forced_special: frozenset[int]

    def added(self) -> Iterator[tuple[int, bool]]:
        """Yield tokens that are matched whole in a text, ascending, and whether each is special."""
        for token_id, kind in enumerate(self.kinds):
            if token_id in self.forced_special or kind in (Kind.CONTROL, Kind.UNKNOWN):
                yield token_id, True
            elif kind == Kind.USER_DEFINED:
                yield token_id, False


def read_settings(config: Mapping[str, object], where: str) -> TextSettings:
    """Read the text settings from GGUF metadata.

    Parameters
    ----------
    config : Mapping
        The metadata.
    where : str
        The file, to start messages with.

    Returns
    -------
    TextSettings
        Missing flags take the defaults that GGUF readers use.

    Raises
    ------
    TokenizerError
        If there is no tokenizer in the metadata, a value has the wrong type, or a special token
        lies outside the vocabulary.
    """
    model = config.get(f"{PREFIX}model")
    if model is None:
        raise TokenizerError(
            f"{where}: metadata holds no tokenizer ({PREFIX}model is absent); give token ids "
            f"instead of text"
        )
    if not isinstance(model, str):
        raise _wrong_type(where, "model", model, "a string")
    pre = config.get(f"{PREFIX}pre")
    if pre is not None and not isinstance(pre, str):
        raise _wrong_type(where, "pre", pre, "a string")
    rule = PRE_TOKENIZERS.get(pre) if pre is not None else None
    adds_bos = model == "llama" or (rule is not None and rule.adds_bos)
    pieces = _pieces(config, where)
    special: dict[str, int] = {}
    for key, role in _SPECIAL_KEYS.items():
        token_id = config.get(PREFIX + key)
        if token_id is None or token_id in (_ABSENT_ID, -1):
            continue
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise _wrong_type(where, key, token_id, "a token id")
        if not 0 <= token_id < len(pieces):
            raise TokenizerError(
                f"{where}: {PREFIX}{key} is {token_id}, but the vocabulary has {len(pieces)} tokens"
            )
        special[role] = token_id
    return TextSettings(
        model=model,
        pre=pre,
        add_bos=_flag(config, "add_bos_token", adds_bos, where),
        add_eos=_flag(config, "add_eos_token", False, where),
        add_space_prefix=_flag(config, "add_space_prefix", model == "llama", where),
        special=special,
        special_text={role: pieces[token_id] for role, token_id in special.items()},
    )


def read_vocabulary(config: Mapping[str, object], settings: TextSettings, where: str) -> Vocabulary:
    """Read and check the vocabulary from GGUF metadata.

    Parameters
    ----------
    config : Mapping
        The metadata.
    settings : TextSettings
        What :func:`read_settings` returned for it.
    where : str
        The file, to start messages with.

    Returns
    -------
    Vocabulary
        An empty piece is named ``[EMPTY_<id>]``, as other GGUF readers do.

    Raises
    ------
    TokenizerError
        If two tokens have the same text, a kind is unknown, the arrays differ in length, or BOS or
        EOS is to be added but not declared.
    """
    pieces = _pieces(config, where)
    stored = config.get(f"{PREFIX}token_type")
    if stored is None:
        kinds = bytes([Kind.NORMAL]) * len(pieces)
    elif not isinstance(stored, list) or len(stored) != len(pieces):
        raise TokenizerError(
            f"{where}: {PREFIX}token_type must hold {len(pieces)} values, one for each token"
        )
    else:
        for token_id, kind in enumerate(stored):
            if kind not in _KINDS:
                raise TokenizerError(
                    f"{where}: token {token_id} has type {kind!r} in {PREFIX}token_type; expected "
                    f"1 to 6"
                )
        kinds = bytes(stored)
    for token_id, piece in enumerate(pieces):
        if not piece:
            pieces[token_id] = f"[EMPTY_{token_id}]"
    if len(set(pieces)) != len(pieces):
        raise TokenizerError(_first_duplicate(pieces, where))
    for added, role in ((settings.add_bos, "bos"), (settings.add_eos, "eos")):
        if added and role not in settings.special:
            raise TokenizerError(
                f"{where}: texts are to start or end with {role.upper()}, but {PREFIX}{role}"
                f"_token_id is absent"
            )
    roles = ("bos", *_END_ROLES)
    forced = frozenset(settings.special[role] for role in roles if role in settings.special)
    return Vocabulary(pieces, kinds, forced)


def _pieces(config: Mapping[str, object], where: str) -> list[str]:
    try:
        pieces = config.get(f"{PREFIX}tokens")
    except SourceError as problem:
        raise TokenizerError(str(problem)) from None
    if not isinstance(pieces, list) or not pieces or not isinstance(pieces[0], str):
        raise TokenizerError(f"{where}: {PREFIX}tokens holds no tokens; expected a list of strings")
    return pieces


def _first_duplicate(pieces: list[str], where: str) -> str:
    seen: dict[str, int] = {}
    for token_id, piece in enumerate(pieces):
        first = seen.setdefault(piece, token_id)
        if first != token_id:
            return (
                f"{where}: tokens {first} and {token_id} are both {shown(piece)}; expected unique"
            )
    return f"{where}: {PREFIX}tokens holds a token twice"


def _flag(config: Mapping[str, object], key: str, default: bool, where: str) -> bool:
    value = config.get(PREFIX + key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong_type(where, key, value, "true or false")
    return value


def _wrong_type(where: str, key: str, value: object, expected: str) -> TokenizerError:
    return TokenizerError(f"{where}: {PREFIX}{key} is {shown(str(value))}; expected {expected}")
