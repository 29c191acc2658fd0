"""A tiny byte-level BPE tokenizer of 256 tokens, as ``tokenizer.json`` and as GGUF metadata.

Three tokens are special, 243 are the bytes that occur in UTF-8 text, ten are merges. It fits a
vocabulary of 256 because 13 byte values never occur in UTF-8.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.builders.gguf import Typed, u32

END, START, TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END, START, TURN)
MERGES = ("Ġ t", "h e", "Ġ a", "i n", "e r", "Ġt he", "o n", "Ġ i", "a n", "r e")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter of each byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + n) for n, byte in enumerate(others)}


def pieces() -> list[str]:
    """Tokens in id order."""
    letters = byte_letters()
    listed = [*SPECIAL, *(letters[byte] for byte in range(256) if byte not in _NEVER_IN_UTF8)]
    return [*listed, *(merge.replace(" ", "") for merge in MERGES)]


def tokenizer_json(*, bos: bool = False) -> dict[str, object]:
    """The ``tokenizer.json`` of the Hugging Face ``tokenizers`` library."""
    template = None
    if bos:
        first, a, b = (
            {"SpecialToken": {"id": END, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        )
        template = {
            "type": "TemplateProcessing",
            "single": [first, a],
            "pair": [first, a, b],
            "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}},
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, text in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": template,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: number for number, piece in enumerate(pieces())},
            "merges": [merge.split(" ") for merge in MERGES],
        },
    }


def write_tokenizer_files(directory: Path, *, bos: bool = False) -> None:
    """Write the tokenizer, its configuration and the generation configuration."""
    config = {
        "add_bos_token": bos,
        "bos_token": END,
        "chat_template": TEMPLATE,
        "eos_token": TURN,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for name, content in (
        ("tokenizer.json", tokenizer_json(bos=bos)),
        ("tokenizer_config.json", config),
        ("generation_config.json", {"bos_token_id": 0, "eos_token_id": [2, 0]}),
    ):
        (directory / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def gguf_tokenizer(vocab: int, *, bos: bool = False) -> dict[str, object]:
    """The same as GGUF metadata; ids above 255 are unused."""
    tokens = pieces()
    if vocab < len(tokens):
        raise ValueError(f"a vocabulary of {vocab} does not hold {len(tokens)} tokens")
    unused = [f"[PAD{number}]" for number in range(len(tokens), vocab)]
    kinds = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)) + [5] * len(unused)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *unused],
        "tokenizer.ggml.token_type": Typed("i32", kinds),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": u32(0),
        "tokenizer.ggml.eos_token_id": u32(2),
        "tokenizer.ggml.eot_token_id": u32(0),
        "tokenizer.ggml.add_bos_token": bos,
        "tokenizer.chat_template": TEMPLATE,
    }
