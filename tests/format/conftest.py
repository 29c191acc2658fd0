"""One container for the tests of a session; a test that damages it works on a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.containers import copy_container, make_container
from tests.builders.models import LlamaSpec, write_llama_safetensors

SMALL = LlamaSpec(tokenizer=True)


@pytest.fixture(scope="session")
def small_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that ``small`` was made from."""
    return write_llama_safetensors(tmp_path_factory.mktemp("source") / "model", SMALL)


@pytest.fixture(scope="session")
def small(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """T0 with a tokenizer, as a container. Not to be changed."""
    return make_container(small_source, tmp_path_factory.mktemp("containers") / "t0.vindex3").path


@pytest.fixture
def damaged(small: Path, tmp_path: Path) -> Path:
    """A copy of ``small`` to damage."""
    return copy_container(small, tmp_path / "t0.vindex3")
