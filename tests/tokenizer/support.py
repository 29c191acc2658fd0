"""Small tokenizers made in the tests, as GGUF metadata or as files of a container."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from larql.format.tokenizer import TokenizerFile, tokenizer_files
from larql.runtime.text import TextTokenizer, load_tokenizer

DATA = Path(__file__).parent / "data"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True)
class FakeCheckpoint:
    """What the code under test uses of a checkpoint."""

    format: str
    root: Path
    config: Mapping[str, object] = field(default_factory=dict)
    side_files: Mapping[str, Path] = field(default_factory=dict)


def gguf(**metadata: object) -> FakeCheckpoint:
    """A GGUF checkpoint with ``tokenizer.ggml.*`` metadata."""
    config = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return FakeCheckpoint("gguf", Path("model.gguf"), config)


def content(file: TokenizerFile) -> bytes:
    return b"".join(file.chunks())


def written(checkpoint: FakeCheckpoint, directory: Path) -> dict[str, Path]:
    """Write all text files of a checkpoint, as a container has them."""
    files = {}
    for name, file in tokenizer_files(checkpoint).items():  # type: ignore[arg-type]
        files[name] = directory / name
        files[name].write_bytes(content(file))
    return files


def loaded(checkpoint: FakeCheckpoint, directory: Path) -> TextTokenizer:
    return load_tokenizer(written(checkpoint, directory))


def golden(name: str) -> dict[str, object]:
    document = json.loads((DATA / name).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def alphabet() -> dict[int, str]:
    """GPT-2's alphabet, in the words of its paper: bytes that do not print are moved up."""
    table, moved = {}, 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + moved)
            moved += 1
    return table


def byte_level(
    merges: Sequence[tuple[bytes, bytes]] = (),
    *,
    pre: str | None = "gpt-2",
    control: Sequence[str] = ("<|end|>",),
    user: Sequence[str] = (),
    **more: object,
) -> FakeCheckpoint:
    """A byte-level model: special tokens first, then all bytes, then what the merges make."""
    bytes_of = alphabet()
    spelled = [
        tuple("".join(bytes_of[byte] for byte in part) for part in merge) for merge in merges
    ]
    tokens = [*control, *user, *bytes_of.values(), *("".join(pair) for pair in spelled)]
    types = [CONTROL] * len(control) + [USER_DEFINED] * len(user)
    types += [NORMAL] * (len(tokens) - len(types))
    metadata: dict[str, object] = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(pair) for pair in spelled],
        "eos_token_id": 0,
        **more,
    }
    if pre is not None:
        metadata["pre"] = pre
    return gguf(**metadata)


def sentencepiece(
    pieces: Sequence[tuple[str, float, int]], *, byte_tokens: bool = True, **more: object
) -> FakeCheckpoint:
    """A SentencePiece model: ``<unk>``, ``<s>``, ``</s>``, bytes, then the given pieces."""
    table: list[tuple[str, float, int]] = [
        ("<unk>", 0.0, UNKNOWN),
        ("<s>", 0.0, CONTROL),
        ("</s>", 0.0, CONTROL),
    ]
    if byte_tokens:
        table += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    table += pieces
    metadata: dict[str, object] = {
        "model": "llama",
        "tokens": [piece for piece, _, _ in table],
        "scores": [score for _, score, _ in table],
        "token_type": [kind for _, _, kind in table],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **more,
    }
    return gguf(**{key: value for key, value in metadata.items() if value is not None})
