"""Containers of recorded oracles, each made once and run once on each backend."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.container import Container
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.session import Session
from tests.builders.containers import copy_container, edit_index, make_container
from tests.oracles.recorded import Oracle, load_oracle

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Case:
    """An oracle's container, of which nothing else is left.

    Attributes
    ----------
    oracle : Oracle
    container : Container
        As extracted.
    orphan : Container
        A copy whose index names a family that there is not. The checkpoint that both were made
        from is deleted.
    """

    oracle: Oracle
    container: Container
    orphan: Container

    @property
    def context(self) -> int:
        """Positions of the prompt and of all that is generated."""
        return len(self.oracle.tokens) + len(self.oracle.greedy)

    @cache  # noqa: B019 - there are as many as there are oracles
    def run(self, backend: str, depth: int | None = None) -> Run:
        return open_run(self.container, RunOptions(backend=backend, draft_depth=depth))

    def session(self, run: Run, chunk: int | None = None) -> Session:
        return Session(run.prepared, self.context, chunk)


@pytest.fixture(scope="session")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Extract an oracle's checkpoint, once, and delete the checkpoint."""
    at = tmp_path_factory.mktemp("oracles")

    @cache
    def made(name: str) -> Case:
        oracle = load_oracle(name)
        source = Path(shutil.copytree(oracle.checkpoint, at / name / "checkpoint"))
        container = make_container(source, at / name / "whole.vindex3")
        shutil.rmtree(source)

        def rename(index: dict[str, object]) -> None:
            index["family"] = "no such family"

        copy = edit_index(copy_container(container.path, at / name / "orphan.vindex3"), rename)
        return Case(oracle, container, Container(copy))

    return made


@pytest.fixture(scope="session")
def prefill(case_of: Callable[[str], Case]) -> Callable[[str, str], tuple[Float32, Float32]]:
    """Carrier and logits of an oracle's prompt and greedy tokens, all advanced at once."""

    @cache
    def computed(name: str, backend: str) -> tuple[Float32, Float32]:
        case = case_of(name)
        session = case.session(case.run(backend))
        carrier = session.advance([*case.oracle.tokens, *case.oracle.greedy])
        return carrier, session.logits(carrier)

    return computed
