"""Which text files a container stores, and where each one's bytes come from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from larql.errors import TokenizerError
from larql.format.tokenizer.byte_level import byte_level_json
from larql.format.tokenizer.sentencepiece import sentencepiece_json
from larql.format.tokenizer.stream import encoded, quoted
from larql.format.tokenizer.vocabulary import TextSettings, read_settings, read_vocabulary
from larql.format.untrusted import POINTER_LIMIT, open_regular, read_exactly, refuse_pointer

if TYPE_CHECKING:
    from larql.format.source.checkpoint import Checkpoint

__all__ = [
    "SOURCE_CONFIG",
    "TokenizerFile",
    "companion_files",
    "configuration_file",
    "licence_files",
    "tokenizer_files",
]

SOURCE_CONFIG = "source_config.json"
"""A checkpoint's ``config.json`` as a container carries it: for writing the checkpoint back."""

TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
COMPANIONS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    TEMPLATE,
)
_TEMPLATE_KEY = "tokenizer.chat_template"
_WHOLE_JSON_KEY = "tokenizer.huggingface.json"
LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt", "USE_POLICY.md")
_CHUNK = 1 << 20

Chunks = Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class TokenizerFile:
    """One text file of a container.

    Attributes
    ----------
    name : str
        File name inside the container.
    origin : {"carried", "rebuilt"}
        Whether the bytes are a checkpoint file's own, or made from GGUF metadata.
    chunks : callable
        ``chunks()`` yields the content from its start, the same bytes at each call.
    """

    name: str
    origin: Literal["carried", "rebuilt"]
    chunks: Chunks


def tokenizer_files(checkpoint: Checkpoint) -> Mapping[str, TokenizerFile]:
    """Return every text file that a container made from ``checkpoint`` stores.

    Files beside safetensors weights are carried verbatim. From GGUF metadata a ``tokenizer.json``
    in the format of the Hugging Face ``tokenizers`` library is rebuilt, and with it a
    ``tokenizer_config.json``, a ``generation_config.json`` with the end-of-text ids, and
    ``chat_template.jinja``.

    Parameters
    ----------
    checkpoint : Checkpoint
        The source, open. GGUF metadata stays referenced by what is returned.

    Returns
    -------
    Mapping of str to TokenizerFile
        By file name; always with ``tokenizer.json``.

    Raises
    ------
    TokenizerError
        If there is no tokenizer that can be carried, or none that can be rebuilt exactly. The
        checkpoint can still be extracted: :func:`companion_files` returns the other files.
    """
    if checkpoint.format == "gguf":
        return {TOKENIZER: _rebuilt_tokenizer(checkpoint), **_rebuilt_companions(checkpoint)}
    path = checkpoint.side_files.get(TOKENIZER)
    if path is None:
        raise TokenizerError(_why_missing(checkpoint))
    carried = _carried(TOKENIZER, path)
    _refuse_broken(path)
    return {TOKENIZER: carried, **companion_files(checkpoint)}


def companion_files(checkpoint: Checkpoint) -> Mapping[str, TokenizerFile]:
    """Return the text files other than ``tokenizer.json``: settings, end ids, chat template.

    Parameters
    ----------
    checkpoint : Checkpoint
        The source, open.

    Returns
    -------
    Mapping of str to TokenizerFile
        By file name; may be empty.

    Raises
    ------
    TokenizerError
        If a file is a Git LFS pointer or cannot be read.
    """
    if checkpoint.format == "gguf":
        try:
            return _rebuilt_companions(checkpoint)
        except TokenizerError:
            # tokenizer_files() has already said what is wrong with them.
            return {}
    return {
        name: _carried(name, checkpoint.side_files[name])
        for name in COMPANIONS
        if name in checkpoint.side_files
    }


def licence_files(checkpoint: Checkpoint) -> Mapping[str, TokenizerFile]:
    """Return the licence texts that are part of a checkpoint directory.

    What lies beside a GGUF file may belong to something else, and is left there.
    """
    if checkpoint.format == "gguf":
        return {}
    present = checkpoint.side_files
    return {name: _carried(name, present[name]) for name in LICENCE_FILES if name in present}


def configuration_file(checkpoint: Checkpoint) -> Mapping[str, TokenizerFile]:
    """Return the configuration beside safetensors weights, under the name that containers use.

    It is carried so that the checkpoint can be written back. Nothing that executes reads it.

    Raises
    ------
    TokenizerError
        If it cannot be read.
    """
    if checkpoint.format == "gguf":
        return {}
    return {SOURCE_CONFIG: _carried(SOURCE_CONFIG, checkpoint.root / "config.json")}


def _why_missing(checkpoint: Checkpoint) -> str:
    if "tokenizer.model" in checkpoint.side_files:
        return (
            f"{checkpoint.side_files['tokenizer.model']}: a SentencePiece model alone is not read; "
            f"put the tokenizer.json of the same model beside it, or give token ids"
        )
    if "vocab.json" in checkpoint.side_files:
        return (
            f"{checkpoint.side_files['vocab.json']}: a vocabulary without tokenizer.json does not "
            f"say how text is split; put the tokenizer.json of the same model beside it, or give "
            f"token ids"
        )
    return f"{checkpoint.root}: has no tokenizer.json; give token ids instead of text"


def _refuse_broken(path: Path) -> None:
    """Refuse a file that cannot be a tokenizer, without the memory that loading one takes."""
    has_model, first, last, tail = False, b"", b"", b""
    with open_regular(path, TokenizerError) as (descriptor, _):
        while chunk := os.read(descriptor, _CHUNK):
            first = first or chunk.lstrip()[:1]
            last = chunk.rstrip()[-1:] or last
            has_model = has_model or b'"model"' in tail + chunk
            tail = chunk[-8:]
    if (first, last, has_model) != (b"{", b"}", True):
        raise TokenizerError(
            f"{path}: is not a whole tokenizer in JSON (an object with a `model`); fetch it again"
        )


def _carried(name: str, path: Path) -> TokenizerFile:
    with open_regular(path, TokenizerError) as (descriptor, status):
        head = read_exactly(
            descriptor, 0, min(status.st_size, POINTER_LIMIT), str(path), TokenizerError
        )
        refuse_pointer(head, str(path), TokenizerError)

    def chunks() -> Iterator[bytes]:
        with open_regular(path, TokenizerError) as (descriptor, _):
            while chunk := os.read(descriptor, _CHUNK):
                yield chunk

    return TokenizerFile(name, "carried", chunks)


def _rebuilt(name: str, text: Callable[[], Iterator[str]]) -> TokenizerFile:
    return TokenizerFile(name, "rebuilt", lambda: encoded(text()))


def _document(name: str, content: Mapping[str, object]) -> TokenizerFile:
    text = json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    return _rebuilt(name, lambda: iter((text,)))


def _rebuilt_tokenizer(checkpoint: Checkpoint) -> TokenizerFile:
    config, where = checkpoint.config, str(checkpoint.root)
    whole = config.get(_WHOLE_JSON_KEY)
    if isinstance(whole, str) and whole:
        return TokenizerFile(TOKENIZER, "carried", lambda: encoded(iter((whole,))))
    settings = read_settings(config, where)
    if settings.model == "gpt2":
        vocabulary = read_vocabulary(config, settings, where)
        return _rebuilt(TOKENIZER, byte_level_json(vocabulary, settings, config, where))
    if settings.model == "llama":
        vocabulary = read_vocabulary(config, settings, where)
        return _rebuilt(TOKENIZER, sentencepiece_json(vocabulary, settings, config, where))
    raise TokenizerError(
        f"{where}: tokenizer.ggml.model is {quoted(settings.model)}; expected gpt2 (byte-level "
        f"BPE) or llama (SentencePiece BPE); give token ids instead of text"
    )


def _rebuilt_companions(checkpoint: Checkpoint) -> Mapping[str, TokenizerFile]:
    config, where = checkpoint.config, str(checkpoint.root)
    templates = _templates(config, where)
    files: dict[str, TokenizerFile] = {}
    if "tokenizer.ggml.model" in config:
        settings = read_settings(config, where)
        files["tokenizer_config.json"] = _document(
            "tokenizer_config.json", _tokenizer_config(settings, templates)
        )
        if settings.end_ids:
            files["generation_config.json"] = _document(
                "generation_config.json", _generation_config(settings)
            )
    if "default" in templates:
        template = templates["default"]
        files[TEMPLATE] = _rebuilt(TEMPLATE, lambda: iter((template,)))
    return files


def _templates(config: Mapping[str, object], where: str) -> dict[str, str]:
    """Chat templates by name; the key without a name holds the default one."""
    templates: dict[str, str] = {}
    for key in config:
        if key != _TEMPLATE_KEY and not key.startswith(f"{_TEMPLATE_KEY}."):
            continue
        value = config[key]
        if not isinstance(value, str):
            raise TokenizerError(f"{where}: {key} is a {type(value).__name__}; expected a string")
        templates[key[len(_TEMPLATE_KEY) + 1 :] or "default"] = value
    return templates


def _tokenizer_config(settings: TextSettings, templates: Mapping[str, str]) -> dict[str, object]:
    content: dict[str, object] = {
        "add_bos_token": settings.add_bos,
        "add_eos_token": settings.add_eos,
        "clean_up_tokenization_spaces": False,
    }
    for role, token_id in settings.special.items():
        content[f"{role}_token"] = settings.special_text[role]
        content[f"{role}_token_id"] = token_id
    if set(templates) - {"default"}:
        content["chat_template"] = [
            {"name": name, "template": text} for name, text in templates.items()
        ]
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    return content


def _generation_config(settings: TextSettings) -> dict[str, object]:
    content: dict[str, object] = {"eos_token_id": list(settings.end_ids)}
    for role in ("bos", "pad"):
        if role in settings.special:
            content[f"{role}_token_id"] = settings.special[role]
    return content
