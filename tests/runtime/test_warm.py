"""Compiling beforehand: once for each kind of run, and nothing that a run needs is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from larql.format.container import Container
from larql.runtime.run import RunOptions, open_run
from larql.runtime.warm import is_warm, warm


@pytest.fixture
def markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of its own for the marks of what has been compiled."""
    monkeypatch.setattr("larql.runtime.warm._kept_in", lambda: tmp_path)
    return tmp_path


def test_a_kind_of_run_is_warmed_once(containers: dict[str, Container], markers: Path) -> None:
    run = open_run(containers["llama_gguf"], RunOptions())
    assert not is_warm(run)
    assert warm(run) > 0
    assert is_warm(run)
    assert is_warm(open_run(containers["llama_gguf"], RunOptions(threads=1, chunk=3)))
    for name, options in (
        ("llama_gguf", RunOptions(activations="q8")),
        ("llama_gguf", RunOptions(kv="f16")),
        ("gemma_gguf", RunOptions()),
        ("quantised", RunOptions()),
        ("llama", RunOptions()),
    ):
        assert not is_warm(open_run(containers[name], options)), name
    assert len(list(markers.iterdir())) == 1


def test_the_reference_needs_no_kernels(containers: dict[str, Container], markers: Path) -> None:
    assert is_warm(open_run(containers["llama"], RunOptions(backend="reference")))


def test_nothing_is_compiled_after_it(
    containers: dict[str, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    from larql.kernels import jit

    run = open_run(containers["gemma"], RunOptions())
    warm(run)
    compiled: list[str] = []
    original = jit.compile_cached

    def counted(function, signature):  # type: ignore[no-untyped-def]
        compiled.append(function.__name__)
        return original(function, signature)

    monkeypatch.setattr(jit, "compile_cached", counted)
    session = run.session(200)
    session.logits(session.advance(list(range(150))))
    for token in range(5):
        session.step([token])
    assert compiled == []
