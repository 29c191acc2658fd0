"""What experts make that is no finite number is refused by name, and no number is given for it."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from larql.errors import BindingDefect, Coordinates
from larql.format.container import Container
from larql.runtime.expert_access import ExpertAccess
from larql.runtime.observe.declaration import Declaration
from larql.runtime.run import RunOptions, open_run
from tests.builders.containers import vouch_for
from tests.builders.expert_banks import Spec, Weights, weights, write
from tests.runtime.observing import ExpertTraces, recorded

Array = npt.NDArray[np.float32]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
SPEC = Spec(8, 2, 32, 64, form="halves", layers=3)
LATENT = Spec(8, 2, 32, 64, latent=16, shared=32, layers=3)
BACKENDS = pytest.mark.parametrize("backend", ["production", "reference"])
HUGE = np.float32(2e38)


@pytest.fixture(autouse=True)
def _no_warnings() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def chosen(model: Weights, layer: int, to: Path) -> int:
    """Return an expert that the first position chooses, the second of its choice."""
    run = open_run(write(model, to / "plain"), RunOptions(backend="reference"))
    record, _ = recorded(run, TOKENS, Declaration(readers=()))
    lines = [json.loads(line) for line in record.decode().splitlines()]
    found = [line["chosen"] for line in lines if line["kind"] == "routing"]
    return int(found[layer][1])


def spoiled(model: Weights, layer: int, name: str, change: Callable[[Array], None]) -> Weights:
    """Return a model with one array of one layer changed in place."""
    array = model.layers[layer][name].copy()
    change(array)
    return model.with_layer(layer, **{name: array})


def refused(container: Container, backend: str, **options: object) -> BindingDefect:
    """Run tokens together, one by one and in chunks; return the refusal, which is one."""
    found = []
    for chunk, single in ((None, False), (3, False), (None, True)):
        run = open_run(container, RunOptions(backend=backend, chunk=chunk, **options))  # type: ignore[arg-type]
        session = run.session(len(TOKENS))
        with pytest.raises(BindingDefect) as caught:
            if single:
                for token in TOKENS:
                    before = session.snapshot().sha256(), session.position
                    session.step([token])
            else:
                before = session.snapshot().sha256(), session.position
                session.advance(TOKENS)
        assert (session.snapshot().sha256(), session.position) == before
        assert session.usable and not session.may_retry(caught.value)
        found.append(caught.value)
    assert str(found[1]) == str(found[2])  # of the first position that meets it
    return found[2]


CAUSES = {
    "stored nan": (("down",), lambda w: np.put(w, 5, np.nan), "holds numbers that are not finite"),
    "stored infinity": (("gate",), lambda w: np.put(w, 5, np.inf), "holds numbers that are not"),
    "overflow": (("down", "up"), lambda w: w.__imul__(HUGE), "are finite, so a product overflows"),
}


@BACKENDS
@pytest.mark.parametrize("name", CAUSES)
@pytest.mark.parametrize("form", ["apart", "halves", "turns"])
def test_an_output_names_layer_bank_expert_and_cause(
    tmp_path: Path, backend: str, name: str, form: str
) -> None:
    model = weights(replace(SPEC, form=form))  # type: ignore[arg-type]
    expert = chosen(model, 1, tmp_path)
    parts, change, words = CAUSES[name]

    def of_expert(array: Array) -> None:
        change(array[expert])

    for part in parts:
        model = spoiled(model, 1, part, of_expert)
    error = refused(write(model, tmp_path / "c"), backend)
    role = parts[0]
    if form != "apart" and role == "gate":
        role = "gate_up_fused"
    assert error.at == Coordinates(1, 0, expert, role, None)
    assert f"layer 1: entry {expert} of bank 0 ({role}) gives an output (expert_outputs)" in str(
        error
    )
    assert words in str(error)


@pytest.mark.parametrize(
    ("backend", "activations"), [("production", "f32"), ("production", "q8"), ("reference", "f32")]
)
def test_blocks_with_scales_that_are_not_finite(
    tmp_path: Path, backend: str, activations: str
) -> None:
    model = weights(replace(SPEC, encoding="q8_0"))
    expert = chosen(model, 2, tmp_path)
    container = write(model, tmp_path / "c")
    operand, file = "target.layer.002/experts.down", "routed/layer_002.lyrw"
    block = container.entries(container.operands[operand]).stored(expert).tobytes()
    data = (container.path / file).read_bytes()
    assert data.count(block) == 1
    damaged = data.replace(block, b"\x00\x7e" + block[2:])  # the first scale is a NaN
    (container.path / file).write_bytes(damaged)
    container = Container(vouch_for(container.path, file))
    error = refused(container, backend, activations=activations)
    assert error.at == Coordinates(2, 0, expert, "down", None)


@BACKENDS
def test_every_route_refuses_alike(tmp_path: Path, backend: str) -> None:
    model = weights(SPEC)
    expert = chosen(model, 1, tmp_path)

    def change(array: Array) -> None:
        array[expert, 0, 0] = np.nan

    spoilt = spoiled(model, 1, "down", change)
    plain = refused(write(spoilt, tmp_path / "c"), backend)
    low = write(spoilt, tmp_path / "low", experts=(0, 4))
    high = write(spoilt, tmp_path / "high", experts=(4, 8))
    shards = refused(low, backend, experts=ExpertAccess(shards=(high,), in_process=True))
    assert plain.at is not None and shards.at is not None
    assert replace(shards.at, segment=None) == plain.at


@BACKENDS
def test_best_effort_leaves_out_the_positions_and_no_other(tmp_path: Path, backend: str) -> None:
    model = weights(SPEC)
    expert = chosen(model, 2, tmp_path)

    def change(array: Array) -> None:
        array[expert] = np.nan

    whole = open_run(write(model, tmp_path / "w"), RunOptions(backend=backend))
    expected = whole.session(8).advance(TOKENS)
    container = write(spoiled(model, 2, "down", change), tmp_path / "c")
    seen = []
    for chunk in (None, 1, 3):
        run = open_run(container, RunOptions(backend=backend, chunk=chunk, best_effort=True))
        carrier = run.session(8).advance(TOKENS)
        assert run.left_out
        seen.append((carrier.tobytes(), sorted(note.position for note in run.left_out)))
    assert seen[0] == seen[1] == seen[2]
    same = [t for t in range(8) if (carrier[t] == expected[t]).all()]
    assert sorted({*same} ^ {*range(8)}) == seen[0][1]
    assert np.isfinite(carrier).all() and 0 < len(same) < 8


PARTS = {
    "transform": ("back", r"routed part \(routed\) is not finite: .*latent_out.*holds numbers"),
    "shared": ("shared.down", r"what shared experts add \(shared\) is not .*shared.down.* holds"),
}


@BACKENDS
@pytest.mark.parametrize("name", PARTS)
def test_what_comes_beside_experts_is_named(tmp_path: Path, backend: str, name: str) -> None:
    part, words = PARTS[name]

    def change(array: Array) -> None:
        array[3, 4] = np.inf

    container = write(spoiled(weights(LATENT), 1, part, change), tmp_path / "c")
    error = refused(container, backend)
    assert re.search(rf"target\.layer\.001/experts\.down: .*{words}", str(error))


@BACKENDS
def test_a_sum_that_overflows_is_named(tmp_path: Path, backend: str) -> None:
    """Each output fits, and their sum does not."""
    model = weights(replace(SPEC, top=8, renormalise=False, score="sigmoid"))
    layer = model.layers[1]
    alike = {name: np.repeat(layer[name][:1], 8, axis=0) for name in ("gate", "up", "down")}
    plain = write(model.with_layer(1, **alike), tmp_path / "plain")
    keep = ExpertTraces()
    open_run(plain, RunOptions(backend="reference")).session(8, keep).advance(TOKENS)
    largest = np.abs(keep.last[1].expert_outputs).max()
    alike["down"] = alike["down"] * np.float32(3e38 / largest)
    alike["router"] = layer["router"] * np.float32(0)  # all weights are a half, and four overflow
    container = write(model.with_layer(1, **alike), tmp_path / "c")
    run = open_run(container, RunOptions(backend=backend))
    with pytest.raises(BindingDefect, match=r"\(routed\) is not finite: the sum of .* overflows"):
        run.session(8).advance(TOKENS)


# Routers


ROUTERS = [
    ("production", "weight", "its weight target.layer.001/ffn.router.weight holds numbers that"),
    ("reference", "weight", "its weight target.layer.001/ffn.router.weight holds numbers that"),
    ("production", "input", "its input (router_input) is not finite"),
    ("reference", "input", "its input (router_input) is not finite"),
    # In float64 this product does not overflow.
    ("production", "product", "its weight, its bias and its input are finite, so the product"),
]


@pytest.mark.parametrize(("backend", "what", "words"), ROUTERS)
def test_a_router_tells_what_is_not_finite(
    tmp_path: Path, backend: str, what: str, words: str
) -> None:
    model = weights(SPEC)
    if what == "weight":
        model = spoiled(model, 1, "router", lambda w: np.put(w, 7, np.nan))
    elif what == "product":
        model = spoiled(model, 1, "router", lambda w: w.fill(3e38))
        model = replace(model, embedding=np.abs(model.embedding) * np.float32(4))
    else:
        model = replace(model, embedding=model.embedding * np.float32(np.nan))
    assert words in str(refused(write(model, tmp_path / "c"), backend))
