"""Blocks of a few positions are recorded as single ones are, and are the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from larql.format.container import Container
from larql.runtime.observe.declaration import Declaration
from larql.runtime.observe.observation import Observation
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.runtime.observing import Events

# So that lengths come again after others, and blocks of keys are crossed.
CUTS = (3, 3, 2, 3, 1, 2, 33, 3, 2, 32, 5, 5, 3, 33)
TOKENS = [(7 * i * i + 3 * i) % 79 for i in range(sum(CUTS))]


@pytest.mark.parametrize("name", ["rows", "windows", "delta", "latent", "embeddings"])
def test_blocks_that_come_again(states: Callable[[str], Container], name: str) -> None:
    run = open_run(states(name), RunOptions())
    whole = Session(run.prepared, len(TOKENS)).advance(TOKENS)
    seen = []
    for observed in (False, True):
        events = Events()
        observer = Observation(run.prepared, Declaration(), events) if observed else None
        session = Session(run.prepared, len(TOKENS), None, observer)
        for count in CUTS:
            at = session.position
            found = session.advance(TOKENS[at : at + count])
            assert found.tobytes() == whole[at : at + count].tobytes(), (at, count)
        seen.append(events.all)
    single = Events()
    session = Session(
        run.prepared, len(TOKENS), 1, Observation(run.prepared, Declaration(), single)
    )
    session.advance(TOKENS)
    assert seen[1] and [str(event) for event in seen[1]] == [str(event) for event in single.all]
