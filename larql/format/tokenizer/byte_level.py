"""Byte-level BPE from GGUF: vocabulary, merges and the split are all given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from larql.errors import SourceError, TokenizerError
from larql.format.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from larql.format.tokenizer.stream import document
from larql.format.tokenizer.template import bos_eos_template
from larql.format.tokenizer.vocabulary import PREFIX, TextSettings, Vocabulary
from larql.format.untrusted import shown

__all__ = ["byte_level_json"]


def byte_level_json(
    vocabulary: Vocabulary, settings: TextSettings, config: Mapping[str, object], where: str
) -> Callable[[], Iterator[str]]:
    """Return a function that yields the ``tokenizer.json`` of a byte-level BPE model.

    Parameters
    ----------
    vocabulary : Vocabulary
        The model's tokens, spelled in GPT-2's alphabet of 256 printable characters.
    settings : TextSettings
        Its text settings.
    config : Mapping
        GGUF metadata, for the merges.
    where : str
        The file, to start messages with.

    Returns
    -------
    callable
        Yields the same text at each call.

    Raises
    ------
    TokenizerError
        If the split is not named or its name unknown, or a merge is malformed or makes something
        that is no token.
    """
    rule = _rule(settings, where)
    merges = _merges(vocabulary, config, where)
    pipeline: dict[str, object] = {
        "normalizer": {"type": "NFC"} if rule.composes else None,
        "pre_tokenizer": rule.stages[0]
        if len(rule.stages) == 1
        else {"type": "Sequence", "pretokenizers": rule.stages},
        "post_processor": bos_eos_template(settings),
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
    }
    model: dict[str, object] = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": rule.whole_words,
    }
    return lambda: document(vocabulary, pipeline, model, merges, normalized_user_tokens=False)


def _rule(settings: TextSettings, where: str) -> PreTokenizer:
    if settings.add_space_prefix:
        raise TokenizerError(
            f"{where}: {PREFIX}add_space_prefix is true with byte-level BPE, which this build does "
            f"not rebuild; give token ids instead of text"
        )
    if settings.pre is None or settings.pre == "default":
        found = "absent" if settings.pre is None else "'default'"
        raise TokenizerError(
            f"{where}: {PREFIX}pre is {found}, so the file does not say how text is split; convert "
            f"the model again, or give token ids instead of text"
        )
    rule = PRE_TOKENIZERS.get(settings.pre)
    if rule is None:
        raise TokenizerError(
            f"{where}: pre-tokenizer {shown(settings.pre)} ({PREFIX}pre) is unknown to this build; "
            f"expected one of {', '.join(sorted(PRE_TOKENIZERS))}; give token ids instead of text"
        )
    return rule


def _merges(
    vocabulary: Vocabulary, config: Mapping[str, object], where: str
) -> list[tuple[str, str]]:
    try:
        stored = config.get(f"{PREFIX}merges")
    except SourceError as problem:
        raise TokenizerError(str(problem)) from None
    if not isinstance(stored, list) or not all(isinstance(merge, str) for merge in stored):
        raise TokenizerError(f"{where}: {PREFIX}merges holds no list of strings")
    known = frozenset(vocabulary.pieces)
    merges = []
    for rank, merge in enumerate(stored):
        # From the second character on: a piece may itself begin with a space.
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if space < 0 or not right:
            raise TokenizerError(
                f"{where}: merge {rank} is {shown(merge)}; expected two pieces and a space between"
            )
        for piece in (left, right, left + right):
            if piece not in known:
                raise TokenizerError(
                    f"{where}: merge {rank} needs {shown(piece)}, which is no token of the "
                    f"vocabulary"
                )
        merges.append((left, right))
    return merges
