"""Banks of experts from bytes to outputs, against arithmetic written here from the formulas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from larql.errors import UnsupportedRefusal
from larql.format.codec import decode
from larql.format.container import Container, is_container, verify_container
from larql.format.generation import Generation
from larql.format.graph import RoutedFfn
from larql.format.progress import SilentProgress
from larql.runtime.backends.registry import make_backend
from larql.runtime.expert_trace import CHECKPOINTS
from larql.runtime.operands import OperandStore, StoredBank
from larql.runtime.run import RunOptions, open_run
from larql.runtime.taps import BlockTaps, Keep
from tests.builders import lyrw
from tests.builders.expert_banks import (
    A,
    D,
    Spec,
    Weights,
    bank_operands,
    component,
    in_memory,
    stored,
    weights,
    write,
)

Float64 = npt.NDArray[np.float64]
Trace = dict[str, npt.NDArray[Any]]
ROLES = {"gate": 0, "up": 1, "gate_up": 2, "down": 3}
IDS = [f"{spec.experts}-{spec.top}" for spec in A]


def oracle(model: Weights, layer: int, x: Float64) -> Trace:
    """Compute one routed block for rows of ``x``, expert by expert, from the formulas."""
    spec = model.spec
    w = {name: values.astype(np.float64) for name, values in model.layers[layer].items()}
    found: dict[str, list[Any]] = {name: [] for name in CHECKPOINTS}
    for row in x:
        logits = np.array([sum(row * w["router"][e]) for e in range(spec.experts)])
        if spec.score == "softmax":
            scores = np.exp(logits) / np.exp(logits).sum()
            ranks = logits
        else:
            scores = 1 / (1 + np.exp(-logits))
            ranks = scores
        ordered = sorted(range(spec.experts), key=lambda e: (-ranks[e], e))
        chosen = ordered[: spec.top]
        raw = np.array([scores[e] for e in chosen])
        given = raw / raw.sum() if spec.renormalise else raw
        entered = row if spec.latent is None else w["into"] @ row
        outputs = []
        for e in chosen:
            g, u = w["gate"][e] @ entered, w["up"][e] @ entered
            outputs.append(w["down"][e] @ (g / (1 + np.exp(-g)) * u))
        routed = sum(weight * y for weight, y in zip(given, outputs, strict=True))
        routed = routed if spec.latent is None else w["back"] @ routed
        output = routed
        if spec.shared is not None:
            g, u = w["shared.gate"] @ row, w["shared.up"] @ row
            found["shared"].append(w["shared.down"] @ (g / (1 + np.exp(-g)) * u))
            output = routed + found["shared"][-1]
        for name, value in (
            ("router_input", row), ("scores", scores), ("ranks", ranks),
            ("margin", ranks[chosen[-1]] - ranks[ordered[spec.top]]), ("chosen", chosen),
            ("raw_weights", raw), ("weights", given), ("expert_input", entered),
            ("expert_outputs", outputs), ("routed", routed), ("output", output),
        ):  # fmt: skip
            found[name].append(value)
    return {name: np.array(values) for name, values in found.items() if values}


def traced(container: Container, backend: str, x: Float64, layer: int = 0, **options: Any) -> Trace:
    """Run one block of a bound container and return its checkpoints."""
    run = open_run(container, RunOptions(backend=backend, **options))
    block = run.prepared.plan.layers[layer].blocks[0]
    taps = BlockTaps(block, len(x), Keep(experts=True))
    before = np.array(x, np.float32)
    after = run.prepared.backend.write(block, before.copy(), (), 0, taps)
    assert taps.experts is not None
    found = taps.experts.arrays()
    np.testing.assert_allclose(after - before, found["output"], atol=1e-5 * np.abs(after).max())
    return found


def agree(found: Trace, expected: Trace, within: float) -> None:
    assert found.keys() == expected.keys()
    assert found["chosen"].tolist() == expected["chosen"].tolist()
    for name, values in expected.items():
        # A margin is a difference of ranks.
        scale = np.abs(expected["ranks"] if name == "margin" else values).max()
        assert np.abs(found[name] - values).max() <= within * scale, name


def inputs(model: Weights) -> Float64:
    return model.embedding[:12].astype(np.float64)  # more than are taken pair by pair


@pytest.fixture(scope="module", params=A, ids=IDS)
def spec(request: pytest.FixtureRequest) -> Spec:
    return request.param


FORMS = ("apart", "halves", "turns")


@pytest.fixture(scope="module")
def forms(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Container]:
    at = tmp_path_factory.mktemp("a")
    return {
        form: write(weights(replace(spec, form=form)), at / form)  # type: ignore[arg-type]
        for form in FORMS
    }


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_a_bank_is_written_found_bound_and_run(
    spec: Spec, forms: dict[str, Container], backend: str
) -> None:
    model = weights(spec)
    expected = oracle(model, 0, inputs(model))
    seen = []
    for container in forms.values():
        assert is_container(container.path)
        assert container.generation is Generation.VINDEX3
        assert verify_container(container, SilentProgress()) == []
        found = traced(container, backend, inputs(model))
        agree(found, expected, 1e-6)
        for t in range(len(found["output"])):  # a position alone takes another way
            alone = traced(container, backend, inputs(model)[t : t + 1])
            assert all(alone[name].tobytes() == found[name][t].tobytes() for name in found)
        seen.append({name: values.tobytes() for name, values in found.items()})
    assert seen[0] == seen[1] == seen[2]  # however gate and up are stored


def test_stored_bytes_are_those_of_the_layout(spec: Spec, forms: dict[str, Container]) -> None:
    """The file is compared as bytes with one that is made here, field by field."""
    for form, container in forms.items():
        model = weights(replace(spec, form=form))  # type: ignore[arg-type]
        regions = list(bank_operands(model, 0))
        tables = lyrw.header(layer=0) + lyrw.bank(
            schemas=len(regions), entries=spec.experts, dims=(4, 6, 4)
        )
        tables += lyrw.segment(count=spec.experts)
        for number, (name, _role, values) in enumerate(regions):
            role = ROLES[name.rpartition(".")[2]]
            tables += lyrw.schema(number, role, rows=values.shape[1], cols=values.shape[2])
        payload = [
            values[e].astype("<f4").tobytes()
            for e in range(spec.experts)
            for _, _, values in regions
        ]
        path = container.path / "routed/layer_000.lyrw"
        assert path.read_bytes() == lyrw.v2_file(tables, payload)


def test_bound_operands_mean_what_was_written(spec: Spec, forms: dict[str, Container]) -> None:
    for form, container in forms.items():
        model = weights(replace(spec, form=form))  # type: ignore[arg-type]
        store = OperandStore(container, container.select(None))
        for name, _role, values in bank_operands(model, 0):
            bank = store.fetch(name, values.shape)
            assert isinstance(bank, StoredBank)
            for e in range(spec.experts):
                entry = bank.entry(e)
                rows = decode(
                    entry.encoding, entry.data.reshape(entry.shape[0], -1), entry.shape[1]
                )
                assert rows.tobytes() == values[e].tobytes()


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_a_container_gives_the_bits_of_the_same_weights_in_memory(
    spec: Spec, forms: dict[str, Container], backend: str
) -> None:
    for form, container in forms.items():
        model = weights(replace(spec, form=form))  # type: ignore[arg-type]
        operands, banks = in_memory(model)
        target = make_backend(backend)
        for operand in operands:
            target.bind(operand)
        block = component(model.spec).layers[0].blocks[0]
        assert isinstance(block.mixer, RoutedFfn)
        experts = target.bind_experts(block.mixer.bank, {bank.name: bank for bank in banks})
        target.take_route(block.mixer.bank, experts)
        x = inputs(model).astype(np.float32)
        bound = open_run(container, RunOptions(backend=backend)).prepared
        there = bound.backend.write(bound.plan.layers[0].blocks[0], x.copy(), (), 0)
        assert target.write(block, x.copy(), (), 0).tobytes() == there.tobytes()


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Weights, Container]:
    model = weights(D)
    return model, write(model, tmp_path_factory.mktemp("d") / "c")


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_latent_transforms_and_shared_experts(
    latent: tuple[Weights, Container], backend: str
) -> None:
    model, container = latent
    assert verify_container(container, SilentProgress()) == []
    x = inputs(model)[:3]
    agree(traced(container, backend, x), oracle(model, 0, x), 1e-6)


@pytest.mark.parametrize("encoding", ["q4_k", "q8_0"])
def test_encoded_banks_are_their_decoded_selves(encoding: str, tmp_path: Path) -> None:
    """Rows of 256 columns keep blocks whole, and groups of 16 divide 48 experts."""
    model = weights(replace(D, experts=48, encoding=encoding, form="halves"))
    container = write(model, tmp_path / "c")
    layer = model.layers[0]
    meant = {}
    for name, role, values in bank_operands(model, 0):
        data = stored(model.spec, role, values)
        meant[name.rpartition(".")[2]] = decode(_encoding(encoding), data, values.shape[-1])
    gate, up = meant["gate_up"][:, :256], meant["gate_up"][:, 256:]
    decoded = model.with_layer(0, gate=gate, up=up, down=meant["down"])
    x = inputs(model)[:2]
    for backend in ("production", "reference"):
        agree(traced(container, backend, x), oracle(decoded, 0, x), 1e-6)
    assert not np.array_equal(layer["down"], meant["down"])


def _encoding(name: str) -> Any:
    from larql.format.encoding import ENCODINGS

    return ENCODINGS[name]


PADDED = [
    Spec(5, 2, 4, 6, padding=10),
    Spec(5, 2, 32, 80, padding=16, encoding="q8_0"),
    Spec(5, 2, 256, 704, padding=64, encoding="q4_k"),
    Spec(5, 2, 256, 512, padding=256, encoding="q4_k", form="halves"),
]


@pytest.mark.parametrize("spec", PADDED, ids=["f32", "q8_0", "q4_k", "q4_k-whole"])
def test_padding_is_stored_and_never_seen(spec: Spec, tmp_path: Path) -> None:
    model = weights(spec)
    container = write(model, tmp_path / "c")
    assert verify_container(container, SilentProgress()) == []
    value = container.operands["target.layer.000/experts.down"]
    assert value.shape == (5, spec.hidden, spec.width)
    assert value.stored_columns == spec.width + spec.padding
    entry = container.entries(value).stored(3)
    rows = decode(value.encoding, entry.reshape(spec.hidden, -1), value.stored_shape[-1])
    poison = np.abs(rows[:, spec.width :])
    assert poison.min() > 4 * np.abs(rows[:, : spec.width]).max()
    down = decode(
        value.encoding,
        np.stack([container.entries(value).stored(e).reshape(spec.hidden, -1) for e in range(5)]),
        value.stored_shape[-1],
    )[..., : spec.width]
    changed = {"down": down}
    for name, role, values in bank_operands(model, 0):
        if not name.endswith(".down"):
            part = decode(value.encoding, stored(spec, role, values), values.shape[-1])
            if name.endswith(".gate_up"):
                changed |= {"gate": part[:, : spec.width], "up": part[:, spec.width :]}
            else:
                changed[name.rpartition(".")[2]] = part
    x = inputs(model)
    expected = oracle(model.with_layer(0, **changed), 0, x)
    agree(traced(container, "reference", x), expected, 1e-6)
    together = traced(container, "production", x)
    agree(together, expected, 1e-6)
    for activations in ("f32", "q8"):
        options = {"backend": "production", "activations": activations}
        alone = [traced(container, x=x[t : t + 1], **options)["output"] for t in range(len(x))]
        together = traced(container, x=x, **options)
        assert np.concatenate(alone).tobytes() == together["output"].tobytes()
        assert np.abs(together["output"] - expected["output"]).max() < 0.05


def test_padding_that_no_kernel_keeps_out_is_refused_by_name(tmp_path: Path) -> None:
    spec = Spec(5, 2, 32, 40, padding=24, encoding="q8_0")
    model = weights(replace(spec, form="apart"))
    container = write(model, tmp_path / "c")
    with pytest.raises(UnsupportedRefusal, match=r"40 of 64 stored columns .* --backend reference"):
        open_run(container, RunOptions())
    assert traced(container, "reference", inputs(model))["output"].shape == (12, 32)


def test_other_routers_and_other_inputs_choose_other_experts(tmp_path: Path) -> None:
    spec = Spec(32, 4)
    model = weights(spec)
    turned = model.with_layer(0, router=np.ascontiguousarray(model.layers[0]["router"][::-1]))
    x = inputs(model)
    first, second = (
        traced(write(m, tmp_path / name), "production", x)["chosen"]
        for name, m in (("a", model), ("b", turned))
    )
    assert (first != second).any(axis=1).all()
    assert second.tolist() == (31 - first).tolist()
    assert len({tuple(row) for row in first.tolist()}) > 1
    # The same choice of other bytes gives something else.
    swapped = model.with_layer(0, gate=model.layers[0]["up"], up=model.layers[0]["gate"])
    assert np.abs(oracle(swapped, 0, x)["output"] - oracle(model, 0, x)["output"]).max() > 0.1
