"""Byte-level BPE rebuilt from GGUF metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from larql.errors import TokenizerError
from larql.format.tokenizer import tokenizer_files
from larql.format.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.tokenizer.support import CONTROL, byte_level, loaded

MERGES = (
    (b"h", b"e"),
    (b"l", b"l"),
    (b"he", b"ll"),
    (b"hell", b"o"),
    (b" ", b"w"),
    (b" w", b"o"),
    (b"1", b"2"),
    (b"12", b"3"),
    (b"\xcc", b"\x81"),
)


def token(text: str, directory: Path, **settings: object) -> list[str]:
    tokenizer = loaded(byte_level(MERGES, **settings), directory)  # type: ignore[arg-type]
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text)]


def test_merges_apply_in_order(tmp_path: Path) -> None:
    assert token("hello world", tmp_path) == ["hello", " wo", "r", "l", "d"]
    assert token("hell", tmp_path) == ["hell"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["123"]),
        ("llama-bpe", ["123"]),
        ("smollm", ["1", "2", "3"]),
        ("qwen2", ["1", "2", "3"]),
    ],
)
def test_the_named_split_bounds_the_merges(pre: str, expected: list[str], tmp_path: Path) -> None:
    assert token("123", tmp_path, pre=pre, add_bos_token=False) == expected


def test_letters_are_composed_only_where_the_rule_says_so(tmp_path: Path) -> None:
    assert token("e\u0301", tmp_path, pre="gpt-2") == ["e", "\u0301"]
    assert token("e\u0301", tmp_path, pre="qwen2") == ["<0xC3>", "<0xA9>"]


def test_whole_words_skip_the_merges(tmp_path: Path) -> None:
    # "lo" is a token that no merge makes.
    checkpoint = byte_level(MERGES, pre="llama-bpe", add_bos_token=False)
    tokens = [*checkpoint.config["tokenizer.ggml.tokens"], "lo"]  # type: ignore[misc]
    types = [*checkpoint.config["tokenizer.ggml.token_type"], 1]  # type: ignore[misc]
    config = {
        **checkpoint.config,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
    }
    for pre, expected in (("llama-bpe", 1), ("dbrx", 2)):
        files = type(checkpoint)("gguf", Path("m"), {**config, "tokenizer.ggml.pre": pre})
        assert len(loaded(files, tmp_path).encode("lo")) == expected


def test_special_and_user_tokens_in_text(tmp_path: Path) -> None:
    checkpoint = byte_level(MERGES, user=("<think>", " \u00e9"))
    tokenizer = loaded(checkpoint, tmp_path)
    assert tokenizer.encode("a<|end|><think> \u00e9")[1:] == [0, 1, 2]
    ids = [0, 1, 2]
    assert tokenizer.decode(ids) == "<think> \u00e9"
    assert tokenizer.decode(ids, skip_special=False) == "<|end|><think> \u00e9"


def test_a_declared_end_is_special_even_where_kinds_are_absent(tmp_path: Path) -> None:
    tokenizer = loaded(byte_level(MERGES, token_type=None), tmp_path)
    assert tokenizer.encode("<|end|>") == [0]
    assert tokenizer.decode([0]) == ""


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3", "llama-v3", "tekken"])
def test_bos_is_added_by_default_where_readers_do(pre: str, tmp_path: Path) -> None:
    control = ("<|end|>", "<|begin|>")
    tokenizer = loaded(byte_level((), pre=pre, control=control, bos_token_id=1), tmp_path)
    assert tokenizer.bos_ids == (1,)
    without = byte_level((), pre=pre, control=control, bos_token_id=1, add_bos_token=False)
    assert loaded(without, tmp_path).bos_ids == ()
    assert loaded(byte_level((), control=control, bos_token_id=1), tmp_path).bos_ids == ()


def test_every_rule_loads_and_loses_nothing(tmp_path: Path) -> None:
    text = "I'LL see  Caf\u00e9's 12345\n\n x=y/\t\u4f60\u597d HelloWorld \U0001f999\r\n"
    for name in PRE_TOKENIZERS:
        tokenizer = loaded(byte_level(MERGES, pre=name, add_bos_token=False), tmp_path)
        assert tokenizer.decode(tokenizer.encode(text)) == text, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre": "default"}, "does not say how text is split"),
        ({"pre": None}, "is absent, so the file does not say how text is split"),
        ({"pre": "made-up"}, "pre-tokenizer 'made-up'"),
        ({"add_space_prefix": True}, "add_space_prefix is true"),
        ({"merges": ["h e", "x"]}, "merge 1 is 'x'"),
        ({"merges": ["h "]}, "merge 0 is 'h '"),
        ({"merges": ["h e", "he q"]}, "merge 1 needs 'heq'"),
        ({"merges": None}, "merges holds no list"),
        ({"merges": [1]}, "merges holds no list"),
        ({"model": "rwkv"}, 'tokenizer.ggml.model is "rwkv"'),
        ({"model": None}, "metadata holds no tokenizer"),
        ({"model": 3}, "model is '3'; expected a string"),
        ({"pre": 3}, "pre is '3'; expected a string"),
        ({"tokens": []}, "tokens holds no tokens"),
        ({"tokens": ["a", "b", "a"], "token_type": None}, "tokens 0 and 2 are both 'a'"),
        ({"token_type": [1, 2]}, "token_type must hold"),
        ({"eos_token_id": 100000}, "eos_token_id is 100000, but the vocabulary has"),
        ({"eos_token_id": True}, "expected a token id"),
        ({"eos_token_id": "0"}, "expected a token id"),
        ({"add_bos_token": 1}, "add_bos_token is '1'; expected true or false"),
        ({"add_bos_token": True}, "texts are to start or end with BOS"),
        ({"add_eos_token": True, "eos_token_id": None}, "texts are to start or end with EOS"),
    ],
)
def test_what_cannot_be_rebuilt_exactly_is_refused(change: dict[str, object], message: str) -> None:
    checkpoint = byte_level(MERGES)
    config = {
        key: value
        for key, value in {
            **checkpoint.config,
            **{f"tokenizer.ggml.{key}": value for key, value in change.items()},
        }.items()
        if value is not None
    }
    with pytest.raises(TokenizerError) as refusal:
        tokenizer_files(type(checkpoint)("gguf", Path("model.gguf"), config))  # type: ignore[arg-type]
    text = str(refusal.value)
    assert message in text
    assert text.startswith("model.gguf: ")
    assert "\n" not in text


@pytest.mark.parametrize("kind", [0, 7, -1, 300])
def test_an_unknown_kind_of_token_is_refused(kind: int) -> None:
    checkpoint = byte_level()
    types = [kind, *checkpoint.config["tokenizer.ggml.token_type"][1:]]  # type: ignore[index]
    config = {**checkpoint.config, "tokenizer.ggml.token_type": types}
    with pytest.raises(TokenizerError, match=f"token 0 has type {kind} "):
        tokenizer_files(type(checkpoint)("gguf", Path("model.gguf"), config))  # type: ignore[arg-type]


def test_an_id_of_minus_one_is_none(tmp_path: Path) -> None:
    tokenizer = loaded(byte_level(padding_token_id=0xFFFFFFFF, bos_token_id=-1), tmp_path)
    assert tokenizer.end_of_text() == (0,)


def test_empty_tokens_are_told_apart(tmp_path: Path) -> None:
    checkpoint = byte_level(control=("<|end|>", "", ""))
    assert checkpoint.config["tokenizer.ggml.token_type"][1] == CONTROL  # type: ignore[index]
    tokenizer = loaded(checkpoint, tmp_path)
    assert [tokenizer.token_text(1), tokenizer.token_text(2)] == ["[EMPTY_1]", "[EMPTY_2]"]


def test_bytes_without_a_token_are_refused_instead_of_lost(tmp_path: Path) -> None:
    checkpoint = byte_level()
    tokens = list(checkpoint.config["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    tokens[tokens.index("\u0104")] = "unrelated"  # U+0104 spells the byte 0x04
    config = {**checkpoint.config, "tokenizer.ggml.tokens": tokens}
    tokenizer = loaded(type(checkpoint)("gguf", Path("m"), config), tmp_path)
    assert tokenizer.encode("abc")
    with pytest.raises(TokenizerError, match="byte 0x04"):
        tokenizer.encode("a\x04b")
