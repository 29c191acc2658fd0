"""Which text files a container gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from larql.errors import SourceError, TokenizerError
from larql.format.source.checkpoint import open_checkpoint
from larql.format.tokenizer import TokenizerFile, companion_files, tokenizer_files
from tests.builders.gguf import GGML_F32, Typed, write_gguf
from tests.tokenizer.support import FakeCheckpoint, byte_level, content, loaded, sentencepiece

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
ALL_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)


def directory(root: Path, **files: bytes) -> FakeCheckpoint:
    side_files = {}
    for name, data in files.items():
        side_files[name] = root / name
        side_files[name].write_bytes(data)
    return FakeCheckpoint("safetensors", root, {}, side_files)


def names(files: dict[str, TokenizerFile]) -> set[str]:
    assert all(name == file.name for name, file in files.items())
    return set(files)


def test_files_beside_weights_are_carried_byte_for_byte(tmp_path: Path) -> None:
    data = {name: f"{name}\r\n\xff".encode("latin-1") * 200_000 for name in ALL_NAMES}
    data["tokenizer.json"] = b'{"model": "' + b"\xc3\xa9\r" * 500_000 + b'"}\n'
    checkpoint = directory(tmp_path, **data, **{"vocab.json": b"{}", "LICENSE": b"x"})
    files = dict(tokenizer_files(checkpoint))  # type: ignore[arg-type]
    assert names(files) == set(ALL_NAMES)
    for name, file in files.items():
        assert file.origin == "carried"
        assert content(file) == data[name] == content(file)
        assert max(len(chunk) for chunk in file.chunks()) <= 1 << 20


@pytest.mark.parametrize(
    ("present", "message"),
    [
        ("tokenizer.model", "a SentencePiece model alone is not read"),
        ("vocab.json", "a vocabulary without tokenizer.json"),
        ("config.json", "has no tokenizer.json"),
    ],
)
def test_a_directory_without_tokenizer_json_says_so(
    present: str, message: str, tmp_path: Path
) -> None:
    checkpoint = directory(tmp_path, **{present: b"{}", "generation_config.json": b"{}"})
    with pytest.raises(TokenizerError, match=message):
        tokenizer_files(checkpoint)  # type: ignore[arg-type]
    assert set(companion_files(checkpoint)) == {"generation_config.json"}  # type: ignore[arg-type]


def test_a_pointer_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path, **{"tokenizer.json": POINTER})
    with pytest.raises(TokenizerError, match="Git LFS pointer"):
        tokenizer_files(checkpoint)  # type: ignore[arg-type]


def test_a_file_that_vanishes_before_it_is_written_is_refused(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path, **{"tokenizer.json": b'{"model": {}}'})
    file = tokenizer_files(checkpoint)["tokenizer.json"]  # type: ignore[arg-type]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="no such file"):
        content(file)


def test_gguf_gives_settings_end_ids_and_templates() -> None:
    checkpoint = byte_level(
        control=("<|end|>", "<s>", "<|eot|>", "<|eom|>", "<pad>"),
        bos_token_id=1,
        eot_token_id=2,
        eom_token_id=3,
        padding_token_id=4,
        add_bos_token=True,
    )
    config = {
        **checkpoint.config,
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_template.tool_use": "tools: \u00e9",
        "tokenizer.chat_templates": ["tool_use"],
    }
    files = dict(tokenizer_files(FakeCheckpoint("gguf", Path("m"), config)))  # type: ignore[arg-type]
    assert names(files) == set(ALL_NAMES) - {"special_tokens_map.json"}
    assert {file.origin for file in files.values()} == {"rebuilt"}
    assert json.loads(content(files["generation_config.json"])) == {
        "bos_token_id": 1,
        "eos_token_id": [0, 2, 3],
        "pad_token_id": 4,
    }
    settings = json.loads(content(files["tokenizer_config.json"]))
    assert settings["add_bos_token"] is True
    assert settings["add_eos_token"] is False
    assert (settings["eos_token"], settings["eos_token_id"]) == ("<|end|>", 0)
    assert settings["chat_template"] == [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "tool_use", "template": "tools: \u00e9"},
    ]
    assert content(files["chat_template.jinja"]) == b"{{ messages }}"


def test_nothing_is_invented_for_a_gguf_that_declares_nothing() -> None:
    checkpoint = byte_level()
    config = {key: value for key, value in checkpoint.config.items() if "eos" not in key}
    files = tokenizer_files(FakeCheckpoint("gguf", Path("m"), config))  # type: ignore[arg-type]
    assert set(files) == {"tokenizer.json", "tokenizer_config.json"}
    assert "chat_template" not in json.loads(content(files["tokenizer_config.json"]))


def test_a_whole_tokenizer_json_in_the_metadata_is_carried() -> None:
    text = '{"model": "\u00e9"}'
    config = {**byte_level(pre="made-up").config, "tokenizer.huggingface.json": text}
    files = tokenizer_files(FakeCheckpoint("gguf", Path("m"), config))  # type: ignore[arg-type]
    assert content(files["tokenizer.json"]) == text.encode()
    assert files["tokenizer.json"].origin == "carried"
    assert "generation_config.json" in files


def test_a_refused_tokenizer_leaves_its_companions() -> None:
    refused = byte_level(pre="made-up")
    assert set(companion_files(refused)) == {  # type: ignore[arg-type]
        "tokenizer_config.json",
        "generation_config.json",
    }
    broken = byte_level(eos_token_id=99999)
    assert companion_files(broken) == {}  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match="chat_template is a int"):
        tokenizer_files(  # type: ignore[arg-type]
            FakeCheckpoint("gguf", Path("m"), {**byte_level().config, "tokenizer.chat_template": 3})
        )


def test_a_gguf_without_tokenizer() -> None:
    config = {"tokenizer.chat_template": "x"}
    checkpoint = FakeCheckpoint("gguf", Path("model.gguf"), config)
    with pytest.raises(TokenizerError, match="metadata holds no tokenizer"):
        tokenizer_files(checkpoint)  # type: ignore[arg-type]
    assert set(companion_files(checkpoint)) == {"chat_template.jinja"}  # type: ignore[arg-type]


def test_other_programs_get_bos_from_the_rebuilt_file(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    checkpoint = sentencepiece([("a", -1.0, 1)], add_eos_token=True, add_space_prefix=False)
    loaded(checkpoint, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("a").ids == [1, 259, 2]
    assert tokenizer.encode("a", "a").ids == [1, 259, 2, 1, 259, 2]


def test_metadata_through_the_real_reader(tmp_path: Path) -> None:
    checkpoint = byte_level(((b"h", b"i"),), control=("<|end|>", "<\u00e9>"))
    path = tmp_path / "model.gguf"
    tensor = ("token_embd.weight", (1, 32), GGML_F32, b"\0" * 128)
    write_gguf(path, {"general.architecture": "llama", **checkpoint.config}, [tensor])
    with open_checkpoint(path) as opened:
        files = tokenizer_files(opened)
    assert content(files["tokenizer.json"]) == content(
        tokenizer_files(checkpoint)["tokenizer.json"]  # type: ignore[arg-type]
    )


def test_tokens_that_are_not_text_are_a_refusal_of_the_tokenizer(tmp_path: Path) -> None:
    metadata = {**byte_level(((b"h", b"i"),)).config, "general.architecture": "llama"}
    metadata["tokenizer.ggml.tokens"] = Typed("string", [b"\xff", b"a"])
    path = tmp_path / "model.gguf"
    tensor = ("token_embd.weight", (1, 32), GGML_F32, b"\0" * 128)
    write_gguf(path, metadata, [tensor])
    with open_checkpoint(path) as opened:
        with pytest.raises(SourceError):
            opened.config["tokenizer.ggml.tokens"]
        with pytest.raises(TokenizerError, match="not UTF-8"):
            tokenizer_files(opened)


def test_making_files_needs_neither_the_library_nor_numpy() -> None:
    code = (
        "import sys, larql.format.tokenizer\n"
        "assert not {'tokenizers', 'numpy', 'jinja2'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
