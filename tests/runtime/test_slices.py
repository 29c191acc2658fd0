"""Slices that run: a shallower container is the draft that it was cut as, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from larql.errors import ResidencyRefusal
from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.format.slicing.plan import plan_slice, request
from larql.format.slicing.write import write_slice
from larql.runtime.backends.registry import make_backend
from larql.runtime.prepared import prepare
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.slices import LayerRange
from tests.builders.containers import make_container

ORACLES = Path(__file__).parents[1] / "oracles"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def cut(source: Container, to: Path, **asked: object) -> Container:
    plan = plan_slice(source, request(asked.pop("preset", None), [], **asked))  # type: ignore[arg-type]
    write_slice(source, plan, to, force=False, progress=SilentProgress())
    return Container(to)


def logits(container: Container, backend: str, depth: int | None) -> npt.NDArray[np.float32]:
    run = open_run(container, RunOptions(backend=backend, draft_depth=depth))
    session = Session(run.prepared, len(TOKENS))
    return session.logits(session.advance(TOKENS))


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize("name", ["llama-llama3", "gemma4-embeddings", "qwen3_moe", "qwen3_next"])
def test_a_shallower_container_is_the_draft(name: str, backend: str, tmp_path: Path) -> None:
    source = make_container(ORACLES / name / "checkpoint", tmp_path / "m")
    depth = len(source.graph.components[0].layers)
    for cut_at in {1, depth - 1, depth}:
        made = cut(source, tmp_path / f"d{cut_at}", draft_depth=cut_at)
        found, expected = logits(made, backend, None), logits(source, backend, cut_at)
        assert found.tobytes() == expected.tobytes()


def test_layers_of_a_slice_run_as_those_of_the_whole(
    containers: dict[str, Container], tmp_path: Path
) -> None:
    source = containers["llama"]
    made = cut(source, tmp_path / "s", layers=(1, 3), preset=None)
    carrier = np.linspace(-1, 1, 5 * 64, dtype=np.float32).reshape(5, 64)
    out = []
    for container in (source, made):
        backend = make_backend("production")
        session = Session(prepare(container, "target", LayerRange(1, 3), backend), 5)
        out.append(session.advance_hidden(carrier).tobytes())
    assert out[0] == out[1]


def test_what_a_slice_leaves_out_is_named_when_it_is_run(
    containers: dict[str, Container], tmp_path: Path
) -> None:
    made = cut(containers["llama"], tmp_path / "s", preset="browse")
    with pytest.raises(ResidencyRefusal, match=r"target\.layer\.000/attention\.norm\.weight") as e:
        open_run(made, RunOptions())
    assert "is not here; profile default says that it is elsewhere" in str(e.value)
