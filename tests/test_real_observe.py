"""The two real models under observation: the same bits, the lens, the size of a record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import larql
from larql.runtime.model import Model
from larql.runtime.observe.declaration import Declaration
from larql.runtime.observe.lens import Lens

pytestmark = pytest.mark.slow(25)
SENTENCE = "The capital of France is"


@pytest.fixture(scope="module", params=["f32", "q8"])
def activations(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def watched(path: Path, activations: str, record: Path) -> Model:
    """Check that watching changes no bit and that the record is a function of the run."""
    model = larql.open(path, activations=activations, threads=2)
    tokens = model.tokenize(SENTENCE)
    session = model.session(16)
    plain = session.logits(session.advance(tokens))
    tops = [int(token) for token in np.argsort(-plain[-1], kind="stable")[:5]]
    layers = range(model.num_layers)
    lens = Lens(model.run.prepared, layers, attention=True, tokens=tops, top=5)
    seen = model.observe(tokens, declaration=Declaration((lens,)), generate=3, record=record)
    assert seen.lens is not None and seen.end is not None and seen.receipt is not None
    last = seen.lens.top_tokens[len(tokens) - 1, -1]
    assert last.tolist() == tops
    assert seen.lens.ranks[len(tokens) - 1, -1].tolist() == [1, 2, 3, 4, 5]
    total = model.run.prepared.backend.log_sum_exp(plain[-1:])[0]
    found = seen.lens.log_probabilities[len(tokens) - 1, -1]
    np.testing.assert_allclose(found, plain[-1, tops] - total, rtol=0, atol=1e-12)
    assert seen.receipt.readers["lens"]["failure"] is None  # type: ignore[index]
    stepped = [int(plain[-1].argmax())]
    while len(stepped) < 3:
        stepped.append(int(session.step(stepped[-1:]).argmax()))
    assert list(seen.end.generated) == stepped
    other = larql.open(path, activations=activations, threads=1, chunk=2)
    again = Lens(other.run.prepared, layers, attention=True, tokens=tops, top=5)
    second = record.with_name("second.jsonl")
    other.observe(tokens, declaration=Declaration((again,)), generate=3, record=second)
    assert second.read_bytes() == record.read_bytes()
    return model


def test_s_is_watched(s_container: Path, activations: str, tmp_path: Path) -> None:
    model = watched(s_container, activations, tmp_path / "r.jsonl")
    paris = 7042
    lens = model.lens(SENTENCE, declared=[paris])
    ranks = lens.ranks[-1, :, 0]
    assert ranks[-1] == 1 and ranks[0] > 1000


def test_g_is_watched(g_container: Path, activations: str, tmp_path: Path) -> None:
    watched(g_container, activations, tmp_path / "r.jsonl")


def test_a_record_of_statistics_is_under_2_kb_a_position(s_container: Path, tmp_path: Path) -> None:
    model = larql.open(s_container)
    record = tmp_path / "r.jsonl"
    tokens = [5 + i % 997 for i in range(192)]
    model.observe(tokens, declaration=Declaration(), record=record)
    lines = record.read_bytes().splitlines(keepends=True)
    # What does not grow with positions is left out: header, end and receipt.
    assert sum(map(len, lines[1:-2])) / len(tokens) < 2048
