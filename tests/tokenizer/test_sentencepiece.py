"""SentencePiece BPE rebuilt from GGUF metadata, against ids that SentencePiece itself gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import TokenizerError
from larql.format.tokenizer import tokenizer_files
from larql.runtime.text import TextTokenizer
from tests.tokenizer.support import (
    NORMAL,
    UNUSED,
    USER_DEFINED,
    FakeCheckpoint,
    content,
    gguf,
    golden,
    loaded,
    sentencepiece,
)

SPACE = "\u2581"
LETTERS = [(letter, -100.0 - index, NORMAL) for index, letter in enumerate("abch" + SPACE)]


def trained(name: str) -> tuple[FakeCheckpoint, list[Any]]:
    document = golden(name)
    cases = document["cases"]
    assert isinstance(cases, list)
    keys = ("tokens", "scores", "token_type", "add_space_prefix")
    checkpoint = gguf(
        model="llama",
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        **{key: document[key] for key in keys},
    )
    return checkpoint, cases


@pytest.mark.parametrize("name", ["sentencepiece_prefix.json", "sentencepiece_plain.json"])
def test_ids_are_those_of_sentencepiece(name: str, tmp_path: Path) -> None:
    checkpoint, cases = trained(name)
    tokenizer = loaded(checkpoint, tmp_path)
    different = [
        (text, expected, found)
        for text, expected in cases
        if (found := tokenizer.encode(text, add_bos=False)) != expected
    ]
    assert len(cases) > 300
    assert different == []


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTokenizer]:
    return {
        name: loaded(trained(f"sentencepiece_{name}.json")[0], tmp_path_factory.mktemp(name))
        for name in ("prefix", "plain")
    }


def naive_bpe(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule, read literally: join the best pair, the leftmost of equal ones."""
    symbols = list(text)
    while True:
        pairs = [
            (-scores[whole], index)
            for index in range(len(symbols) - 1)
            if (whole := symbols[index] + symbols[index + 1]) in scores
        ]
        if not pairs:
            return symbols
        index = min(pairs)[1]
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]


@given(text=st.text("helo wrd\n", max_size=40))
def test_merging_follows_the_scores(text: str, models: dict[str, TextTokenizer]) -> None:
    document = golden("sentencepiece_prefix.json")
    tokens, kinds = document["tokens"], document["token_type"]
    assert isinstance(tokens, list) and isinstance(kinds, list)
    scores = dict(zip(tokens, document["scores"], strict=True))  # type: ignore[call-overload]
    normal = {
        token: scores[token] for token, kind in zip(tokens, kinds, strict=True) if kind == NORMAL
    }
    symbols = naive_bpe((SPACE + text.replace(" ", SPACE)) if text else "", normal)
    expected = [
        token_id
        for symbol in symbols
        for token_id in (
            [tokens.index(symbol)]
            if symbol in normal
            else [tokens.index(f"<0x{byte:02X}>") for byte in symbol.encode()]
        )
    ]
    assert models["prefix"].encode(text, add_bos=False) == expected


@given(text=st.text(max_size=40))
@pytest.mark.parametrize("name", ["prefix", "plain"])
def test_any_text_comes_back(name: str, text: str, models: dict[str, TextTokenizer]) -> None:
    spelled = ("<s>", "</s>", "<unk>", SPACE)
    if any(part in text for part in spelled):
        return
    tokenizer = models[name]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(
    lengths=st.sets(st.integers(2, 9), min_size=1),
    runs=st.lists(st.integers(1, 22), min_size=1, max_size=3),
)
def test_runs_of_one_letter_may_share_a_score(
    lengths: set[int], runs: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # As vocabularies have them for spaces, all at -1e9.
    scores = {SPACE * length: -1e9 for length in lengths} | {SPACE + "a": -1.0}
    table = [*LETTERS, *((piece, score, NORMAL) for piece, score in scores.items())]
    checkpoint = sentencepiece(table, add_space_prefix=False)
    tokenizer = loaded(checkpoint, tmp_path_factory.mktemp("runs"))
    text = "".join(" " * run + "ab" for run in runs)
    found = [tokenizer.token_text(item) for item in tokenizer.encode(text, add_bos=False)]
    expected = naive_bpe(text.replace(" ", SPACE), scores)
    assert found == [symbol.replace(SPACE, " ") for symbol in expected]


def merges(checkpoint: FakeCheckpoint) -> list[list[str]]:
    files = tokenizer_files(checkpoint)  # type: ignore[arg-type]
    found: list[list[str]] = json.loads(content(files["tokenizer.json"]))["model"]["merges"]
    return found


def test_merges_come_by_score_and_every_cut_is_one() -> None:
    pieces = [*LETTERS, ("ab", -3.0, NORMAL), ("bc", -1.0, NORMAL), ("abc", -2.0, NORMAL)]
    assert merges(sentencepiece(pieces)) == [["b", "c"], ["ab", "c"], ["a", "bc"], ["a", "b"]]


def test_other_kinds_of_token_take_no_part_in_merges() -> None:
    pieces = [
        *LETTERS,
        ("ab", -1.0, USER_DEFINED),
        ("[PAD7]", -1.0, UNUSED),
        ("abc", -2.0, NORMAL),
        ("ac", -3.0, NORMAL),
    ]
    assert merges(sentencepiece(pieces)) == [["a", "c"]]


def test_user_defined_tokens_are_longest_first_in_normalised_text(tmp_path: Path) -> None:
    pieces = [*LETTERS, ("  ", -9.0, USER_DEFINED), ("   ", -9.0, USER_DEFINED)]
    tokenizer = loaded(sentencepiece(pieces, add_space_prefix=False), tmp_path)

    def pieces_of(text: str) -> list[str]:
        return [tokenizer.token_text(item) for item in tokenizer.encode(text, add_bos=False)]

    assert pieces_of("a  b") == ["a", "  ", "b"]
    assert pieces_of("a     b") == ["a", "   ", "  ", "b"]
    assert pieces_of(f"a{SPACE} b") == ["a", "  ", "b"]
    assert pieces_of("a b") == ["a", " ", "b"]


@pytest.mark.parametrize("spelling", [SPACE * 2, "  "])
def test_user_defined_tokens_with_a_space_put_before_texts(spelling: str, tmp_path: Path) -> None:
    pieces = [*LETTERS, (spelling, -9.0, USER_DEFINED), ("<tag>", -9.0, USER_DEFINED)]
    tokenizer = loaded(sentencepiece(pieces), tmp_path)
    ids = tokenizer.encode("a  b<tag>c", add_bos=False)
    texts = [tokenizer.token_text(item) for item in ids]
    assert texts == [" ", "a", "  ", " ", "b", "<tag>", " ", "c"]


def test_a_space_before_the_text_is_taken_off_again_but_only_there(tmp_path: Path) -> None:
    tokenizer = loaded(sentencepiece(LETTERS), tmp_path)
    ids = tokenizer.encode("ab", add_bos=False)
    assert [tokenizer.token_text(item) for item in ids] == [" ", "a", "b"]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, continuing=True) == " ab"
    assert tokenizer.decode(tokenizer.encode("  ab")) == "  ab"
    assert tokenizer.encode("") == [1]


def test_letters_without_a_piece_become_bytes_or_one_unknown(tmp_path: Path) -> None:
    tokenizer = loaded(sentencepiece(LETTERS, add_space_prefix=False), tmp_path)
    ids = tokenizer.encode("a\u00e9", add_bos=False)
    assert [tokenizer.token_text(item) for item in ids] == ["a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "a\u00e9"
    bare = loaded(sentencepiece(LETTERS, byte_tokens=False, add_space_prefix=False), tmp_path)
    assert bare.encode("a\u00e9\u00e9b", add_bos=False) == [3, 0, 4]


def test_a_piece_is_out_of_reach_behind_a_user_defined_token(tmp_path: Path) -> None:
    pieces = [*LETTERS, ("\t", -1.0, USER_DEFINED), ("a\tb", -2.0, NORMAL)]
    tokenizer = loaded(sentencepiece(pieces, add_space_prefix=False), tmp_path)
    ids = tokenizer.encode("a\tb", add_bos=False)
    assert [tokenizer.token_text(item) for item in ids] == ["a", "\t", "b"]


@pytest.mark.parametrize(
    ("pieces", "more", "message"),
    [
        ([("ab", -1.0), ("bc", -1.0)], {}, "264 ('ab') and 265 ('bc') have the same score -1"),
        ([("aq", -1.0)], {}, "264 ('aq') contains a letter that is no token"),
        ([("ab", float("nan"))], {}, "token 264 has score nan"),
        ([("ab", float("inf"))], {}, "token 264 has score inf"),
        ([], {"scores": None}, "scores must hold 264 values"),
        ([], {"scores": [0.0]}, "scores must hold 264 values"),
        ([], {"scores": ["x"] * 264}, "something else than numbers"),
        ([], {"remove_extra_whitespaces": True}, "remove_extra_whitespaces is true"),
    ],
)
def test_what_scores_do_not_determine_is_refused(
    pieces: list[tuple[str, float]], more: dict[str, object], message: str
) -> None:
    table = [*LETTERS, *((piece, score, NORMAL) for piece, score in pieces)]
    with pytest.raises(TokenizerError) as refusal:
        tokenizer_files(sentencepiece(table, **more))  # type: ignore[arg-type]
    assert message in str(refusal.value)
    assert str(refusal.value).startswith("model.gguf: ")
    assert "\n" not in str(refusal.value)


def test_equal_scores_do_not_matter_where_nothing_is_merged() -> None:
    pieces = [*LETTERS, ("q", -100.0, NORMAL), ("xyz", -5.0, USER_DEFINED), ("ab", -5.0, NORMAL)]
    assert merges(sentencepiece(pieces)) == [["a", "b"]]


def test_an_unused_piece_that_merging_would_make_is_refused() -> None:
    with pytest.raises(TokenizerError, match="is unused but can be merged"):
        tokenizer_files(sentencepiece([*LETTERS, ("ab", -1.0, UNUSED)]))  # type: ignore[arg-type]


def test_names_that_converters_fill_gaps_with_are_no_pieces() -> None:
    letters = [(letter, -50.0 - index, NORMAL) for index, letter in enumerate("[PAD7]")]
    pieces = [*letters, ("[P", -1.0, NORMAL), ("AD", -2.0, NORMAL), ("[PAD", -3.0, NORMAL)]
    checkpoint = sentencepiece([*pieces, ("7]", -4.0, NORMAL), ("[PAD7]", -1.0, UNUSED)])
    assert merges(checkpoint) == [["[", "P"], ["A", "D"], ["[P", "AD"], ["7", "]"]]


def test_two_spellings_of_a_space_cannot_be_told_apart() -> None:
    pieces = [*LETTERS, ("  ", -9.0, USER_DEFINED), (SPACE * 2, -9.0, USER_DEFINED)]
    with pytest.raises(TokenizerError, match="differ only in how they spell a space"):
        tokenizer_files(sentencepiece(pieces))  # type: ignore[arg-type]


def test_bos_is_added_unless_the_file_says_not(tmp_path: Path) -> None:
    assert loaded(sentencepiece(LETTERS), tmp_path).bos_ids == (1,)
    assert loaded(sentencepiece(LETTERS, add_bos_token=False), tmp_path).bos_ids == ()
    with pytest.raises(TokenizerError, match=r"BOS, but tokenizer\.ggml\.bos_token_id is"):
        tokenizer_files(sentencepiece(LETTERS, bos_token_id=None))  # type: ignore[arg-type]
