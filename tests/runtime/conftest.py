"""Tiny containers that runtime tests share, made once for a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from larql.format.container import Container
from tests.builders.containers import make_container
from tests.builders.models import (
    GemmaSpec,
    LlamaSpec,
    Scaling,
    write_gemma_gguf,
    write_gemma_safetensors,
    write_llama_gguf,
    write_llama_safetensors,
)

LLAMA = LlamaSpec(layers=3, attention_bias=True, mlp_bias=True)
LLAMA3 = LlamaSpec(scaling=Scaling("llama3", 8.0), tied=True, tokenizer=True)
GEMMA = GemmaSpec(factor=2.0)
QUANTISED = LlamaSpec(hidden=256, heads=4, ffn=512, layers=2, gguf_type="q4_k")

_MAKERS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda at: write_llama_safetensors(at / "llama", LLAMA),
    "llama3": lambda at: write_llama_safetensors(at / "llama3", LLAMA3),
    "llama_gguf": lambda at: write_llama_gguf(at / "llama.gguf", LlamaSpec(gguf_type="q4_1")),
    "gemma": lambda at: write_gemma_safetensors(at / "gemma", GEMMA),
    "gemma_gguf": lambda at: write_gemma_gguf(at / "gemma.gguf", GemmaSpec(gguf_type="q8_0")),
    "quantised": lambda at: write_llama_gguf(at / "quantised.gguf", QUANTISED),
}
NAMES = tuple(_MAKERS)


@pytest.fixture(scope="session")
def containers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Container]:
    """One container for each entry of ``NAMES``."""
    at = tmp_path_factory.mktemp("containers")
    return {
        name: make_container(make(at), at / f"{name}.vindex3") for name, make in _MAKERS.items()
    }


@pytest.fixture(params=NAMES)
def container(request: pytest.FixtureRequest, containers: dict[str, Container]) -> Container:
    """Each of the containers in turn."""
    return containers[request.param]


@pytest.fixture(params=("production", "reference"))
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend in turn."""
    return str(request.param)


@pytest.fixture(
    params=("production", "production q8", "production f32 f16", "reference", "reference f32 f16")
)
def numerics(request: pytest.FixtureRequest) -> str:
    """Each backend under each of its activation policies and forms of keys and values."""
    return str(request.param)
