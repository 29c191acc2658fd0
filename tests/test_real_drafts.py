"""Drafting on the two real models: same ids, and scores of depths that are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.runtime.draft.choice import make_drafter
from larql.runtime.draft.drafter import Speculation
from larql.runtime.draft.rungs import score_rungs
from larql.runtime.generate import generate
from larql.runtime.run import RunOptions, open_run
from larql.runtime.sampling import Sampler, Sampling

pytestmark = pytest.mark.real

TOKENS = {"s_container": [504, 3575, 282, 4649, 314], "g_container": [2, 818, 5279, 529, 7001, 563]}


@pytest.mark.parametrize("model", TOKENS)
def test_drafts_change_no_token(model: str, request: pytest.FixtureRequest) -> None:
    run = open_run(Container(request.getfixturevalue(model)), RunOptions())
    ids = TOKENS[model] * 3
    for sampling in (Sampling(), Sampling(0.8, seed=5)):
        made = []
        for name in (None, "ngram", "depth:15"):
            session = run.session(64)
            carrier, row = run.timed_advance(session, ids)
            speculation = None if name is None else Speculation(make_drafter(name, run, 64), 4)
            if speculation is not None:
                speculation.begin(session, ids, carrier, 24)
            stream = generate(run, session, row, 24, Sampler(sampling), (), ids, speculation)
            made.append(list(stream))
        assert made[1] == made[0] and made[2] == made[0]


def test_depths_of_a_short_text(s_container: Path) -> None:
    run = open_run(Container(s_container), RunOptions())
    found = score_rungs(run.prepared, TOKENS["s_container"], [15, 29, 30], None, SilentProgress())
    means = [float(scores.divergence.mean()) for scores in found.scores]
    assert means[0] > 8 > 4 > means[1] > 0 == means[2]
