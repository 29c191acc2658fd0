"""What containers can do: whole, cut, sharded, damaged; dense, and with routed experts."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from larql.errors import BindingDefect, ContainerError, UsageError
from larql.format.container import Container, verify_container
from larql.format.lyrw.v2 import BankFile
from larql.format.moe.capability import Capability, capability_of
from larql.format.moe.findings import Cause, Operation
from larql.format.progress import SilentProgress
from larql.format.source.reconstruct import reconstruct
from larql.runtime.operands import OperandStore, StoredBank
from tests.builders.containers import (
    copy_container,
    edit_graph,
    edit_index,
    make_container,
    read_json,
    vouch_for,
    write_json,
)
from tests.builders.models import LlamaSpec, write_llama_safetensors
from tests.builders.shards import cut_bank

ORACLES = Path(__file__).parents[2] / "oracles"
BANK = "routed/layer_001.lyrw"
LAYER = "target.layer.001"
SCHEMAS_AT = 24 + 24 + 12
"""Where the schemas of a file of one bank and one segment begin."""


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("dense")
    return make_container(write_llama_safetensors(at / "m", LlamaSpec()), at / "a").path


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("mixture")
    return make_container(ORACLES / "mixtral" / "checkpoint", at / "a").path


def ask(directory: Path, profile: str | None = None, *, partial: bool = False) -> Capability:
    return capability_of(Container(directory), profile, partial=partial)


def store_of(directory: Path) -> OperandStore:
    container = Container(directory)
    return OperandStore(container, container.select(None))


def of(found: Capability, name: str) -> Operation:
    return next(operation for operation in found.operations if operation.name == name)


# --- whole ------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["dense", "mixture"])
def test_a_whole_container_can_do_all_of_it(which: str, request: pytest.FixtureRequest) -> None:
    found = ask(request.getfixturevalue(which))
    assert [(o.name, o.scope) for o in found.operations] == [
        ("walk", "profile"),
        ("local_decode", "profile"),
        ("reconstruct_canonical", "document"),
    ]
    for operation in found.operations:
        assert operation.authority is not None
        assert (operation.authority.level, operation.authority.cap) == ("source-exact", "none")
        assert operation.achievable is not None and operation.achievable.settled
        assert operation.diagnoses == ()
    walk = of(found, "walk")
    assert walk.asked == walk.covered and walk.asked
    assert found.defects == ()


def test_the_weakest_region_names_itself(dense: Path, tmp_path: Path) -> None:
    down = f"{LAYER}/ffn.down.weight"

    def change(index: Any) -> None:
        index["representations"][down]["fidelity"] = "structurally-approximate"

    found = ask(edit_index(copy_container(dense, tmp_path / "c"), change))
    authority = of(found, "local_decode").authority
    assert authority is not None
    assert (authority.level, authority.regions) == ("structurally-approximate", (down,))
    # A walk never consults `down`.
    walk = of(found, "walk").authority
    assert walk is not None and walk.level == "source-exact"


# --- dense, damaged ---------------------------------------------------------------------------


def test_missing_by_declaration_and_without_it_differ_in_the_diagnosis_alone(
    dense: Path, tmp_path: Path
) -> None:
    gone = copy_container(dense, tmp_path / "gone")
    (gone / f"segments/{LAYER}.safetensors").unlink()
    lost = of(ask(gone), "local_decode")

    def change(index: Any) -> None:
        index["profiles"] = {"default": {"omits": [LAYER]}, "all": {}}

    declared = edit_index(copy_container(gone, tmp_path / "declared"), change)
    found = ask(declared)
    left = of(found, "local_decode")
    assert lost.admitted is left.admitted is False
    assert len(lost.diagnoses) == len(left.diagnoses) == 9
    assert {d.state for d in lost.diagnoses} == {"absent: nowhere"}
    assert {d.state for d in left.diagnoses} == {"absent: omitted by the active profile"}
    assert {d.kind.value for d in lost.diagnoses} == {"binding_defect"}
    assert {d.kind.value for d in left.diagnoses} == {"residency"}
    assert lost.defects and not left.defects and found.defects == ()
    # Of the document it is missing all the same, and under another profile it is a defect.
    assert not of(found, "reconstruct_canonical").admitted
    assert ask(declared, "all").defects


@pytest.mark.parametrize("which", ["dense", "mixture"])
def test_reconstruction_is_of_the_document_whatever_a_profile_leaves_out(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    def change(index: Any) -> None:
        index["profiles"] = {"default": {"omits": [LAYER]}}

    whole: Path = request.getfixturevalue(which)
    directory = edit_index(copy_container(whole, tmp_path / "c"), change)
    found = ask(directory)
    assert not of(found, "local_decode").admitted
    assert of(found, "reconstruct_canonical").admitted
    (directory / f"segments/{LAYER}.safetensors").unlink()
    states = {d.state for d in of(ask(directory), "reconstruct_canonical").diagnoses}
    assert states == {"absent: nowhere"}


def test_declared_remote_is_a_matter_of_fetching(dense: Path, tmp_path: Path) -> None:
    def change(index: Any) -> None:
        index["profiles"] = {"default": {"remote": [LAYER]}}

    directory = edit_index(copy_container(dense, tmp_path / "c"), change)
    (directory / f"segments/{LAYER}.safetensors").unlink()
    found = ask(directory)
    assert {d.kind.value for d in of(found, "local_decode").diagnoses} == {"residency"}
    assert {d.repair for d in of(found, "local_decode").diagnoses} == {"fetch it"}
    assert found.defects == ()


def test_states_of_a_dense_operand(dense: Path, tmp_path: Path) -> None:
    down = f"{LAYER}/ffn.down.weight"

    def state(change: Any) -> tuple[str, str, str]:
        directory = edit_index(copy_container(dense, tmp_path / str(change)), EDITS[change])
        (found,) = of(ask(directory), "local_decode").diagnoses
        assert found.where == down
        return found.cause.value, found.state, found.kind.value

    def edit(key: str, value: Any) -> Any:
        return lambda index: index["representations"][down].update({key: value})

    EDITS: dict[str, Any] = {
        "absent": lambda index: index["representations"].pop(down),
        "shape": edit("shape", [128, 64]),
        "tensor": edit("tensor", "nothing"),
        "stored": lambda index: index["representations"][down].update(encoding="f16"),
        "file": edit("segment", "segments/none.safetensors"),
    }
    assert state("absent") == ("missing input", "absent: nowhere", "binding_defect")
    assert state("shape") == ("unusable region", "contract mismatch", "binding_defect")
    assert state("tensor") == ("missing input", "absent: nowhere", "binding_defect")
    assert state("stored") == ("unusable region", "contract mismatch", "binding_defect")
    assert state("file") == ("missing input", "absent: nowhere", "binding_defect")


def test_a_file_cut_short_is_damaged_and_a_schema_of_another_build_is_not(
    dense: Path, tmp_path: Path
) -> None:
    name = f"segments/{LAYER}.safetensors"
    directory = copy_container(dense, tmp_path / "c")
    (directory / name).write_bytes((directory / name).read_bytes()[:-1])
    found = of(ask(directory), "local_decode").diagnoses
    assert {d.state for d in found} == {"damaged"} and len(found) == 9
    directory = copy_container(dense, tmp_path / "d")
    edit_index(directory, lambda index: index["segments"][name].update(schema="zip"))
    found = of(ask(directory), "local_decode").diagnoses
    assert {(d.state, d.kind.value) for d in found} == {("present but unsupported", "unsupported")}


def test_a_graph_that_cannot_be_read_is_a_missing_contract(dense: Path, tmp_path: Path) -> None:
    directory = edit_graph(copy_container(dense, tmp_path / "c"), lambda g: g.update(schema=99))
    found = ask(directory)
    assert {d.cause for o in found.operations for d in o.diagnoses} == {Cause.MISSING_CONTRACT}
    assert not any(operation.admitted for operation in found.operations)


# --- selections -------------------------------------------------------------------------------


def with_siblings(index: Any) -> None:
    for key in list(index["representations"]):
        value = index["representations"][key]
        sibling = {**value, "fidelity": "numerically-approximate"}
        index["representations"][f"{key}#rough"] = sibling
    head = "target.output_head/weight"
    index["variants"] = {
        "rough": {"representations": {head: f"{head}#rough"}},
        "exact": {"representations": {head: head}},
    }
    index["profiles"] = {
        "rough": {"variants": ["rough"]},
        "both": {"variants": ["rough", "exact"]},
        "nothing": {"omits": ["target.layer.999"]},
    }


def test_alternatives_stay_groups_and_give_a_range(dense: Path, tmp_path: Path) -> None:
    directory = edit_index(copy_container(dense, tmp_path / "c"), with_siblings)
    operands = len(read_json(dense / "index.json")["representations"])
    decode = of(ask(directory), "local_decode")
    assert len(decode.groups) == operands
    assert {len(group.usable) for group in decode.groups} == {2}
    assert decode.authority is not None and decode.authority.level == "source-exact"
    assert decode.achievable is not None and not decode.achievable.settled
    assert (decode.achievable.best, decode.achievable.worst) == (
        "source-exact",
        "numerically-approximate",
    )
    rough = ask(directory, "rough")
    decode = of(rough, "local_decode")
    assert decode.authority is not None
    assert decode.authority.regions == ("target.output_head/weight",)
    assert len(decode.groups) == operands - 1
    document = of(rough, "reconstruct_canonical").authority
    assert document is not None and document.level == "source-exact"


def test_a_contradictory_selection_has_no_authority(dense: Path, tmp_path: Path) -> None:
    directory = edit_index(copy_container(dense, tmp_path / "c"), with_siblings)
    found = ask(directory, "both")
    decode = of(found, "local_decode")
    assert decode.authority is None
    assert [d.cause for d in decode.diagnoses] == [Cause.INVALID_SELECTION]
    # Of which the rows that are searched are no part.
    assert of(found, "walk").admitted
    with pytest.raises(ContainerError, match=r"speaks of 'target.layer.999'"):
        ask(directory, "nothing")


# --- routed experts ---------------------------------------------------------------------------


def test_a_whole_path_whose_down_is_unreadable_refuses_decoding_by_its_codec(
    mixture: Path, tmp_path: Path
) -> None:
    directory = copy_container(mixture, tmp_path / "c")
    path = directory / BANK
    data = bytearray(path.read_bytes())
    schemas = BankFile(path, Container(directory).index.schema).tables.banks[0].schemas
    place = next(i for i, schema in enumerate(schemas) if schema.role == 3)
    struct.pack_into("<H", data, SCHEMAS_AT + 20 * place + 4, 4711)
    path.write_bytes(data)
    vouch_for(directory, BANK)
    found = ask(directory)
    (diagnosis,) = of(found, "local_decode").diagnoses
    assert diagnosis.cause is Cause.UNUSABLE_REGION
    assert diagnosis.where == f"{LAYER}/experts.down, unsegmented [0:4]"
    assert diagnosis.state == "present but unsupported"
    assert "role failure" in diagnosis.detail and "unknown format 4711" in diagnosis.detail
    assert of(found, "walk").admitted


def test_all_experts_present_and_a_transform_missing(mixture: Path, tmp_path: Path) -> None:
    directory = copy_container(mixture, tmp_path / "c")
    manifest = read_json(directory / "moe_manifest.json")
    manifest["layers"][1]["transforms"] = {
        "routed_input": f"{LAYER}/latent_in",
        "routed_output": f"{LAYER}/latent_out",
    }
    write_json(directory / "moe_manifest.json", manifest)
    vouch_for(directory, "moe_manifest.json")
    decode = of(ask(directory), "local_decode")
    assert not decode.admitted
    assert {(d.cause, d.where) for d in decode.diagnoses} == {
        (Cause.MISSING_CONTRACT, "moe_manifest.json"),  # the graph knows of no transform
        (Cause.MISSING_INPUT, f"{LAYER}/latent_in"),
        (Cause.MISSING_INPUT, f"{LAYER}/latent_out"),
    }


def test_a_walk_is_all_or_nothing_unless_a_part_is_asked_for(mixture: Path, tmp_path: Path) -> None:
    directory = copy_container(mixture, tmp_path / "c")
    (directory / BANK).unlink()
    walk = of(ask(directory), "walk")
    assert not walk.admitted and walk.diagnoses
    walk = of(ask(directory, partial=True), "walk")
    assert walk.authority is not None
    # Which banks a result covers stands beside authority, and lowers it not.
    assert (walk.authority.level, walk.authority.cap) == ("source-exact", "none")
    assert f"{LAYER}/experts" in walk.asked
    assert f"{LAYER}/experts" not in walk.covered
    assert walk.diagnoses


def test_banks_that_are_not_asked_for_are_outside(mixture: Path, tmp_path: Path) -> None:
    directory = copy_container(mixture, tmp_path / "c")
    (directory / BANK).unlink()
    walk = of(capability_of(Container(directory), layers=(0, 1)), "walk")
    assert walk.admitted and walk.asked == ("target.layer.000/experts",)
    assert (f"{LAYER}/experts", "absent: outside the required population") in walk.outside
    walk = of(capability_of(Container(directory), layers=(1, 2)), "walk")
    assert not walk.admitted
    with pytest.raises(UsageError, match="layers 7:9 have no bank"):
        capability_of(Container(directory), layers=(7, 9))


def _entries(store: OperandStore, name: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    found = store.fetch(name, shape)
    assert isinstance(found, StoredBank)
    return found.entries


def test_shards_are_judged_together_and_by_segment(mixture: Path, tmp_path: Path) -> None:
    directory = copy_container(mixture, tmp_path / "c")
    names = cut_bank(directory)
    found = ask(directory)
    assert of(found, "walk").admitted and of(found, "local_decode").admitted
    assert verify_container(Container(directory), SilentProgress()) == []
    made = reconstruct(
        Container(directory), tmp_path / "back", force=False, progress=SilentProgress()
    )
    assert (made.authority.level, made.recipes["split"]) == ("source-exact", 3 * 4 * 2)
    whole, parts = (store_of(path) for path in (mixture, directory))
    for role in ("gate", "up", "down"):
        name = f"{LAYER}/experts.{role}"
        shape = whole.container.operands[name].shape
        pairs = zip(_entries(whole, name, shape), _entries(parts, name, shape), strict=True)
        assert all(a.tobytes() == b.tobytes() for a, b in pairs)
    (directory / names[1]).unlink()
    with pytest.raises(BindingDefect, match=r"seg01"):
        store_of(directory).fetch(name, shape)
    found = ask(directory)
    decode = of(found, "local_decode")
    assert [d.where for d in decode.diagnoses] == [
        f"{LAYER}/experts.{role}, segment 1 [2:4]" for role in ("gate", "up", "down")
    ]
    assert all(d.detail.startswith("consistently partial: ") for d in decode.diagnoses)
    walk = of(ask(directory, partial=True), "walk")
    assert walk.authority is not None
    assert (walk.authority.level, walk.authority.cap) == (
        "structurally-approximate",
        "completeness",
    )


def test_entries_that_a_profile_leaves_out_cap_a_partial_walk(
    mixture: Path, tmp_path: Path
) -> None:
    directory = copy_container(mixture, tmp_path / "c")

    def change(index: Any) -> None:
        index["profiles"] = {
            "few": {"omits": [f"{LAYER}/experts.{r}[2:4]" for r in ("gate", "up", "down")]},
            "odd": {"omits": [f"{LAYER}/experts.down[0:1]"]},
        }

    edit_index(directory, change)
    found = ask(directory, "few", partial=True)
    walk = of(found, "walk").authority
    assert walk is not None
    assert (walk.level, walk.cap) == ("structurally-approximate", "omission")
    assert found.defects == ()
    (diagnosis,) = of(ask(directory, "odd"), "local_decode").diagnoses
    assert diagnosis.where == f"{LAYER}/experts.down, unsegmented [0:1]"
    assert diagnosis.detail.startswith("incompatible: ")


# --- banks without a graph --------------------------------------------------------------------


def test_banks_alone_are_examined_and_do_not_decode(mixture: Path, tmp_path: Path) -> None:
    directory = edit_index(
        copy_container(mixture, tmp_path / "c"), lambda index: index.update(system_graph=None)
    )
    found = ask(directory)
    walk, decode = of(found, "walk"), of(found, "local_decode")
    assert walk.authority is not None and walk.authority.level == "source-exact"
    assert walk.asked[:2] == ("layer 0 routed bank", "layer 1 routed bank")
    assert [d.cause for d in decode.diagnoses] == [Cause.MISSING_CONTRACT]
    assert not decode.defects
    # The other layout of the programme stays as evidence.
    (failed,) = decode.groups[0].failed
    assert failed[0] == "gate_up_fused + down" and "gate_up_fused" in failed[1]

    def forget(index: Any) -> None:
        index["representations"] = {
            k: v for k, v in index["representations"].items() if "experts" not in k
        }

    walk = of(ask(edit_index(directory, forget)), "walk")
    assert walk.authority is not None and walk.authority.level == "analysis-only"


def test_an_unsound_manifest_is_a_missing_contract(mixture: Path, tmp_path: Path) -> None:
    directory = copy_container(mixture, tmp_path / "c")
    manifest = read_json(directory / "moe_manifest.json")
    manifest["layers"][1]["router"]["selection"]["k"] = 99
    write_json(directory / "moe_manifest.json", manifest)
    vouch_for(directory, "moe_manifest.json")
    (diagnosis,) = of(ask(directory), "local_decode").diagnoses
    assert (diagnosis.cause, diagnosis.where) == (Cause.MISSING_CONTRACT, "moe_manifest.json")
    assert "99" in diagnosis.detail
