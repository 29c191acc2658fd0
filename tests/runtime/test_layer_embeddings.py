"""Layers that share keys, add an embedding of the token and scale the carrier, as they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import ContainerError, UsageError
from larql.format.closure import check_geometry
from larql.format.container import Container
from larql.format.graph_json import graph_from_json
from larql.format.progress import SilentProgress
from larql.runtime.layer_dump import dump_layers
from larql.runtime.observe.declaration import Declaration
from larql.runtime.observe.interventions import Intervention
from larql.runtime.observe.lens import Lens
from larql.runtime.observe.observation import Observation
from larql.runtime.observe.sites import WriteSite, write_sites
from larql.runtime.observe.view import read_record
from larql.runtime.plan import make_plan
from larql.runtime.planes import read_planes
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.slices import LayerRange
from tests.builders.containers import make_container, read_json
from tests.runtime.observing import Events, readouts, recorded

CHECKPOINT = Path(__file__).parents[1] / "oracles" / "gemma4-embeddings" / "checkpoint"
TOKENS = [3, 41, 7, 7, 60, 2, 19, 33, 71, 5, 12]


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    return make_container(CHECKPOINT, tmp_path_factory.mktemp("embeddings") / "x.vindex3")


@pytest.fixture(scope="module", params=["production", "reference"])
def run(container: Container, request: pytest.FixtureRequest) -> Run:
    return open_run(container, RunOptions(backend=request.param))


def test_sites(run: Run) -> None:
    names = [str(site) for site in write_sites(run.prepared.plan)]
    assert names[:5] == ["embed", "0.attention", "0.ffn", "0.per_layer", "1.attention"]
    assert names[-1] == "5.per_layer"


def test_the_lens_at_the_last_site_is_the_logits(run: Run) -> None:
    """Through what scales the carrier, and through the softcap."""
    plan = run.prepared.plan
    assert plan.component.head.softcap is not None
    vocabulary = list(range(plan.component.vocab_size))
    lens = Lens(run.prepared, plan.executed_layers, tokens=vocabulary, top=3)
    sink = Events()
    observation = Observation(run.prepared, Declaration((lens,)), sink)
    session = Session(run.prepared, 16, None, observation)
    logits = session.logits(session.advance(TOKENS[:7]))
    steps = np.concatenate([session.logits(session.advance([t])) for t in TOKENS[7:]])
    found: list[Any] = [e.values for e in readouts(sink) if e.write == 18]
    rows = np.array([row["logits"] for row in found], np.float32)
    assert rows.tobytes() == np.concatenate([logits, steps]).tobytes()


def test_a_record_tells_of_every_site(run: Run, tmp_path: Path) -> None:
    data, found = recorded(run, TOKENS, declaration(run), generate=2)
    assert found.receipt.complete
    path = tmp_path / "run.jsonl"
    path.write_bytes(data)
    view = read_record(path)
    assert [str(site) for site in view.sites] == [str(s) for s in write_sites(run.prepared.plan)]
    assert view.carrier_norms.shape == (len(TOKENS) + 1, 19)
    assert np.isfinite(view.carrier_norms).all() and (view.delta_norms > 0).all()
    assert view.lens is not None
    assert [str(site) for site in view.lens.sites] == [f"{i}.per_layer" for i in range(6)]


def declaration(run: Run) -> Declaration:
    """See all there is: norms and patterns of heads of shared keys too."""
    lens = Lens(run.prepared, run.prepared.plan.executed_layers, tokens=[3], top=2)
    return Declaration((lens,), head_norms=True, patterns=True)


def test_an_intervention_at_an_embedding_s_site_stays_behind_it(run: Run) -> None:
    plain = read_planes(run.prepared, TOKENS, None)
    site = WriteSite(0, "per_layer")
    made = Intervention(site, range(4, 5), do="zero", target="write")
    observation = Observation(run.prepared, Declaration(interventions=(made,)), Events())
    session = Session(run.prepared, 16, None, observation)
    changed = session.advance(TOKENS)
    assert observation.fired == (1,)
    assert changed[:4].tobytes() == plain.layers[-1][:4].tobytes()
    assert (changed[4:] != plain.layers[-1][4:]).any(axis=1).all()


@pytest.mark.parametrize("sites", [False, True])
def test_a_dump_of_layers_is_that_of_a_whole_run(run: Run, tmp_path: Path, sites: bool) -> None:
    planes = read_planes(run.prepared, TOKENS, None)
    for resume in (False, True):
        made = dump_layers(
            run, TOKENS, tmp_path / "d", resume=resume, progress=SilentProgress(), sites=sites
        )
        assert made.resumed_at == 0
        for k, plane in enumerate(planes.layers):
            assert np.load(tmp_path / "d" / f"plane_{k:03d}.npy").tobytes() == plane.tobytes()
        (tmp_path / "d" / "manifest.json").unlink()
    assert np.load(tmp_path / "d" / "logits.npy").tobytes() == planes.logits.tobytes()
    if sites:
        for k, plane in enumerate(planes.attention, start=1):
            path = tmp_path / "d" / f"plane_{k:03d}_attention.npy"
            assert np.load(path).tobytes() == plane.tobytes()


def test_state_is_kept_once(run: Run) -> None:
    """Of six layers three have keys and values, and of windowed ones no more than the window."""
    session = Session(run.prepared, 64)
    assert [region.spec.layer for region in session.state.regions] == [0, 1, 2]
    session.advance(TOKENS)
    kept = [len(r.arrays()["positions"]) for r in session.snapshot().regions]
    assert kept == [5, 11, 5]


def test_a_range_of_layers_that_add_embeddings_is_refused(container: Container) -> None:
    with pytest.raises(UsageError, match=r"layers 1:3: each layer adds an embedding of the token"):
        make_plan(container, "target", LayerRange(1, 3))


def test_a_range_without_the_layer_whose_keys_it_needs_is_refused(
    container: Container,
) -> None:
    """Without the embeddings such a range may run, if only the keys are there."""
    document = read_json(container.path / "system_graph.json")
    component = document["components"][0]
    del component["per_layer"]
    for layer in component["layers"]:
        layer["blocks"] = [b for b in layer["blocks"] if b["site"] != "per_layer"]
    graph = graph_from_json(document, "here")
    assert check_geometry(graph.components[0]) == []

    class Other(Container):
        def component(self, name: str) -> Any:
            return graph.components[0]

    other = Other(container.path)
    expected = (
        r"layers 2:4: layer 3 attends to the keys and values of layer 2|"
        r"layers 3:6: layer 3 attends to the keys and values of layer 2, which the range leaves "
        r"out; begin at layer 2 or before"
    )
    with pytest.raises(UsageError, match=expected):
        make_plan(other, "target", LayerRange(3, 6))
    assert make_plan(other, "target", LayerRange(2, 5)).executed_layers == (2, 3, 4)
    with pytest.raises(UsageError, match="layer 5 attends to the keys and values of layer 1"):
        make_plan(other, "target", LayerRange(2, 6))


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("layers", 3, "blocks", 0, "mixer", "shared"), 1, "which keeps none before it of that"),
        (("layers", 3, "blocks", 0, "mixer", "shared"), 3, "which keeps none before it"),
        (("layers", 3, "blocks", 0, "mixer", "shared"), 5, "which keeps none before it"),
        (("per_layer", "layers"), 5, "layers is 5, expected at least 6"),
        (("per_layer", "vocab"), 70, "vocab is 70, expected at least 80"),
        (("per_layer", "width"), 4, "width is 8, expected 4"),
        (("per_layer",), None, "the component has no table"),
    ],
)
def test_a_graph_that_contradicts_itself(
    container: Container, path: tuple[str | int, ...], value: object, problem: str
) -> None:
    document = read_json(container.path / "system_graph.json")
    at = document["components"][0]
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    graph = graph_from_json(document, "here")
    assert any(problem in defect.line() for defect in check_geometry(graph.components[0]))


def test_a_stated_state_of_a_layer_that_has_none_is_refused(container: Container) -> None:
    document = read_json(container.path / "system_graph.json")
    state = document["components"][0]["state"]
    state.append({**state[2], "layer": 3})
    with pytest.raises(ContainerError, match="contradicts the state"):
        graph_from_json(document, "here")
