"""A hub, an empty cache of the hub's and one of larql's, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.hub_server import HubServer, use_only


class Recorder:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.done: list[int] = []
        self.open = 0

    def start(self, label: str, total: int | None) -> None:
        self.stages.append((label, total))
        self.done.append(0)
        self.open += 1

    def advance(self, n: int) -> None:
        self.done[-1] += n

    def finish(self) -> None:
        self.open -= 1


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def larql_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "larql-cache"
    monkeypatch.setenv("LARQL_CACHE_DIR", str(path))
    return path


@pytest.fixture
def hub(tmp_path: Path, larql_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        use_only(server, tmp_path, monkeypatch)
        yield server
