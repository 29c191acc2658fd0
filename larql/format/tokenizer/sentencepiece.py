"""SentencePiece BPE from GGUF: the merges are derived from pieces and scores.

SentencePiece keeps no list of merges. It joins, of all neighbours whose concatenation is a piece,
the pair whose piece scores highest, and of equal ones the leftmost (Kudo and Richardson 2018;
``bpe_model.cc``). So every way to cut a piece into two pieces is a merge, ranked by the score of
the whole.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from larql.errors import TokenizerError
from larql.format.tokenizer.stream import document
from larql.format.tokenizer.template import bos_eos_template
from larql.format.tokenizer.vocabulary import PREFIX, Kind, TextSettings, Vocabulary
from larql.format.untrusted import shown

__all__ = ["sentencepiece_json"]

SPACE = "\u2581"
_PADDING = re.compile(r"\[PAD\d+\]")


def sentencepiece_json(
    vocabulary: Vocabulary, settings: TextSettings, config: Mapping[str, object], where: str
) -> Callable[[], Iterator[str]]:
    """Return a function that yields the ``tokenizer.json`` of a SentencePiece BPE model.

    Parameters
    ----------
    vocabulary : Vocabulary
        The model's pieces, U+2581 standing for a space.
    settings : TextSettings
        Its text settings.
    config : Mapping
        GGUF metadata, for the scores.
    where : str
        The file, to start messages with.

    Returns
    -------
    callable
        Yields the same text at each call.

    Raises
    ------
    TokenizerError
        If the scores do not determine the merges: absent, not finite, the same for two pieces
        that can both be merged (runs of one letter apart, as vocabularies have them for spaces);
        or if a piece is reached in a way that merges cannot express.
    """
    if config.get(f"{PREFIX}remove_extra_whitespaces") is True:
        raise TokenizerError(
            f"{where}: {PREFIX}remove_extra_whitespaces is true, which this build does not "
            f"rebuild; give token ids instead of text"
        )
    scores = _scores(vocabulary, config, where)
    # With a space put before each text, the library would also put it before the token's own text.
    searched_in_normalized = not settings.add_space_prefix
    if not searched_in_normalized:
        vocabulary = _with_real_spaces(vocabulary, where)
    pieces = vocabulary.pieces
    normal = frozenset(
        piece for piece, kind in zip(pieces, vocabulary.kinds, strict=True) if kind == Kind.NORMAL
    )
    order = _merge_order(vocabulary, normal, scores, where)
    unknown = settings.special_text.get("unk")
    to_space = _replace(" ", SPACE)
    from_space = _replace(SPACE, " ")
    decoders: list[dict[str, object]] = [from_space, {"type": "ByteFallback"}, {"type": "Fuse"}]
    normalizer = to_space
    if settings.add_space_prefix:
        prepend = {"type": "Prepend", "prepend": SPACE}
        normalizer = {"type": "Sequence", "normalizers": [prepend, to_space]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    pipeline: dict[str, object] = {
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": bos_eos_template(settings),
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
    model: dict[str, object] = {
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
    }
    return lambda: document(
        vocabulary,
        pipeline,
        model,
        _merges(pieces, order, scores, normal),
        normalized_user_tokens=searched_in_normalized,
    )


def _replace(text: str, by: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def _merges(
    pieces: Sequence[str], order: Sequence[int], scores: Sequence[float], normal: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """All merges, best first; of equal scores the longest left part, then right part.

    Pieces of equal score are runs of one letter. Leftmost first means that the leftmost run grows
    until it cannot, and a rank that prefers a longer left part does the same.
    """
    for _, tied in groupby(order, key=scores.__getitem__):
        cuts = [cut for token_id in tied for cut in _cuts(pieces[token_id], normal)]
        yield from sorted(cuts, key=lambda cut: (-len(cut[0]), -len(cut[1])))


def _cuts(piece: str, normal: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Every way to cut a piece into two pieces."""
    for cut in range(1, len(piece)):
        if piece[:cut] in normal and piece[cut:] in normal:
            yield piece[:cut], piece[cut:]


def _scores(vocabulary: Vocabulary, config: Mapping[str, object], where: str) -> Sequence[float]:
    stored = config.get(f"{PREFIX}scores")
    if not isinstance(stored, list) or len(stored) != len(vocabulary.pieces):
        raise TokenizerError(
            f"{where}: {PREFIX}scores must hold {len(vocabulary.pieces)} values, one for each "
            f"token; without them the order of merges is unknown"
        )
    try:
        scores = array("d", stored)
    except TypeError:
        raise TokenizerError(f"{where}: {PREFIX}scores holds something else than numbers") from None
    for token_id, score in enumerate(scores):
        if not math.isfinite(score):
            raise TokenizerError(
                f"{where}: token {token_id} has score {score} in {PREFIX}scores; expected a finite "
                f"number"
            )
    return scores


def _merge_order(
    vocabulary: Vocabulary, normal: frozenset[str], scores: Sequence[float], where: str
) -> array[int]:
    """Ids of the pieces that merging can make, best score first."""
    pieces = vocabulary.pieces
    order = array("l")
    for token_id, kind in enumerate(vocabulary.kinds):
        piece = pieces[token_id]
        if kind not in (Kind.NORMAL, Kind.UNUSED) or len(piece) < 2:
            continue
        mergeable = next(_cuts(piece, normal), None) is not None
        if kind == Kind.UNUSED:
            # Converters fill ids that have no piece with such names; they are not in the model.
            if mergeable and not _PADDING.fullmatch(piece):
                raise TokenizerError(
                    f"{where}: token {token_id} ({shown(piece)}) is unused but can be merged from "
                    f"others, which this build does not rebuild; give token ids instead of text"
                )
            continue
        if any(letter not in normal for letter in piece) and not _hidden(piece, vocabulary):
            raise TokenizerError(
                f"{where}: token {token_id} ({shown(piece)}) contains a letter that is no token; "
                f"its merges cannot be rebuilt; give token ids instead of text"
            )
        if mergeable:
            order.append(token_id)
    ranked = array("l", sorted(order, key=lambda token_id: (-scores[token_id], token_id)))
    for first, second in pairwise(ranked):
        if scores[first] == scores[second] and len({*pieces[first], *pieces[second]}) > 1:
            raise TokenizerError(
                f"{where}: tokens {first} ({shown(pieces[first])}) and {second} "
                f"({shown(pieces[second])}) have the same score {scores[first]:g}, so the order of "
                f"merges is unknown; give token ids instead of text"
            )
    return ranked


def _hidden(piece: str, vocabulary: Vocabulary) -> bool:
    """Whether a user-defined token, which is matched before any merge, always breaks the piece."""
    return any(
        kind == Kind.USER_DEFINED and other in piece
        for other, kind in zip(vocabulary.pieces, vocabulary.kinds, strict=True)
    )


def _with_real_spaces(vocabulary: Vocabulary, where: str) -> Vocabulary:
    """Spell user-defined tokens with spaces, as they stand in the raw text they are searched in."""
    pieces = [
        piece.replace(SPACE, " ") if kind == Kind.USER_DEFINED else piece
        for piece, kind in zip(vocabulary.pieces, vocabulary.kinds, strict=True)
    ]
    if len(set(pieces)) != len(pieces):
        raise TokenizerError(
            f"{where}: two tokens differ only in how they spell a space; their texts cannot be "
            f"told apart"
        )
    return Vocabulary(pieces, vocabulary.kinds, vocabulary.forced_special)
