"""The older generation from a real model: it says the same, and features write what they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.container import Container
from larql.format.encoding import Encoding
from larql.format.vindex2.container import Vindex2
from larql.runtime.feature_tokens import KernelTokens
from larql.runtime.generate import generate
from larql.runtime.run import RunOptions, open_run
from larql.runtime.sampling import Sampler, Sampling
from larql.runtime.walk.answer import WalkOptions
from larql.runtime.walk.run import walk
from tests.builders.vindex2 import NaiveTokens, make_v2

IDS = [504, 3575, 282, 4649, 314]  # The capital of France is
GREEDY = [7042, 30, 198, 198, 504, 2988, 314, 42]
LAYER = 20
NEAR = 1e-5


class NoTokens:
    """Says nothing of features, as computing that for all of them takes a minute."""

    def begin(
        self, encoding: Encoding, shape: tuple[int, int], data: npt.NDArray[np.uint8]
    ) -> None:
        pass

    def of(
        self, directions: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        return (
            np.zeros((len(directions), top), np.uint32),
            np.zeros((len(directions), top), np.float32),
        )


@pytest.fixture(scope="module")
def made(s_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Vindex2:
    at = tmp_path_factory.mktemp("v2") / "s.vindex"
    return make_v2(s_gguf, at, level="inference", tokens=NoTokens())


@pytest.mark.real
def test_it_goes_on_as_the_model_does(made: Vindex2, s_container: Path) -> None:
    """Every number of the quantised checkpoint is carried exactly; only sums are in other order."""
    rows = []
    for container in (made, Container(s_container)):
        run = open_run(container, RunOptions())
        session = run.session(16)
        rows.append(session.logits(session.advance(IDS)))
        ids = list(generate(run, session, rows[-1][-1], 8, Sampler(Sampling()), ()))
        assert ids == GREEDY
    assert np.abs(rows[0] - rows[1]).max() <= 1e-3 * np.abs(rows[1]).max()
    assert {value.encoding.name for value in made.index.representations.values()} == {"f32"}


@pytest.mark.real
def test_both_generations_find_the_same_features(made: Vindex2, s_container: Path) -> None:
    """One has the blocks, the other their weights: products of the same numbers, rounded apart."""
    options = WalkOptions(top=10, writes=5)
    new = walk(Container(s_container), options, tokens=IDS)
    old = walk(made, WalkOptions(top=10, writes=0), tokens=IDS)
    assert len(new.banks) == len(old.banks) == 30
    head = made.embeddings()
    tokens = KernelTokens()
    tokens.begin(head.encoding, (head.shape[0], head.shape[1]), head.data)
    for ours, theirs in zip(old.banks, new.banks, strict=True):
        features = [hit.feature for hit in ours.hits]
        assert features == [hit.feature for hit in theirs.hits]
        scores = [[hit.score for hit in bank.hits] for bank in (ours, theirs)]
        np.testing.assert_allclose(*scores, rtol=NEAR)
        down = made.tensor(f"target.layer.{ours.layer:03d}/ffn.down.weight")
        columns = down.rows(0, down.shape[0])[:, features]
        found, products = tokens.of(np.ascontiguousarray(columns.T), 5)
        for hit, row, values in zip(theirs.hits, found, products, strict=True):
            assert [token for token, _ in hit.tokens] == row.tolist()
            np.testing.assert_allclose([value for _, value in hit.tokens], values, rtol=NEAR)


@pytest.mark.real
def test_a_feature_writes_the_word_said(made: Vindex2) -> None:
    head, down = made.embeddings(), made.tensor(f"target.layer.{LAYER:03d}/ffn.down.weight")
    directions = np.ascontiguousarray(down.rows(0, 576)[:, :8].T)
    shape = head.shape[0], head.shape[1]
    found = []
    for tokens in (KernelTokens(1), NaiveTokens()):
        tokens.begin(head.encoding, shape, head.data)
        found.append(tokens.of(directions, 5))
    assert np.array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-4)
    tokenizer = (made.path / "tokenizer.json").read_text(encoding="utf-8")
    said = f'"Ġsaid": {found[0][0][0][0]}'
    assert said in tokenizer or said.replace(": ", ":") in tokenizer
