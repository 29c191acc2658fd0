"""Tiny containers with every kind of continuation state, and drafters that know the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from larql.format.container import Container
from larql.runtime.backends.base import Carrier
from larql.runtime.draft.drafter import Drafter
from larql.runtime.session import Session
from tests.builders.containers import make_container
from tests.builders.models import (
    GemmaSpec,
    LlamaSpec,
    write_gemma_safetensors,
    write_llama_safetensors,
)
from tests.oracles.recorded import OWN

# By what they keep between positions.
_MAKERS: Mapping[str, Callable[[Path], Path]] = {
    "rows": lambda at: write_llama_safetensors(at / "rows", LlamaSpec(layers=3)),
    "windows": lambda at: write_gemma_safetensors(at / "windows", GemmaSpec()),
    "delta": lambda at: OWN / "qwen3_5" / "checkpoint",
    "convolution": lambda at: OWN / "lfm2" / "checkpoint",
    "ssm": lambda at: OWN / "granitemoehybrid-dense" / "checkpoint",
    "latent": lambda at: OWN / "deepseek_v3" / "checkpoint",
    "embeddings": lambda at: OWN / "gemma4-embeddings" / "checkpoint",
}
STATES = tuple(_MAKERS)


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Container]:
    """Make the container of one entry of ``STATES`` when it is first asked for."""
    at = tmp_path_factory.mktemp("states")
    made: dict[str, Container] = {}

    def get(name: str) -> Container:
        if name not in made:
            made[name] = make_container(_MAKERS[name](at), at / f"{name}.vindex3")
        return made[name]

    return get


class Scripted(Drafter):
    """Knows how a stream goes on, and says so, or something else, always or as it is told.

    It also writes down the hash of the session's state whenever a block is done.
    """

    name = "scripted"

    def __init__(
        self, stream: Sequence[int], session: Session, lie: Callable[[int], bool], vocab: int
    ) -> None:
        self.stream = list(stream)
        self.hashes: dict[int, str] = {}
        self.started = False
        self._session, self._lie, self._vocab = session, lie, vocab

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        assert list(tokens) == self.stream[: len(tokens)]
        following = self.stream[len(tokens) : len(tokens) + count]
        return [
            (token + 1) % self._vocab if self._lie(len(tokens) + i) else token
            for i, token in enumerate(following)
        ]

    def saw(self, start: int, carrier: Carrier) -> None:
        assert start + len(carrier) == self._session.position
        self.hashes[self._session.position] = self._session.snapshot().sha256()
