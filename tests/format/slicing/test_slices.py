"""Slices of containers: what they hold, that they verify, and what they say is elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.errors import ContainerError, LarqlError, OutputError, UsageError
from larql.format.closure import operand_contracts
from larql.format.container import Container, verify_container
from larql.format.lyrw.v2 import BankFile
from larql.format.moe.capability import capability_of
from larql.format.progress import SilentProgress
from larql.format.segment import hash_file
from larql.format.slicing import share
from larql.format.slicing.parts import operand_uses
from larql.format.slicing.plan import Request, plan_slice, request
from larql.format.slicing.presets import PRESETS, Part
from larql.format.slicing.write import Made, planned_files, write_slice
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import compile_checkpoint
from tests.builders.containers import (
    copy_container,
    edit_index,
    file_bytes,
    flip_byte,
    make_container,
    read_json,
    write_json,
)
from tests.builders.experts import clamped
from tests.builders.hybrids import changed, draft_tensors, nested, recorded
from tests.builders.models import LlamaSpec, write_llama_safetensors
from tests.builders.safetensors import write_safetensors_dir

ORACLES = Path(__file__).parents[2] / "oracles"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("dense")
    source = write_llama_safetensors(at / "m", LlamaSpec(layers=3, tokenizer=True))
    (source / "LICENSE").write_text("do as you like\n")
    return make_container(source, at / "a").path


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers 0 and 2 route to 7 experts with three matrices each; layer 1 is dense."""
    at = tmp_path_factory.mktemp("separate")
    return make_container(ORACLES / "qwen3_moe" / "checkpoint", at / "a").path


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gate and up in one region, with biases."""
    at = tmp_path_factory.mktemp("fused")
    return make_container(clamped(at / "m", "mxfp4"), at / "a").path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts beside those that every position passes through."""
    at = tmp_path_factory.mktemp("shared")
    return make_container(ORACLES / "glm4_moe" / "checkpoint", at / "a").path


def cut(source: Path, to: Path, wanted: Request | None = None, *, force: bool = False) -> Container:
    made(source, to, wanted or request(None, []), force=force)
    return Container(to)


def made(source: Path, to: Path, wanted: Request, *, force: bool = False) -> Made:
    container = Container(source)
    plan = plan_slice(container, wanted)
    return write_slice(container, plan, to, force=force, progress=SilentProgress())


def sound(container: Container) -> None:
    """A slice verifies, lacks nothing that it did not declare, and holds nothing else."""
    assert verify_container(container, SilentProgress()) == []
    assert capability_of(container).defects == ()
    named: dict[str, set[str]] = {}
    for value in container.index.representations.values():
        named.setdefault(value.segment, set()).add(value.tensor)
    for name, tensors in named.items():
        if container.index.holds_banks(name):
            (bank,) = container.bank_file(name).tables.banks
            assert {f"{bank.bank_id}/{s.schema_index}" for s in bank.schemas} == tensors
        else:
            assert set(container.segment(name).header.entries) == tensors


def tensors(container: Container) -> set[str]:
    return {name.split("/")[1] for name in container.operands}


def can(container: Container, name: str) -> bool:
    found = [o for o in capability_of(container).operations if o.name == name]
    return all(operation.admitted for operation in found)


# --- parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.name for path in ORACLES.iterdir() if path.is_dir()))
def test_every_operand_of_every_operation_belongs_to_a_part(name: str) -> None:
    path = ORACLES / name / "checkpoint"
    if not path.is_dir():
        return
    with open_checkpoint(path) as checkpoint:
        graph = compile_checkpoint(checkpoint).graph
    for component in graph.components:
        uses = list(operand_uses(component))
        assert {use.operand for use in uses} == {c.name for c in operand_contracts(component)}
        layers = {(c.name, c.layer) for c in operand_contracts(component)}
        assert {(use.operand, use.layer) for use in uses} <= layers | {
            (component.head.weight, None)
        }


def test_the_presets_are_the_eight() -> None:
    assert list(PRESETS) == [
        "client",
        "attn",
        "embed",
        "server",
        "browse",
        "router",
        "expert-server",
        "all",
    ]
    assert PRESETS["all"] == set(Part)


ATTENTION = {f"attention.{name}.weight" for name in "qkvo"}
NORMS = {"attention.norm.weight", "ffn.norm.weight", "output.weight"}
FFN = {"ffn.gate.weight", "ffn.up.weight", "ffn.down.weight"}


@pytest.mark.parametrize(
    ("preset", "holds"),
    [
        ("client", {"weight"} | ATTENTION | NORMS),
        ("attn", ATTENTION | NORMS),
        ("embed", {"weight"}),
        ("server", {"weight"} | NORMS | FFN),
        ("browse", {"weight", "ffn.gate.weight"}),
        ("expert-server", {"weight"} | NORMS | FFN),
        ("all", {"weight"} | ATTENTION | NORMS | FFN),
    ],
)
def test_a_preset_of_a_dense_model(
    preset: str, holds: set[str], dense: Path, tmp_path: Path
) -> None:
    found = cut(dense, tmp_path / "s", request(preset, []))
    sound(found)
    assert tensors(found) == holds
    assert ("target.output_head/weight" in found.operands) == (preset == "all")
    texts = set(found.text_files())
    assert "LICENSE" in texts
    assert ("tokenizer.json" in texts) == (preset != "attn")
    assert ("source_config.json" in texts) == (preset == "all")
    assert can(found, "local_decode") == (preset == "all")
    assert can(found, "walk") == (preset in ("all", "browse", "server", "expert-server"))


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("which", ["separate", "fused", "shared"])
def test_a_preset_of_a_model_with_experts(
    preset: str, which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Path = request.getfixturevalue(which)
    found = cut(source, tmp_path / "s", _of(preset))
    sound(found)
    assert can(found, "walk") == (preset in ("all", "browse", "server", "expert-server"))
    assert can(found, "local_decode") == (preset == "all")
    kinds = tensors(found)
    if preset == "router":
        assert kinds and all(name.startswith("ffn.router.") for name in kinds)
        assert found.index.moe_manifest is None
    if preset == "browse":
        assert not any(".down" in name or ".router." in name for name in kinds)
    if preset == "expert-server":
        assert "experts.down" in kinds
        assert not any(".router." in name for name in kinds)


def _of(preset: str) -> Request:
    return request(preset, [])


def test_parts_are_added_to_a_preset_or_stand_alone(dense: Path, tmp_path: Path) -> None:
    client = cut(dense, tmp_path / "a", request("client", ["head"]))
    assert "target.output_head/weight" in client.operands
    norms = cut(dense, tmp_path / "b", request(None, ["norms"]))
    assert tensors(norms) == NORMS


# --- the index says what is elsewhere -----------------------------------------------------------


def test_what_is_left_out_is_declared_and_nothing_else_may_be_missing(
    dense: Path, tmp_path: Path
) -> None:
    found = cut(dense, tmp_path / "s", request("browse", []))
    assert found.index.authority == "derived"
    assert found.index.derived_from_model == Container(dense).fingerprint
    declared = found.index.profiles["default"]
    assert isinstance(declared, dict)
    assert "target.norms" in declared["remote"]
    assert "target.layer.001/ffn.down.weight" in declared["remote"]

    def keep_two(index: Any) -> None:
        del index["representations"]["target.layer.001/ffn.gate.weight"]

    edit_index(found.path, keep_two)
    (defect,) = verify_container(Container(found.path), SilentProgress())
    assert "target.layer.001/ffn.gate.weight" in defect.problem


def test_a_slice_of_a_slice_names_the_container_that_both_are_of(
    dense: Path, tmp_path: Path
) -> None:
    first = cut(dense, tmp_path / "a", request("server", []))
    second = cut(first.path, tmp_path / "b", request("browse", []))
    sound(second)
    assert second.index.derived_from_model == Container(dense).fingerprint
    straight = cut(dense, tmp_path / "c", request("browse", []))
    assert second.index.representations == straight.index.representations
    assert second.index.segments == straight.index.segments


def test_cutting_twice_gives_the_same_bytes(separate: Path, tmp_path: Path) -> None:
    wanted = request("expert-server", [], experts=(2, 5))
    a, b = cut(separate, tmp_path / "a", wanted), cut(separate, tmp_path / "b", wanted)
    assert file_bytes(a.path) == file_bytes(b.path)


def test_fields_that_are_not_known_are_kept(dense: Path, tmp_path: Path) -> None:
    source = copy_container(dense, tmp_path / "m")

    def extend(index: Any) -> None:
        index["later"] = {"a": 1}
        index["representations"]["target.embedding/weight"]["later"] = 2

    edit_index(source, extend)
    found = read_json(cut(source, tmp_path / "s", request("embed", [])).path / "index.json")
    assert found["later"] == {"a": 1}
    assert found["representations"]["target.embedding/weight"]["later"] == 2


def test_profiles_and_variants_are_cut_with_what_they_speak_of(dense: Path, tmp_path: Path) -> None:
    source = copy_container(dense, tmp_path / "m")
    gone, kept = "target.layer.002/ffn.up.weight", "target.layer.000/ffn.gate.weight"

    def extend(index: Any) -> None:
        index["variants"] = {"v": {"representations": {gone: gone, kept: kept}}}
        index["profiles"] = {
            "base": {"omits": ["target.layer.002"]},
            "thin": {"inherits": "base", "variants": ["v"]},
        }

    edit_index(source, extend)
    found = cut(source, tmp_path / "s", request("browse", [], draft_depth=2))
    assert found.index.variants == {"v": {"representations": {kept: kept}}}
    base, thin = found.index.profiles["base"], found.index.profiles["thin"]
    assert isinstance(base, dict) and base["omits"] == []
    assert "target.norms" in base["remote"]
    assert thin == {"inherits": "base", "variants": ["v"]}
    for profile in ("base", "thin", "default"):
        assert capability_of(found, profile).defects == ()


# --- layers, experts, depth ---------------------------------------------------------------------


def test_layers_keep_their_numbers(separate: Path, tmp_path: Path) -> None:
    found = cut(separate, tmp_path / "s", request(None, [], layers=(1, 3)))
    sound(found)
    layers = {name.split("/")[0] for name in found.operands if ".layer." in name}
    assert layers == {"target.layer.001", "target.layer.002"}
    assert found.index.num_layers == 3
    assert list(found.storages) == ["routed/layer_002.lyrw"]
    one = cut(separate, tmp_path / "t", request(None, [], layers=(1, 2)))
    assert one.index.moe_manifest is None
    sound(one)


@pytest.mark.parametrize("experts", [(0, 3), (2, 4), (3, 7), (6, 7), (0, 7)])
def test_a_shard_holds_the_bytes_of_its_experts(
    experts: tuple[int, int], separate: Path, tmp_path: Path
) -> None:
    source = Container(separate)
    found = cut(separate, tmp_path / "s", request(None, [], experts=experts))
    sound(found)
    assert can(found, "local_decode") == (experts == (0, 7))
    for name, value in source.operands.items():
        if not source.index.holds_banks(value.segment):
            continue
        here = found.operands[name]
        assert here.shape == value.shape, "the population stays what it was"
        whole = source.entries(value)
        file: BankFile = found.bank_file(here.segment)
        assert file.tables.one_of_several == (experts != (0, 7))
        for entry in range(*experts):
            stored = file.stored_bytes(whole.place.bank, entry, whole.schema)
            assert stored.tobytes() == whole.stored(entry).tobytes()
        segments = file.tables.segments
        assert [(s.first_entry, s.end) for s in segments] == [experts]


def test_shards_of_one_width_are_numbered_in_order(separate: Path, tmp_path: Path) -> None:
    names = []
    for number in range(4):
        wanted = request(None, [], experts=(2 * number, min(2 * number + 2, 7)))
        found = cut(separate, tmp_path / str(number), wanted)
        names.append(next(iter(found.storages)))
    assert names[:3] == [f"routed/layer_000.seg{number:02d}.lyrw" for number in range(3)]
    assert len(set(names)) == 4


def test_a_shard_is_cut_again(separate: Path, tmp_path: Path) -> None:
    first = cut(separate, tmp_path / "a", request(None, [], experts=(2, 6)))
    second = cut(first.path, tmp_path / "b", request("browse", [], experts=(4, 7)))
    sound(second)
    (file,) = {value.segment for value in second.operands.values() if "layer.000" in value.operand}
    (segment,) = second.bank_file(file).tables.segments
    assert (segment.first_entry, segment.end) == (4, 6)
    with pytest.raises(UsageError, match="nothing of the model is left"):
        plan_slice(Container(first.path), request(None, ["expert_layers"], experts=(0, 2)))


def test_a_shallower_model_is_whole(separate: Path, tmp_path: Path) -> None:
    found = cut(separate, tmp_path / "s", request(None, [], draft_depth=2))
    sound(found)
    assert found.index.num_layers == len(found.graph.components[0].layers) == 2
    assert found.index.profiles == {}
    assert can(found, "local_decode")
    assert "source_config.json" not in found.text_files()


def test_what_drafts_for_the_whole_model_does_not_go_with_a_shallower_one(tmp_path: Path) -> None:
    config, trunk = recorded("qwen3_5")
    extra = draft_tensors(config)
    for part in "qkvo":
        rows = len(extra[f"mtp.layers.0.self_attn.{part}_proj.weight"])
        extra[f"mtp.layers.0.self_attn.{part}_proj.bias"] = np.ones(rows, np.float32)
    keys = {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    outer, inside = nested(changed(config, keys), trunk)
    source = make_container(
        write_safetensors_dir(tmp_path / "m", outer, {**inside, **extra}), tmp_path / "c"
    )
    plan = plan_slice(source, request(None, [], draft_depth=1))
    assert [component.id for component in plan.graph.components] == ["target"]
    assert plan.graph.edges == ()
    assert plan.notes == ("mtp is left out: it was made for the whole model",)
    assert not any(value.operand.startswith("mtp.") for value in plan.representations.values())
    depth = len(source.graph.components[0].layers)
    assert plan_slice(source, request(None, [], draft_depth=depth)).graph == source.graph
    whole = cut(source.path, tmp_path / "s", request("attn", []))
    sound(whole)
    assert "mtp.layer.000/attention.q.weight" in whole.operands


LAYERS = st.tuples(st.integers(0, 2), st.integers(1, 3)).filter(lambda r: r[0] < r[1])
EXPERTS = st.tuples(st.integers(0, 6), st.integers(1, 7)).filter(lambda r: r[0] < r[1])


@settings(max_examples=25, deadline=None)
@given(
    parts=st.sets(st.sampled_from(list(Part)), min_size=1),
    layers=st.none() | LAYERS,
    experts=st.none() | EXPERTS,
    depth=st.none() | st.integers(1, 3),
)
def test_whatever_is_asked_for_verifies_or_is_refused(
    separate: Path,
    tmp_path_factory: pytest.TempPathFactory,
    parts: set[Part],
    layers: tuple[int, int] | None,
    experts: tuple[int, int] | None,
    depth: int | None,
) -> None:
    at = tmp_path_factory.mktemp("any") / "s"
    source = Container(separate)
    wanted = request(None, sorted(parts), layers, experts, depth)
    try:
        plan = plan_slice(source, wanted)
    except UsageError:
        return
    write_slice(source, plan, at, force=False, progress=SilentProgress())
    sound(Container(at))
    listed = {file.name: file.size for file in planned_files(source, plan)}
    assert listed == {
        name: len(data) for name, data in file_bytes(at).items() if name != "index.json"
    }


# --- bytes, and what must never happen ------------------------------------------------------------


def test_whole_files_are_not_stored_twice(dense: Path, tmp_path: Path) -> None:
    before = file_bytes(dense)
    done = made(dense, tmp_path / "s", request("client", []))
    sound(Container(tmp_path / "s"))
    assert file_bytes(dense) == before
    assert sum(done.shared.values()) == done.shared["cloned"] + done.shared["linked"] > 0
    assert done.stored < done.nbytes
    if done.shared["linked"]:
        names = ("segments", "target.embedding.safetensors")
        assert dense.joinpath(*names).samefile((tmp_path / "s").joinpath(*names))


def test_a_file_system_without_links_gets_copies(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(share, "_clone", lambda *_: False)
    done = made(dense, tmp_path / "s", request("all", []))
    assert done.shared["copied"] > 0 == done.shared["linked"]
    assert done.stored == done.nbytes
    sound(Container(tmp_path / "s"))


def test_a_copy_is_held_to_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "_clone", lambda *_: False)
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "no")))
    (tmp_path / "a").write_bytes(b"abc")
    right = hash_file(tmp_path / "a")
    assert share.share_file(tmp_path / "a", tmp_path / "b", right) == "copied"
    (tmp_path / "a").write_bytes(b"abd")
    with pytest.raises(ContainerError, match="damaged"):
        share.share_file(tmp_path / "a", tmp_path / "c", right)


@pytest.mark.parametrize("how", ["whole", "cut"])
def test_damaged_bytes_are_not_passed_on(how: str, dense: Path, tmp_path: Path) -> None:
    source = copy_container(dense, tmp_path / "m")
    name = "segments/target.layer.001.safetensors"
    flip_byte(source / name)
    with pytest.raises(ContainerError, match=r"target\.layer\.001.*damaged"):
        cut(source, tmp_path / "s", request("all" if how == "whole" else "browse", []))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_damaged_experts_are_not_passed_on(separate: Path, tmp_path: Path) -> None:
    source = copy_container(separate, tmp_path / "m")
    flip_byte(source / "routed" / "layer_002.lyrw")
    with pytest.raises(ContainerError, match=r"layer_002\.lyrw.*damaged"):
        cut(source, tmp_path / "s", request(None, [], experts=(0, 2)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_an_existing_slice_is_replaced_only_with_force(dense: Path, tmp_path: Path) -> None:
    cut(dense, tmp_path / "s", request("embed", []))
    with pytest.raises(OutputError, match="--force"):
        cut(dense, tmp_path / "s", request("browse", []))
    assert "target.layer.000/ffn.gate.weight" not in Container(tmp_path / "s").operands
    cut(dense, tmp_path / "s", request("browse", []), force=True)
    assert "target.layer.000/ffn.gate.weight" in Container(tmp_path / "s").operands


def test_the_container_itself_is_never_the_output(dense: Path, tmp_path: Path) -> None:
    source = copy_container(dense, tmp_path / "deep" / "m")
    for target in (source, source / "s", tmp_path / "deep"):
        with pytest.raises(OutputError, match="choose another path"):
            cut(source, target, force=True)
    assert file_bytes(source) == file_bytes(dense)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (lambda: request("routers", []), "no preset 'routers'; expected client, attn"),
        (lambda: request(None, ["gates"]), "no part 'gates'; expected embed, norms"),
        (lambda: request("router", []), "no router in it"),
        (lambda: request(None, ["expert_layers"]), "no expert_layers in it"),
        (lambda: request(None, ["readme"]), "nothing of the model is left"),
        (lambda: request(None, [], layers=(1, 4)), "--layers 1:4: there are 3 layers"),
        (lambda: request(None, [], experts=(0, 1)), "no experts to choose among"),
        (lambda: request(None, [], draft_depth=0), "--draft-depth 0: the model has 3 layers"),
        (lambda: request(None, [], draft_depth=4), "--draft-depth 4: the model has 3 layers"),
    ],
)
def test_what_is_not_there_is_refused(wanted: Any, problem: str, dense: Path) -> None:
    with pytest.raises(LarqlError) as caught:
        plan_slice(Container(dense), wanted())
    assert problem in str(caught.value)
    assert caught.value.exit_code == 2


def test_experts_beyond_the_population_are_refused(separate: Path) -> None:
    with pytest.raises(UsageError, match="--experts 4:8: there are 7 experts"):
        plan_slice(Container(separate), request(None, [], experts=(4, 8)))


def test_a_container_without_a_graph_is_refused(separate: Path, tmp_path: Path) -> None:
    source = copy_container(separate, tmp_path / "m")
    edit_index(source, lambda index: index.update(system_graph=None))
    with pytest.raises(ContainerError, match="has no system graph"):
        plan_slice(Container(source), request("all", []))


def test_a_malformed_profile_is_refused_and_found(dense: Path, tmp_path: Path) -> None:
    source = copy_container(dense, tmp_path / "m")
    edit_index(source, lambda index: index.update(profiles={"default": ["no object"]}))
    with pytest.raises(ContainerError, match="profile 'default': expected an object"):
        plan_slice(Container(source), request("all", []))
    found = verify_container(Container(source), SilentProgress())
    assert [defect.where for defect in found] == ["index.json"]


def test_a_file_missing_from_a_slice_is_a_defect(separate: Path, tmp_path: Path) -> None:
    found = cut(separate, tmp_path / "s", request(None, [], experts=(0, 4)))
    (found.path / "routed" / "layer_002.seg00.lyrw").unlink()
    defects = verify_container(Container(found.path), SilentProgress())
    assert {defect.where for defect in defects} == {"routed/layer_002.seg00.lyrw"}


def test_a_manifest_that_the_slice_does_not_imply_is_a_defect(
    separate: Path, tmp_path: Path
) -> None:
    found = cut(separate, tmp_path / "s", request(None, [], layers=(0, 1)))
    name = "moe_manifest.json"
    document = read_json(found.path / name)
    document["layers"][0]["router"]["selection"]["k"] += 1
    write_json(found.path / name, document)
    problems = [d.problem for d in verify_container(Container(found.path), SilentProgress())]
    assert any("is not the manifest that the graph implies" in text for text in problems)
