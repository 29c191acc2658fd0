"""The two real models: values that other programs give for the same files."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from larql.format.source.checkpoint import open_checkpoint
from larql.format.tokenizer import tokenizer_files
from larql.runtime.chat import load_chat_template
from larql.runtime.text import TextTokenizer, load_tokenizer
from tests.tokenizer.support import content, golden

pytestmark = pytest.mark.real

MEASURED = """
import re, sys
from pathlib import Path
from larql.format.source.checkpoint import open_checkpoint
from larql.format.tokenizer import tokenizer_files
with open_checkpoint(Path(sys.argv[1])) as checkpoint:
    for name, file in tokenizer_files(checkpoint).items():
        with (Path(sys.argv[2]) / name).open("wb") as out:
            out.writelines(file.chunks())
assert "tokenizers" not in sys.modules
# Not getrusage(): its peak includes the process that this one was forked from.
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def rebuilt(gguf: Path, directory: Path) -> tuple[dict[str, Path], int]:
    """Rebuild in a process of its own; also its peak memory in KiB."""
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, str(gguf), str(directory)],
        check=True,
        capture_output=True,
        text=True,
    )
    return {path.name: path for path in directory.iterdir()}, int(run.stdout)


@pytest.fixture(scope="module")
def s_files(s_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return rebuilt(s_gguf, tmp_path_factory.mktemp("s"))[0]


@pytest.fixture(scope="module")
def g_files(g_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], int]:
    return rebuilt(g_gguf, tmp_path_factory.mktemp("g"))


@pytest.fixture(scope="module")
def s_text(s_files: dict[str, Path]) -> TextTokenizer:
    return load_tokenizer(s_files)


@pytest.fixture(scope="module")
def g_text(g_files: tuple[dict[str, Path], int]) -> TextTokenizer:
    return load_tokenizer(g_files[0])


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("1234", [33, 34, 35, 36]),
        ("\U0001f999", [10813, 116, 243]),
        ("\n\n", [1116]),
    ],
)
def test_s_values(text: str, ids: list[int], s_text: TextTokenizer) -> None:
    assert s_text.encode(text) == ids
    assert s_text.decode(ids) == text


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The capital of France is", [2, 818, 5279, 529, 7001, 563]),
        ("\U0001f999", [2, 478, 397, 404, 391]),
        ("a  b", [2, 236746, 138, 236763]),
    ],
)
def test_g_values(text: str, ids: list[int], g_text: TextTokenizer) -> None:
    assert g_text.encode(text) == ids
    assert g_text.encode(text, add_bos=False) == ids[1:]
    assert g_text.encode(f"<bos>{text}") == ids
    assert g_text.decode(ids) == text


def different(tokenizer: TextTokenizer, name: str) -> list[Any]:
    cases = golden(name)["cases"]
    assert isinstance(cases, list)
    assert len(cases) > 250
    return [
        (text, expected, found)
        for text, expected in cases
        if (found := tokenizer.encode(text, add_bos=False)) != expected
    ]


def test_s_over_a_varied_corpus(s_text: TextTokenizer) -> None:
    assert different(s_text, "real_s.json") == []


def test_g_over_a_varied_corpus(g_text: TextTokenizer) -> None:
    assert different(g_text, "real_g.json") == []


@pytest.mark.parametrize("name", ["real_s.json", "real_g.json"])
def test_the_corpus_comes_back(name: str, s_text: TextTokenizer, g_text: TextTokenizer) -> None:
    tokenizer = s_text if name == "real_s.json" else g_text
    cases = golden(name)["cases"]
    assert isinstance(cases, list)
    for text, ids in cases:
        stream = tokenizer.stream(skip_special=False)
        parts = [stream.push(token_id) for token_id in ids]
        whole = tokenizer.decode(ids, skip_special=False)
        assert "".join(parts) + stream.flush() == whole
        # A literal U+2581 is a space to SentencePiece, and comes back as one.
        assert whole == (text.replace("\u2581", " ") if name == "real_g.json" else text)


def test_what_is_declared(s_text: TextTokenizer, g_text: TextTokenizer) -> None:
    assert (s_text.bos_ids, s_text.end_of_text()) == ((), (2,))
    assert (g_text.bos_ids, g_text.end_of_text()) == ((2,), (1,))
    assert (s_text.vocabulary_size, g_text.vocabulary_size) == (49152, 262144)


def test_a_conversation_with_s(s_files: dict[str, Path], s_text: TextTokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = load_chat_template(s_files).render(messages)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = s_text.encode(text)
    assert [ids[0], ids[-3:]] == [1, [520, 9531, 198]]
    assert s_text.decode(ids, skip_special=False) == text


def test_rebuilding_g_stays_small(g_files: tuple[dict[str, Path], int]) -> None:
    files, kilobytes = g_files
    assert kilobytes < 160 * 1024
    assert files["tokenizer.json"].stat().st_size == 15_938_256


def test_files_are_the_same_bytes_each_time(s_gguf: Path, s_files: dict[str, Path]) -> None:
    with open_checkpoint(s_gguf) as checkpoint:
        for name, file in tokenizer_files(checkpoint).items():
            expected = hashlib.sha256(s_files[name].read_bytes()).hexdigest()
            assert hashlib.sha256(content(file)).hexdigest() == expected
