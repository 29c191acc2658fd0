"""Checkpoints with routed experts: every form in which they come, and what becomes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open

from larql.errors import CompileError, EncodingError
from larql.format.closure import BankPlace
from larql.format.codec import decode
from larql.format.container import Container, verify_container
from larql.format.encoding import ENCODINGS
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compare import compare_with_source
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.builders.containers import (
    copy_container,
    edit_index,
    extract_to,
    file_bytes,
    flip_byte,
    make_container,
    read_json,
    vouch_for,
    write_json,
)
from tests.builders.experts import clamped, meant
from tests.builders.safetensors import Stored, bf16, write_safetensors_dir

ORACLES = Path(__file__).parents[1] / "oracles"
BANK = "routed/layer_000.lyrw"
Tensors = dict[str, np.ndarray | Stored]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def tensors_of(checkpoint: Path) -> dict[str, npt.NDArray[np.float32]]:
    found: dict[str, npt.NDArray[np.float32]] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def logits(container: Container) -> npt.NDArray[np.float32]:
    run = open_run(container, RunOptions(backend="reference"))
    session = Session(run.prepared, len(TOKENS), None)
    return session.logits(session.advance(TOKENS))


def compare(container: Container, source: Path) -> list[str]:
    with open_checkpoint(source) as checkpoint:
        found = compare_with_source(container, checkpoint, SilentProgress())
    return [defect.line() for defect in found]


@pytest.fixture(scope="module")
def separate() -> Path:
    return ORACLES / "mixtral" / "checkpoint"


@pytest.fixture(scope="module")
def container(separate: Path, tmp_path_factory: pytest.TempPathFactory) -> Container:
    return make_container(separate, tmp_path_factory.mktemp("experts") / "c")


def packed(source: Path, to: Path) -> Path:
    """Write a checkpoint with one tensor for all experts of a layer, gate rows before up rows."""
    tensors = tensors_of(source)
    made: Tensors = {}
    places = sorted({n.split(".experts.")[0] for n in tensors if ".experts." in n})
    for name, value in tensors.items():
        if ".experts." not in name:
            made[name.replace("block_sparse_moe", "mlp")] = value
    for place in places:
        count = sum(n.startswith(f"{place}.experts.") and ".w2." in n for n in tensors)
        stacks = {
            w: np.stack([tensors[f"{place}.experts.{e}.{w}.weight"] for e in range(count)])
            for w in ("w1", "w2", "w3")
        }
        base = place.replace("block_sparse_moe", "mlp")
        fused = np.concatenate([stacks["w1"], stacks["w3"]], axis=1)
        made[f"{base}.experts.gate_up_proj"] = fused
        made[f"{base}.experts.down_proj"] = stacks["w2"]
    return write_safetensors_dir(to, read_json(source / "config.json"), made, shards=2)


def test_a_container_of_experts_is_whole(container: Container, separate: Path) -> None:
    assert verify_container(container, SilentProgress()) == []
    assert compare(container, separate) == []
    index = container.index
    assert index.moe_manifest == "moe_manifest.json"
    assert index.holds_banks(BANK)
    assert read_json(container.path / "index.json")["segments"][BANK]["schema"] == "lyrw"
    value = index.representations["target.layer.000/experts.gate"]
    assert (value.shape, value.segment, value.tensor) == ((4, 12, 32), BANK, "0/0")
    assert value.fidelity == "source-exact"
    assert value.source.tensor == "model.layers.0.block_sparse_moe.experts.{e}.w1.weight"
    # Four matrices and an expert more would be three times as many entries otherwise.
    assert sum("experts." in name for name in index.representations) == 2 * 3
    assert sum(share.elements for share in container.census()) == sum(
        value.size for value in tensors_of(separate).values()
    )


def test_every_expert_has_its_own_bytes(container: Container, separate: Path) -> None:
    tensors = tensors_of(separate)
    file = container.bank_file(BANK)
    (bank,) = file.tables.banks
    for schema, part in zip(bank.schemas, ("w1", "w3", "w2"), strict=True):
        for entry in range(4):
            name = f"model.layers.0.block_sparse_moe.experts.{entry}.{part}.weight"
            assert file.stored_bytes(0, entry, schema).tobytes() == tensors[name].tobytes()


def test_extracting_twice_gives_identical_bytes(
    container: Container, separate: Path, tmp_path: Path
) -> None:
    extract_to(separate, tmp_path / "again")
    assert file_bytes(container.path) == file_bytes(tmp_path / "again")


def test_packed_experts_compute_what_separate_ones_do(
    container: Container, separate: Path, tmp_path: Path
) -> None:
    source = packed(separate, tmp_path / "m")
    found = make_container(source, tmp_path / "c")
    assert compare(found, source) == []
    value = found.index.representations["target.layer.000/experts.gate_up"]
    assert (value.shape, value.fidelity) == ((4, 24, 32), "source-exact")
    shutil.rmtree(source)
    np.testing.assert_array_equal(logits(found), logits(container))


def test_experts_are_encoded_anew_on_request(separate: Path, tmp_path: Path) -> None:
    found = make_container(separate, tmp_path / "c", quant="q8_0")
    assert verify_container(found, SilentProgress()) == []
    assert compare(found, separate) == []
    gate = found.index.representations["target.layer.000/experts.gate"]
    assert (gate.encoding.name, gate.fidelity) == ("q8_0", "numerically-approximate")
    # Rows of 12 hold no whole block.
    down = found.index.representations["target.layer.000/experts.down"]
    assert (down.encoding.name, down.requested) == ("f32", "q8_0")


def test_a_damaged_expert_is_found(container: Container, separate: Path, tmp_path: Path) -> None:
    damaged = copy_container(container.path, tmp_path / "c")
    flip_byte(damaged / BANK)
    (defect,) = verify_container(Container(damaged), SilentProgress())
    assert defect.where == BANK
    with pytest.raises(Exception, match="has sha256"):
        logits(Container(damaged))
    # Where the index vouches for it, only the source can tell.
    vouch_for(damaged, BANK)
    assert verify_container(Container(damaged), SilentProgress()) == []
    found = compare(Container(damaged), separate)
    assert found == [
        f"{BANK}: target.layer.000/experts.down, expert 3, differs from "
        "model.layers.0.block_sparse_moe.experts.3.w2.weight in the source"
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda r: r.update(tensor="0/7"), "bank 0 has no schema 7"),
        (lambda r: r.update(tensor="3/0"), "has no bank 3"),
        (lambda r: r.update(tensor="gate"), "regions are named 'gate'"),
        (lambda r: r.update(tensor="0/2"), "schema 2 (down), expected gate"),
        (lambda r: r.update(encoding="bf16"), "is f32, the index says bf16"),
    ],
)
def test_an_index_that_contradicts_a_bank_is_found(
    container: Container, tmp_path: Path, change: Any, expected: str
) -> None:
    changed = copy_container(container.path, tmp_path / "c")
    name = "target.layer.000/experts.gate"
    edit_index(changed, lambda index: change(index["representations"][name]))
    (defect,) = verify_container(Container(changed), SilentProgress())
    assert expected in defect.line()
    assert defect.place == BankPlace(0, "routed", "gate", None)
    with pytest.raises(Exception, match=r"target\.layer\.000/experts\.gate"):
        logits(Container(changed))


def test_a_manifest_that_is_not_the_graph_s_is_found(container: Container, tmp_path: Path) -> None:
    changed = copy_container(container.path, tmp_path / "c")
    manifest = read_json(changed / "moe_manifest.json")
    manifest["layers"][0]["router"]["renormalise"] = False
    write_json(changed / "moe_manifest.json", manifest)
    vouch_for(changed, "moe_manifest.json")
    (defect,) = verify_container(Container(changed), SilentProgress())
    assert defect.line() == "moe_manifest.json: is not the manifest that the graph implies"
    manifest["layers"][0]["routed_bank"]["experts"] = 0
    write_json(changed / "moe_manifest.json", manifest)
    vouch_for(changed, "moe_manifest.json")
    lines = [d.line() for d in verify_container(Container(changed), SilentProgress())]
    assert len(lines) == 2
    (empty, _) = verify_container(Container(changed), SilentProgress())
    assert empty.place == BankPlace(0, "routed")
    edit_index(changed, lambda index: index.update(moe_manifest=None))
    lines = [d.line() for d in verify_container(Container(changed), SilentProgress())]
    assert "index.json: names no manifest, but experts are routed to" in lines


def test_a_missing_expert_and_one_of_another_shape_or_form(separate: Path, tmp_path: Path) -> None:
    config = read_json(separate / "config.json")
    name = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    for change, expected, kind in (
        (lambda t: t.pop(name), f"tensor {name} is missing", CompileError),
        (lambda t: t.update({name: t[name][:-1]}), r"has shape \[11, 32\]", CompileError),
        (lambda t: t.update({name: bf16(t[name])}), "expert 2 is stored as bf16", EncodingError),
    ):
        tensors: Tensors = dict(tensors_of(separate))
        change(tensors)  # type: ignore[no-untyped-call]
        source = write_safetensors_dir(tmp_path / kind.__name__ / expected[-5:], config, tensors)
        with pytest.raises(kind, match=expected):
            extract_to(source, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_rows_that_no_expert_has_are_refused(separate: Path, tmp_path: Path) -> None:
    source = packed(separate, tmp_path / "m")
    config = read_json(source / "config.json")
    write_json(source / "config.json", {**config, "num_local_experts": 3})
    with pytest.raises(CompileError, match=r"has shape \[4, "):
        extract_to(source, tmp_path / "out")


# Experts with biases whose gate and up come in turn: MXFP4, or floats with inputs as rows.


def test_native_mxfp4_and_turned_floats_are_one_model(tmp_path: Path) -> None:
    found = {}
    for form in ("mxfp4", "f32"):
        source = clamped(tmp_path / form, form)
        found[form] = make_container(source, tmp_path / f"{form}.c")
        assert verify_container(found[form], SilentProgress()) == []
        assert compare(found[form], source) == []
        value = found[form].index.representations["target.layer.000/experts.gate_up"]
        assert (value.encoding.name, value.fidelity) == (form, "source-equivalent")
        assert value.shape == (3, 64, 32)
    np.testing.assert_array_equal(logits(found["mxfp4"]), logits(found["f32"]))
    native = found["mxfp4"]
    schema = native.bank_file(BANK).tables.banks[0].schemas[0]
    stored = native.bank_file(BANK).stored_rows(0, 2, schema)
    tensors = tensors_of(tmp_path / "mxfp4")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    expected = meant(tensors[f"{name}_blocks"], tensors[f"{name}_scales"])[2]  # type: ignore[arg-type]
    np.testing.assert_array_equal(decode(ENCODINGS["mxfp4"], stored, 32), expected)


def test_a_scale_that_is_no_number_is_refused_by_name(tmp_path: Path) -> None:
    source = clamped(tmp_path / "m", "mxfp4", scale=250)
    with pytest.raises(EncodingError, match=r"experts\.gate_up_proj_scales: its scale byte is 255"):
        extract_to(source, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_both_forms_are_described_before_anything_is_read(tmp_path: Path) -> None:
    from larql.format.source.verdict import judge

    source = clamped(tmp_path / "m", "mxfp4")
    verdict = judge(source)
    assert verdict.admissible, verdict.problems
    assert verdict.unread == ()
    config = json.loads((source / "config.json").read_text())
    write_json(source / "config.json", {**config, "num_experts_per_tok": 4})
    assert "of 3 experts" in judge(source).problems[0].text
