"""Running commands in this process, and the tiny models that they are run on."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from larql.cli.main import main
from tests.builders.containers import make_container
from tests.builders.hub_server import use_only
from tests.builders.hub_uploads import TOKEN, UploadHub
from tests.builders.models import (
    GemmaSpec,
    LlamaSpec,
    write_gemma_safetensors,
    write_llama_gguf,
    write_llama_safetensors,
)

LLAMA = LlamaSpec(layers=3, tokenizer=True, bos=True)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one run of a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The strict JSON document on standard output."""
        return json.loads(self.out, parse_constant=_refuse_constant)

    @property
    def problem(self) -> str:
        """The one line with which the command was refused."""
        assert self.status != 0
        lines = self.err.splitlines()
        errors = [line for line in lines if line.startswith("larql: error: ")]
        assert len(errors) == 1, self.err
        assert "Traceback" not in self.err
        assert "defect of larql" not in self.err, self.err
        return errors[0].removeprefix("larql: error: ")

    def ok(self) -> Answer:
        assert self.status == 0, self.err
        return self


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


Run = Callable[..., Answer]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process; ``stdin`` is text, bytes, or None for a closed stream."""

    def run(*arguments: object, stdin: str | bytes | None = "") -> Answer:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        stream = None if content is None else io.TextIOWrapper(io.BytesIO(content), "utf-8")
        monkeypatch.setattr(sys, "stdin", stream)
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        found = capsys.readouterr()
        return Answer(status, found.out, found.err)

    return run


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of models; never written to by tests.

    ``llama`` and ``gemma`` (checkpoints), ``llama.gguf`` (in blocks of 8 bits), and each of them
    as ``*.vindex3``.
    """
    at = tmp_path_factory.mktemp("models")
    write_llama_safetensors(at / "llama", LLAMA)
    write_gemma_safetensors(at / "gemma", GemmaSpec())
    write_llama_gguf(at / "llama.gguf", dataclasses.replace(LLAMA, gguf_type="q8_0"))
    for name in ("llama", "gemma", "llama.gguf"):
        make_container(at / name, at / f"{name}.vindex3")
    # A first run tells that it compiles, which would come between what tests look for.
    assert main(["exec", str(at / "llama.vindex3"), "--tokens", "1", "-n", "2", "--quiet"]) == 0
    return at


@pytest.fixture
def llama(models: Path) -> Path:
    """A container with three layers and a tokenizer that begins texts with <|endoftext|>."""
    return models / "llama.vindex3"


@pytest.fixture
def gemma(models: Path) -> Path:
    """A container with windows of 4 positions and no tokenizer."""
    return models / "gemma.vindex3"


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, but for the compiled kernels."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernels").symlink_to(Path(os.environ["LARQL_CACHE_DIR"]) / "kernels")
    monkeypatch.setenv("LARQL_CACHE_DIR", str(cache))
    return cache


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UploadHub]:
    """A hub that can be published to, and a token that may."""
    with UploadHub() as server:
        use_only(server, tmp_path, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        server.tokens.add(TOKEN)
        yield server
