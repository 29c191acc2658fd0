"""How each rule cuts a text, as written down by hand from the rule's own words."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer

from larql.format.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.tokenizer.support import alphabet

TEXT = "I'LL see  it's 12345\n\n x=y/\t\u4f60\u597d HelloWorld"

GPT2 = "I|'|LL| see| | it|'s| 12345|\n\n| x|=|y|/|\t|\u4f60\u597d| HelloWorld"
DIGITS = "I|'|LL| see| | it|'s| |1|2|3|4|5|\n\n| x|=|y|/|\t|\u4f60\u597d| HelloWorld"
LLAMA3 = "I|'LL| see| | it|'s| |123|45|\n\n| x|=y|/|\t\u4f60\u597d| HelloWorld"
QWEN2 = "I|'LL| see| | it|'s| |1|2|3|4|5|\n\n| x|=y|/|\t\u4f60\u597d| HelloWorld"
DEEPSEEK = "I|'|LL| see| | it|'|s| |1|2|3|4|5|\n|\n| x|=|y|/|\t|\u4f60\u597d| HelloWorld"

EXPECTED = {
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "mpt": GPT2,
    "olmo": GPT2,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "command-r": DIGITS,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "dbrx": LLAMA3,
    "qwen2": QWEN2,
    "qwen35": QWEN2,
    "tekken": "I|'LL| see| | it|'s| |1|2|3|4|5|\n\n| x|=y|/|\t\u4f60\u597d| Hello|World",
    "gpt-4o": "I'LL| see| | it's| |123|45|\n\n| x|=y|/|\t\u4f60\u597d| Hello|World",
    "deepseek-llm": DEEPSEEK,
    "deepseek-coder": DEEPSEEK,
    "deepseek-v3": "I|'LL| see| | it|'s| |123|45|\n\n| x|=y|/|\t|\u4f60\u597d| HelloWorld",
}


def cut(stages: Sequence[object], text: str, normalizer: object = None) -> list[str]:
    document = {
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(stages)},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    tokenizer = Tokenizer.from_str(json.dumps(document))
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def pieces(name: str, text: str) -> list[bytes]:
    rule = PRE_TOKENIZERS[name]
    byte_of = {letter: byte for byte, letter in alphabet().items()}
    normalizer = {"type": "NFC"} if rule.composes else None
    return [
        bytes(byte_of[letter] for letter in piece) for piece in cut(rule.stages, text, normalizer)
    ]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_text_is_cut_as_the_rule_says(name: str) -> None:
    assert pieces(name, TEXT) == [piece.encode() for piece in EXPECTED[name].split("|")]


def test_no_rule_is_without_an_expected_cut() -> None:
    assert sorted(PRE_TOKENIZERS) == sorted([*EXPECTED, "falcon"])


def test_falcon_looks_for_digits_in_the_spelling_of_bytes() -> None:
    # The byte 0xBD is spelled with the sign for one half, which counts as a digit.
    assert pieces("falcon", "it's 12345! \u4f60") == [
        b"it", b"'", b"s", b" ", b"123", b"45", b"!", b" \xe4", b"\xbd", b"\xa0",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["mpt", "olmo", "command-r", "qwen2", "qwen35"])
def test_some_rules_compose_letters_first(name: str) -> None:
    assert b"".join(pieces(name, "e\u0301")) == "\u00e9".encode()


def test_combining_marks_stay_with_their_letter_where_the_rule_says_so() -> None:
    text = "\u0915\u094d\u0937"
    assert pieces("qwen35", text) == [text.encode()]
    assert pieces("qwen2", text) == [text[:1].encode(), text[1:].encode()]


def test_case_splits_words_before_contractions() -> None:
    assert pieces("gpt-4o", "aB'll") == [b"a", b"B'll"]
    assert pieces("tekken", "aB'll") == [b"a", b"B", b"'ll"]
    assert pieces("gpt-4o", " ./\n/x") == [b" ./\n/", b"x"]
    assert pieces("llama-bpe", " ./\n/x") == [b" ./\n", b"/x"]


@pytest.mark.parametrize("letter", ["\u212a", "\u1f7d", "\u1fbe", "\u2126", "\u00e9", "\u0434"])
def test_letters_that_normalisation_would_change_are_in_the_deepseek_class(letter: str) -> None:
    assert cut([PRE_TOKENIZERS["deepseek-llm"].stages[1]], f"a{letter}5") == [f"a{letter}", "5"]


@pytest.mark.parametrize("sign", ["[", "@", "\u4f60", "\u05d0", "\u01bb"])
def test_other_signs_are_not_in_the_deepseek_letter_class(sign: str) -> None:
    assert cut([PRE_TOKENIZERS["deepseek-llm"].stages[1]], f"a{sign}b") == ["a", sign, "b"]


def test_deepseek_counts_latin_letters_as_punctuation_too() -> None:
    # Its punctuation runs from the colon to the tilde, and the letters lie between.
    assert pieces("deepseek-llm", "caf\u00e9s") == [b"caf", "\u00e9".encode(), b"s"]
