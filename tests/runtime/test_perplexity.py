"""Perplexity against a direct sum over full-context log-probabilities."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import UsageError
from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.runtime.perplexity import perplexity, windows
from larql.runtime.run import RunOptions, open_run

TOKENS = [int(t) for t in np.random.default_rng(9).integers(0, 256, 41)]


@given(
    tokens=st.integers(1, 60),
    window=st.integers(2, 20),
    stride=st.integers(1, 20),
    prefix=st.integers(0, 2),
)
def test_each_token_is_scored_once(tokens: int, window: int, stride: int, prefix: int) -> None:
    room = window - prefix
    if room < 2 or stride > room - (prefix == 0):
        with pytest.raises(UsageError):
            list(windows(tokens, window, stride, prefix))
        return
    scored: list[int] = []
    for cut in windows(tokens, window, stride, prefix):
        assert cut.start <= cut.first_scored < cut.end <= tokens
        assert cut.end - cut.start + prefix <= window
        assert cut.first_scored > cut.start or prefix
        scored += range(cut.first_scored, cut.end)
    assert scored == list(range(0 if prefix else 1, tokens))


def nll(container: Container, ids: list[int]) -> list[float]:
    """Minus log softmax of each next token, one position at a time, in float64."""
    run = open_run(container, RunOptions(backend="reference"))
    session = run.session(len(ids))
    found = []
    for token, following in itertools.pairwise(ids):
        row = session.step([token]).astype(np.float64)
        found.append(math.log(np.exp(row - row.max()).sum()) + row.max() - row[following])
    return found


def test_one_window_is_the_plain_sum(containers: dict[str, Container], backend: str) -> None:
    container = containers["gemma"]
    run = open_run(container, RunOptions(backend=backend))
    found = perplexity(run, TOKENS, bos_ids=[], window=64, stride=32, progress=SilentProgress())
    expected = nll(container, TOKENS)
    assert found.windows == 1
    assert np.allclose(found.nll, expected, atol=2e-4)
    assert math.isclose(found.perplexity, math.exp(np.mean(expected)), rel_tol=2e-4)
    assert found.standard_error is not None
    assert math.isclose(
        found.standard_error, np.std(expected, ddof=1) / math.sqrt(40), rel_tol=1e-3
    )


def test_windows_begin_anew_with_the_beginning_token(containers: dict[str, Container]) -> None:
    container = containers["llama"]
    run = open_run(container, RunOptions())
    found = perplexity(run, TOKENS, bos_ids=[1], window=16, stride=8, progress=SilentProgress())
    expected = nll(container, [1, *TOKENS[:15]])
    start = 8
    while len(expected) < len(TOKENS):
        end = min(start + 15, len(TOKENS))
        done = len(expected)
        expected += nll(container, [1, *TOKENS[start:end]])[done - start :]
        start += 8
    assert np.allclose(found.nll, expected, atol=2e-4)


def test_a_text_without_a_token_to_score(containers: dict[str, Container]) -> None:
    run = open_run(containers["llama"], RunOptions(backend="reference"))
    for tokens in ([], [5]):
        with pytest.raises(UsageError, match="none of them can be scored"):
            perplexity(run, tokens, bos_ids=[], window=8, stride=4, progress=SilentProgress())
