"""Text to ids and back, and what is declared about beginnings and ends."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import TokenizerError
from larql.runtime.detokenize import DecoderRule, displayed, read_decoder
from larql.runtime.text import TextTokenizer, load_tokenizer, special_token_texts
from tests.tokenizer.support import NORMAL, byte_level, loaded, sentencepiece, written

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PIECES = [
    ("a", -1.0, NORMAL),
    ("b", -2.0, NORMAL),
    ("\u2581", -3.0, NORMAL),
    ("\u2581a", -0.5, NORMAL),
    ("\u00e9", -4.0, NORMAL),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTokenizer]:
    made = {
        "bytes": byte_level(((b"h", b"e"), (b"\xf0", b"\x9f")), user=("<think>",)),
        "pieces": sentencepiece(PIECES, add_space_prefix=False),
        "prefixed": sentencepiece(PIECES),
    }
    return {
        name: loaded(checkpoint, tmp_path_factory.mktemp(name)) for name, checkpoint in made.items()
    }


NAMES = pytest.mark.parametrize("name", ["bytes", "pieces", "prefixed"])


@NAMES
@given(data=st.data())
def test_a_stream_is_the_text_of_all_ids(
    name: str, data: st.DataObject, models: dict[str, TextTokenizer]
) -> None:
    tokenizer = models[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=30))
    skip, continuing = data.draw(st.booleans()), data.draw(st.booleans())
    stream = tokenizer.stream(skip_special=skip, continuing=continuing)
    parts = [stream.push(token_id) for token_id in ids]
    whole = tokenizer.decode(ids, skip_special=skip, continuing=continuing)
    assert "".join(parts) + stream.flush() == whole


@NAMES
@given(data=st.data())
def test_a_stream_shows_whole_characters_as_soon_as_they_are_there(
    name: str, data: st.DataObject, models: dict[str, TextTokenizer]
) -> None:
    tokenizer = models[name]
    text = data.draw(st.text(st.sampled_from("ab \u00e9\u4f60\U0001f999\n"), max_size=12))
    stream, seen, held = tokenizer.stream(), "", b""
    for token_id in tokenizer.encode(text, add_bos=False):
        seen += stream.push(token_id)
        assert "\ufffd" not in seen
        held += tokenizer._table[token_id]
        whole = held.decode(errors="ignore")
        assert seen == (whole[1:] if name == "prefixed" and whole[:1] == " " else whole)
    assert stream.flush() == ""
    assert seen == text


@NAMES
@given(data=st.data())
def test_valid_text_decodes_as_the_library_decodes_it(
    name: str, data: st.DataObject, models: dict[str, TextTokenizer]
) -> None:
    tokenizer = models[name]
    text = data.draw(st.text(st.sampled_from("ab \u00e9\u4f60<think>\U0001f999"), max_size=20))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer._tokenizer.decode(ids, skip_special_tokens=True)


def test_half_characters_wait_and_broken_ones_are_replaced(
    models: dict[str, TextTokenizer],
) -> None:
    tokenizer = models["pieces"]
    llama = [3 + byte for byte in "\U0001f999".encode()]
    stream = tokenizer.stream()
    assert [stream.push(item) for item in llama] == ["", "", "", "\U0001f999"]
    assert [stream.push(item) for item in llama[:2]] == ["", ""]
    assert stream.flush() == "\ufffd"
    a = tokenizer.encode("a", add_bos=False)
    assert [stream.push(item) for item in [*llama[:3], *a]] == ["", "", "", "\ufffda"]


@pytest.mark.parametrize("token_id", [-1, 10**9, 2**40])
def test_an_id_beyond_the_vocabulary_is_refused(
    token_id: int, models: dict[str, TextTokenizer]
) -> None:
    for tokenizer in models.values():
        stream = tokenizer.stream()
        with pytest.raises(TokenizerError, match=f"{token_id} is no token; the vocabulary has"):
            stream.push(token_id)
        with pytest.raises(TokenizerError):
            tokenizer.decode([token_id])
        assert tokenizer.token_text(token_id) == f"<id {token_id}>"


def test_one_token_for_display(models: dict[str, TextTokenizer]) -> None:
    prefixed = models["prefixed"]
    shown = [prefixed.token_text(item) for item in prefixed.encode("a\U0001f999")]
    assert shown == ["<s>", " a", "<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"]
    bytewise = models["bytes"]
    shown = [bytewise.token_text(item) for item in bytewise.encode("he<think>\U0001f999")]
    assert shown == ["he", "<think>", "<0xF0><0x9F>", "<0xA6>", "<0x99>"]


def test_only_the_first_space_is_taken_off(models: dict[str, TextTokenizer]) -> None:
    tokenizer = models["prefixed"]
    a, space, space_a = (3 + 256 + index for index in (0, 2, 3))
    assert tokenizer.decode([space_a, space_a]) == "a a"
    assert tokenizer.decode([a, space_a]) == "a a"
    assert tokenizer.decode([space, space_a]) == " a"
    assert tokenizer.decode([1, space_a]) == "a"


def test_added_tokens_stand_for_their_own_letters(tmp_path: Path) -> None:
    # Both letters also spell bytes, which as such are no text.
    tokenizer = loaded(byte_level(user=("\u00e9\u00e8",)), tmp_path)
    assert tokenizer.decode(tokenizer.encode("a\u00e9\u00e8")) == "a\u00e9\u00e8"
    assert tokenizer.token_text(1) == "\u00e9\u00e8"


def test_valid_and_broken_bytes_in_one_token() -> None:
    assert displayed(b" a\xf0\x9fb\xc3\xa9\xff") == " a<0xF0><0x9F>b\u00e9<0xFF>"
    assert displayed(b"") == ""


def test_text_that_is_not_unicode_is_refused(models: dict[str, TextTokenizer]) -> None:
    with pytest.raises(TokenizerError, match="character 1 is half a surrogate pair"):
        models["bytes"].encode("a\ud83e")


def test_exactly_one_bos(models: dict[str, TextTokenizer]) -> None:
    tokenizer = models["prefixed"]
    plain = tokenizer.encode("a", add_bos=False)
    assert plain[0] != 1
    assert tokenizer.encode("a") == [1, *plain]
    assert tokenizer.encode("<s>a") == [1, *plain]
    assert tokenizer.encode("<s>a", add_bos=False) == [1, *plain]
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("<s>") == [1]
    assert models["bytes"].encode("a") == models["bytes"].encode("a", add_bos=False)


def document(
    directory: Path,
    *,
    post_processor: object = None,
    decoder: object = BYTES,
    special: tuple[str, ...] = ("<s>", "</s>", "<x>"),
) -> dict[str, Path]:
    """A tokenizer.json as a checkpoint brings it: all bytes, then special tokens from 256."""
    files = written(byte_level(control=()), directory)
    content: dict[str, Any] = json.loads(files["tokenizer.json"].read_text(encoding="utf-8"))
    content["added_tokens"] = [
        {
            "id": 256 + index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, text in enumerate(special)
    ]
    content["post_processor"] = post_processor
    content["decoder"] = decoder
    files["tokenizer.json"].write_text(json.dumps(content), encoding="utf-8")
    return {"tokenizer.json": files["tokenizer.json"]}


def template(*before: str) -> dict[str, object]:
    parts: list[object] = [{"SpecialToken": {"id": text, "type_id": 0}} for text in before]
    parts.append({"Sequence": {"id": "A", "type_id": 0}})
    ids = {"<s>": 256, "</s>": 257, "<x>": 258}
    parts.append({"SpecialToken": {"id": "</s>", "type_id": 0}})
    used = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (*before, "</s>")}
    return {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": [*parts, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": used,
    }


def beside(files: dict[str, Path], **contents: object) -> dict[str, Path]:
    """Add JSON files; a keyword ``tokenizer_config`` is ``tokenizer_config.json``."""
    directory = files["tokenizer.json"].parent
    for name, content in contents.items():
        files[f"{name}.json"] = directory / f"{name}.json"
        files[f"{name}.json"].write_text(json.dumps(content), encoding="utf-8")
    return files


@pytest.mark.parametrize(
    ("before", "config", "expected"),
    [
        ((), {}, ()),
        (("<s>",), {}, (256,)),
        (("<s>", "<x>"), {}, (256, 258)),
        (("<s>",), {"add_bos_token": False}, ()),
        ((), {"add_bos_token": True, "bos_token": "<s>"}, (256,)),
        ((), {"add_bos_token": True, "bos_token": {"content": "<x>"}}, (258,)),
        ((), {"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer"}, (256,)),
        ((), {"bos_token": "<s>", "tokenizer_class": "Qwen2Tokenizer"}, ()),
        (("<x>",), {"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer"}, (258,)),
    ],
)
def test_what_stands_before_a_text(
    before: tuple[str, ...], config: dict[str, object], expected: tuple[int, ...], tmp_path: Path
) -> None:
    files = document(tmp_path, post_processor=template(*before))
    tokenizer = load_tokenizer(beside(files, tokenizer_config=config))
    assert tokenizer.bos_ids == expected
    plain = tokenizer.encode("hi", add_bos=False)
    assert len(plain) == 2
    assert tokenizer.encode("hi") == [*expected, *plain]


def test_several_tokens_before_a_text_are_not_doubled(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(document(tmp_path, post_processor=template("<s>", "<x>")))
    assert tokenizer.encode("<s><x>a")[:3] == tokenizer.encode("a") == [256, 258, 97]
    assert tokenizer.encode("<s>a")[:3] == [256, 258, 256]


def test_end_of_text_is_the_union_of_what_is_declared(tmp_path: Path) -> None:
    files = beside(
        document(tmp_path),
        tokenizer_config={"eos_token": {"content": "</s>"}},
        generation_config={"eos_token_id": [258, 9]},
    )
    tokenizer = load_tokenizer(files)
    assert tokenizer.declared_end_ids == (9, 257, 258)
    assert tokenizer.end_of_text([3, 257]) == (3, 9, 257, 258)


def test_tokens_that_only_look_like_ends_are_not(tmp_path: Path) -> None:
    looks = ("<|im_end|>", "<end_of_turn>", "<|eot_id|>", "</s>")
    tokenizer = load_tokenizer(document(tmp_path, special=looks))
    assert tokenizer.end_of_text() == ()
    declared = beside(document(tmp_path, special=looks), generation_config={"eos_token_id": 257})
    assert load_tokenizer(declared).end_of_text() == (257,)


def test_special_tokens_by_name(tmp_path: Path) -> None:
    files = beside(
        document(tmp_path),
        special_tokens_map={"bos_token": "<s>", "eos_token": {"content": "</s>"}, "x_token": 3},
        tokenizer_config={"eos_token": "<x>", "pad_token": None, "add_bos_token": True},
    )
    assert special_token_texts(files) == {"bos_token": "<s>", "eos_token": "<x>"}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"tokenizer_config": {"eos_token": "<none>"}}, "eos_token is '<none>', which is no token"),
        ({"special_tokens_map": {"eos_token": "<none>"}}, "special_tokens_map.json: eos_token is"),
        ({"tokenizer_config": {"add_bos_token": True}}, "but no bos_token is named"),
        ({"generation_config": {"eos_token_id": "2"}}, "eos_token_id is '2'"),
        ({"generation_config": {"eos_token_id": [1, -2]}}, "expected a token id or a list"),
        ({"generation_config": {"eos_token_id": True}}, "expected a token id or a list"),
        ({"generation_config": []}, "generation_config.json"),
    ],
)
def test_settings_that_contradict_are_refused(
    contents: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError) as refusal:
        load_tokenizer(beside(document(tmp_path), **contents))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_model_without_tokenizer_says_why() -> None:
    with pytest.raises(TokenizerError, match=r"carries no tokenizer; give token ids with --tokens"):
        load_tokenizer({})
    with pytest.raises(TokenizerError, match=r"no tokenizer \(pre-tokenizer 'x' is unknown\); "):
        load_tokenizer({}, reason="pre-tokenizer 'x' is unknown")


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    path = document(tmp_path)["tokenizer.json"]
    whole = path.read_bytes()
    chance = random.Random(0)
    refused = 0
    for turn in range(120):
        damaged = bytearray(whole)
        if turn % 2:
            damaged = damaged[: chance.randrange(len(damaged))]
        else:
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            load_tokenizer({"tokenizer.json": path})
        except TokenizerError as refusal:
            refused += 1
            assert str(refusal).startswith(f"{path}: ")
            assert "\n" not in str(refusal)
    assert refused > 60
    path.unlink()
    with pytest.raises(TokenizerError, match="no such file"):
        load_tokenizer({"tokenizer.json": path})
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 9\n")
    with pytest.raises(TokenizerError, match="Git LFS pointer"):
        load_tokenizer({"tokenizer.json": path})


REPLACE = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}


@pytest.mark.parametrize(
    ("decoder", "rule"),
    [
        (BYTES, DecoderRule(byte_level=True)),
        ({"type": "Sequence", "decoders": [BYTES]}, DecoderRule(byte_level=True)),
        (
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
            DecoderRule(space="\u2581", strip=1),
        ),
        (
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"},
            DecoderRule(space="\u2581"),
        ),
        (
            {
                "type": "Sequence",
                "decoders": [
                    REPLACE,
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            DecoderRule(space="\u2581", byte_fallback=True, strip=1),
        ),
    ],
)
def test_known_decoders(decoder: dict[str, object], rule: DecoderRule) -> None:
    assert read_decoder(decoder, "f") == rule


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (None, "f: decoder None is unknown"),
        ({"type": "WordPiece", "prefix": "##"}, "f: decoder WordPiece is unknown"),
        ({"type": "Sequence", "decoders": [REPLACE, {"type": "CTC"}]}, "decoder CTC is unknown"),
        ({"type": "Strip", "content": " ", "start": 1, "stop": 2}, "decoder Strip is unknown"),
        ({"type": "Strip", "content": "x", "start": 1, "stop": 0}, "decoder Strip is unknown"),
        (
            {"type": "Replace", "pattern": {"Regex": "x"}, "content": " "},
            "decoder Replace is unknown",
        ),
        ({"type": "Sequence", "decoders": [BYTES, REPLACE]}, "ByteLevel is combined"),
    ],
)
def test_other_decoders_are_refused_by_name(
    decoder: dict[str, object] | None, message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        read_decoder(decoder, "f")


def test_a_tokenizer_with_another_decoder_is_refused_when_loaded(tmp_path: Path) -> None:
    wordpiece = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(TokenizerError, match="decoder WordPiece is unknown"):
        load_tokenizer(document(tmp_path, decoder=wordpiece))
    with pytest.raises(TokenizerError, match="decoder None is unknown"):
        load_tokenizer(document(tmp_path, decoder=None))
