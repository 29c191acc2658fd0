"""Two lists of rotary frequencies: the room of a session decides which of them is used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from larql.runtime.observe.declaration import Declaration, Extent, header_of
from larql.runtime.session import Session
from tests.oracles.conftest import Case
from tests.oracles.recorded import NAMES
from tests.oracles.test_oracles import BACKENDS, CLOSE, assert_same_bits

Cases = Callable[[str], Case]
pytestmark = pytest.mark.skipif(
    "phi3-short" not in NAMES, reason="LARQL_TEST_ORACLES names other oracles"
)
ORIGINAL = 32  # of phi3-short, whose prompt and continuation take 28 positions


@BACKENDS
def test_room_beyond_the_original_context_takes_the_long_list_for_all_positions(
    case_of: Cases, backend: str
) -> None:
    case = case_of("phi3-short")
    tokens = case.oracle.tokens
    run = case.run(backend)
    logits = {}
    for context in (len(tokens), ORIGINAL, ORIGINAL + 1, 100):
        session = Session(run.prepared, context)
        logits[context] = session.logits(session.advance(tokens))
    assert_same_bits(logits[len(tokens)], logits[ORIGINAL])
    assert_same_bits(logits[ORIGINAL + 1], logits[100])
    off = np.abs(logits[100] - case.oracle.logits).max() / np.abs(case.oracle.logits).max()
    assert off > 100 * CLOSE
    steps = Session(run.prepared, ORIGINAL + 1)
    single = np.stack([steps.step([token]) for token in tokens])
    assert_same_bits(single, logits[100])


def test_both_backends_take_the_same_list(case_of: Cases) -> None:
    case = case_of("phi3-short")
    rows = []
    for backend in ("production", "reference"):
        session = Session(case.run(backend).prepared, 100)
        rows.append(session.logits(session.advance(case.oracle.tokens)))
    assert np.abs(rows[0] - rows[1]).max() < CLOSE * np.abs(rows[1]).max()


def test_the_list_is_recorded_and_only_where_there_are_two(case_of: Cases) -> None:
    run = case_of("phi3-short").run("reference")
    assert run.provenance([1], ORIGINAL)["rope_list"] == "short"
    assert run.provenance([1], ORIGINAL + 1)["rope_list"] == "long"
    headers = [
        header_of(run, Extent((1, 2)), Declaration(), None, context) for context in (8, 32, 33)
    ]
    assert headers[0] == headers[1]
    assert headers[0]["provenance_fingerprint"] != headers[2]["provenance_fingerprint"]
    other = case_of("llama-yarn").run("reference")
    assert "rope_list" not in other.provenance([1], 8)
    plan = other.prepared.plan
    assert plan.settled(8) is plan
