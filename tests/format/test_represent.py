"""Packing a container: everything it held stays, and what is added is the same bits."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import (
    BindingDefect,
    ContainerError,
    EncodingError,
    LarqlError,
    OutputError,
    UnsupportedRefusal,
    UsageError,
)
from larql.format import codec, represent, siblings
from larql.format.container import Container, verify_container
from larql.format.index import index_from_json, index_to_json
from larql.format.moe.capability import Capability, capability_of
from larql.format.moe.findings import Operation
from larql.format.progress import SilentProgress
from larql.format.represent import Packing, pack_container
from larql.format.source.reconstruct import reconstruct
from larql.runtime.operands import OperandStore
from tests.builders.containers import (
    copy_container,
    edit_index,
    file_bytes,
    flip_byte,
    make_container,
    read_json,
    vouch_for,
)
from tests.builders.models import LlamaSpec, write_llama_gguf, write_llama_safetensors

DOWN = "target.layer.000/ffn.down.weight"
LAYER = "segments/packed/target.layer.000.safetensors"
ORACLES = Path(__file__).parents[1] / "oracles"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices in q8_0; the vocabulary is not a multiple of 16, so two of them stay."""
    at = tmp_path_factory.mktemp("plain")
    spec = LlamaSpec(gguf_type="q8_0", vocab=250, tokenizer=False)
    return make_container(write_llama_gguf(at / "m.gguf", spec), at / "a").path


@pytest.fixture(scope="module")
def packed(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(plain, tmp_path_factory.mktemp("packed") / "a").path


def pack(source: Path, output: Path, *, force: bool = False) -> Packing:
    return pack_container(Container(source), output, force=force, progress=SilentProgress())


def defects(directory: Path) -> list[str]:
    return [defect.line() for defect in verify_container(Container(directory), SilentProgress())]


def operation(found: Capability, name: str) -> Operation:
    return next(one for one in found.operations if one.name == name)


def test_all_that_was_held_stays_and_is_linked(plain: Path, tmp_path: Path) -> None:
    before = file_bytes(plain)
    made = pack(plain, tmp_path / "out")
    after = file_bytes(tmp_path / "out")
    assert file_bytes(plain) == before
    for name, content in before.items():
        if name != "index.json":
            assert after.pop(name) == content
            assert (tmp_path / "out" / name).samefile(plain / name)
    assert set(after) == {"index.json", *(f"segments/packed/{n}" for n in _segments(plain))}
    assert made.fingerprint == Container(tmp_path / "out").fingerprint
    assert made.nbytes == sum(map(len, file_bytes(tmp_path / "out").values()))
    assert made.added == sum(map(len, after.values())) - len(after["index.json"])


def _segments(directory: Path) -> list[str]:
    return [path.name for path in (directory / "segments").glob("*.layer.*")]


def test_what_the_index_says(plain: Path, packed: Path) -> None:
    old, new = Container(plain).index, Container(packed).index
    assert defects(packed) == []
    assert new.by_operand() == old.by_operand()
    added = [value for key, value in new.representations.items() if key not in old.representations]
    assert [value.operand for value in added] == [
        value.operand
        for value in old.representations.values()
        if len(value.shape) == 2 and value.shape[0] != 250
    ]
    for value in added:
        was = old.representations[value.operand]
        assert (value.id, value.packs) == (f"{was.id}@packed", was.id)
        assert (value.encoding.name, value.fidelity) == ("q8_0_r16", "source-equivalent")
        assert (value.shape, value.tensor, value.source) == (was.shape, was.tensor, was.source)
        assert value.segment == was.segment.replace("segments/", "segments/packed/")
    assert new.profiles == {"packed": {"inherits": None, "variants": ["packed"]}}
    assert new.variants == {"packed": {"representations": {v.operand: v.id for v in added}}}
    listed: Any = new.objects["target.layer.000"]
    assert listed["representations"][-1].endswith("@packed")
    assert new.precision_map["q8_0_r16"] == sum(value.elements for value in added)
    assert list(new.files) == sorted(new.files)
    kept = ("model", "family", "authority", "source", "text", "notes", "derived_from_model")
    assert all(getattr(new, name) == getattr(old, name) for name in kept)
    assert index_from_json(index_to_json(new), "index") == new


def test_the_bytes_are_packed_rows(plain: Path, packed: Path) -> None:
    old, new = Container(plain), Container(packed)
    was, value = old.operands[DOWN], new.index.representations[f"{DOWN}@packed"]
    rows = old.segment(was.segment).bytes_of(was.tensor).reshape(was.shape[0], -1)
    found = new.segment(value.segment).bytes_of(value.tensor).reshape(was.shape[0], -1)
    assert np.array_equal(codec.unpack(value.encoding, found, was.shape[1]), rows)
    assert not np.array_equal(found, rows)


def test_the_same_bytes_every_time_and_in_pieces(
    plain: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    whole = codec.pack

    def told(enc: codec.Encoding, rows: Any, columns: int) -> Any:
        sizes.append(len(rows))
        return whole(enc, rows, columns)

    monkeypatch.setattr(codec, "pack", told)
    monkeypatch.setattr(siblings, "_CHUNK", 1)
    pack(plain, tmp_path / "out")
    assert set(sizes) == {16}
    assert file_bytes(tmp_path / "out") == file_bytes(packed)


def test_what_is_not_packed_is_listed(plain: Path, tmp_path: Path) -> None:
    left = pack(plain, tmp_path / "out").left
    assert left["target.embedding/weight"] == "250 rows are not a multiple of 16"
    assert left["target.norms/output.weight"] == "vectors"
    bank = make_container(ORACLES / "mixtral" / "checkpoint", tmp_path / "bank", quant="q8_0")
    found = pack(bank.path, tmp_path / "packed bank")
    assert found.left["target.layer.000/experts.down"].startswith("experts of banks")
    assert set(found.packed) | set(found.left) == set(bank.operands)
    assert defects(tmp_path / "packed bank") == []


def test_what_latent_attention_reads_by_heads_is_not_packed(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latent = make_container(ORACLES / "deepseek_v3" / "checkpoint", tmp_path / "latent")
    (component,) = latent.graph.components
    ups = {name for name in latent.operands if name.endswith(("k_up.weight", "v_up.weight"))}
    assert len(ups) == 2 * len(component.layers)
    assert set(represent._read_by_heads(component)) == ups
    monkeypatch.setattr(represent, "_read_by_heads", lambda _component: [DOWN])
    found = pack(plain, tmp_path / "out")
    assert found.left[DOWN] == "latent attention reads it head by head, and not as a product"
    assert DOWN not in found.packed


def test_where_links_are_not_to_be_had_files_are_copied(
    plain: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EXDEV, "other device")

    monkeypatch.setattr(os, "link", refuse)
    pack(plain, tmp_path / "out")
    assert file_bytes(tmp_path / "out") == file_bytes(packed)
    assert not (tmp_path / "out/system_graph.json").samefile(plain / "system_graph.json")


def test_an_approximation_stays_one(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(hidden=256, layers=1))
    plain = make_container(source, tmp_path / "a", quant="q4_k").path
    packed = pack(plain, tmp_path / "b")
    assert {value.fidelity for value in packed.packed.values()} == {"numerically-approximate"}
    for name in ("walk", "local_decode", "reconstruct_canonical"):
        old, new = (operation(capability_of(Container(p)), name) for p in (plain, packed.path))
        assert (new.authority, new.diagnoses) == (old.authority, old.diagnoses)
    for path in (plain, packed.path):
        out = tmp_path / f"{path.name} back"
        reconstruct(Container(path), out, force=False, progress=SilentProgress())
    back = [
        {n: c for n, c in file_bytes(tmp_path / f"{p} back").items() if n.endswith("tensors")}
        for p in ("a", "b")
    ]
    assert back[0]
    assert back[0] == back[1]


def test_a_checkpoint_is_not_written_from_packed_rows(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(hidden=256, layers=1))
    packed = pack(make_container(source, tmp_path / "a", quant="q8_0").path, tmp_path / "b").path

    def change(index: Any) -> None:
        values = index["representations"]
        values.update({DOWN: values.pop(DOWN)})  # now the last of its operand

    edit_index(packed, change)
    with pytest.raises(UnsupportedRefusal, match=f"operand {DOWN} has q8_0_r16 for its first"):
        reconstruct(Container(packed), tmp_path / "back", force=False, progress=SilentProgress())


def test_the_capability_under_the_profile(plain: Path, packed: Path) -> None:
    assert operation(capability_of(Container(packed)), "local_decode").authority == (
        operation(capability_of(Container(plain)), "local_decode").authority
    )
    found = operation(capability_of(Container(packed), "packed"), "local_decode")
    assert found.authority is not None
    assert found.authority.level == "source-equivalent"
    assert found.achievable is not None
    assert found.achievable.settled


def test_what_serves_by_default_is_what_is_packed(plain: Path, tmp_path: Path) -> None:
    directory = copy_container(plain, tmp_path / "a")

    def change(index: Any) -> None:
        index["representations"][f"{DOWN}#other"] = index["representations"][DOWN]
        index["variants"]["other"] = {"representations": {DOWN: f"{DOWN}#other"}}
        index["profiles"]["default"] = {"variants": ["other"], "omits": ["target.output_head"]}

    edit_index(directory, change)
    made = pack(directory, tmp_path / "b")
    assert made.packed[DOWN].packs == f"{DOWN}#other"
    assert made.left["target.output_head/weight"] == "the profile default does not serve it"
    selected = Container(tmp_path / "b").select("packed")
    assert selected.chain == ("packed", "default")
    assert selected.bound[DOWN].id == f"{DOWN}#other@packed"
    assert selected.omitted("target.output_head/weight")
    assert defects(tmp_path / "b") == []


def test_refusals_leave_nothing(plain: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=r"is packed already, as target\.layer\.000.*@packed"):
        pack(packed, out)
    floats = make_container(
        write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1)), tmp_path / "floats"
    )
    with pytest.raises(UsageError, match="nothing in it can be packed: f32 has no packed form"):
        pack(floats.path, out)
    named = copy_container(plain, tmp_path / "named")
    edit_index(named, lambda index: index["variants"].update(packed={"representations": {}}))
    with pytest.raises(UsageError, match="has a variant 'packed' of its own"):
        pack(named, out)
    with pytest.raises(OutputError, match="holds the source"):
        pack(plain, plain, force=True)
    with pytest.raises(OutputError, match="lies in the container itself"):
        pack(plain, plain / "packed")
    with pytest.raises(OutputError, match="exists; give --force"):
        pack(plain, floats.path)
    assert not out.exists()
    pack(plain, floats.path, force=True)
    assert file_bytes(floats.path) == file_bytes(packed)


@pytest.mark.parametrize(
    "name", ["segments/target.layer.000.safetensors", "segments/target.norms.safetensors"]
)
def test_a_damaged_container_is_not_packed(plain: Path, name: str, tmp_path: Path) -> None:
    directory = copy_container(plain, tmp_path / "a")
    flip_byte(directory / name)
    with pytest.raises(ContainerError, match="the index vouches for"):
        pack(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_that_do_not_unpack_are_not_written(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = codec.pack

    def wrong(enc: codec.Encoding, rows: Any, columns: int) -> Any:
        made = whole(enc, rows, columns)
        made[-1, -1] ^= 1
        return made

    monkeypatch.setattr(codec, "pack", wrong)
    with pytest.raises(EncodingError, match=r"tensor .* packed as q8_0_r16 does not unpack"):
        pack(plain, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def _changed(packed: Path, at: Path, **fields: object) -> Path:
    directory = copy_container(packed, at)
    edit_index(directory, lambda index: index["representations"][f"{DOWN}@packed"].update(fields))
    return directory


def test_verify_unpacks_again(packed: Path, tmp_path: Path) -> None:
    directory = copy_container(packed, tmp_path / "a")
    (directory / LAYER).unlink()  # of a link, the other end would change too
    (directory / LAYER).write_bytes((packed / LAYER).read_bytes())
    flip_byte(directory / LAYER)
    assert len(defects(directory)) == 1
    vouch_for(directory, LAYER)
    (found,) = defects(directory)
    assert found == f"{LAYER}: operand {DOWN}: {DOWN}@packed does not unpack to the bytes of {DOWN}"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"packs": "nothing"}, "packs 'nothing', which is not in the container"),
        ({"packs": "target.layer.001/ffn.down.weight"}, "not the same operand in q8_0"),
        ({"packs": f"{DOWN}@packed"}, "not the same operand in q8_0"),
        ({"packs": None}, "is in q8_0_r16 and does not say what it packs"),
        ({"encoding": "q8_0"}, "but q8_0 is no packed encoding"),
        ({"fidelity": "source-exact"}, "is called source-exact, but packs"),
    ],
)
def test_verify_holds_what_is_said_of_packing(
    packed: Path, fields: dict[str, object], words: str, tmp_path: Path
) -> None:
    directory = _changed(packed, tmp_path / "a", **fields)
    assert words in "; ".join(defects(directory))
    container = Container(directory)
    store = OperandStore(container, container.select("packed"))
    with pytest.raises(BindingDefect, match=re.escape(words)):
        store.fetch(DOWN, container.operands[DOWN].shape)


def test_verify_resolves_every_profile(packed: Path, tmp_path: Path) -> None:
    directory = copy_container(packed, tmp_path / "a")

    def change(index: Any) -> None:
        index["variants"]["rows"] = {"representations": {DOWN: DOWN}}
        index["profiles"]["both"] = {"variants": ["packed", "rows"]}
        index["profiles"]["lost"] = {"inherits": "nobody"}
        index["profiles"]["odd"] = {"omits": ["target.layer.009"]}

    edit_index(directory, change)
    assert [line.partition(", ")[0] for line in defects(directory)] == [
        f"{DOWN}: profile both selects {DOWN}@packed",
        "index.json: profile 'lost' inherits from 'nobody'",
        "index.json: profile odd speaks of 'target.layer.009'",
    ]


def test_a_cut_slab_is_no_shape(packed: Path, tmp_path: Path) -> None:
    directory = _changed(packed, tmp_path / "a", shape=[60, 128])
    with pytest.raises(LarqlError, match="60 rows are not a multiple of its slab of 16"):
        Container(directory)


def test_names_are_not_taken_twice(plain: Path, tmp_path: Path) -> None:
    directory = copy_container(plain, tmp_path / "a")
    content = read_json(directory / "index.json")["representations"][DOWN]
    edit_index(
        directory, lambda index: index["representations"].update({f"{DOWN}@packed": content})
    )
    with pytest.raises(UsageError, match="already"):
        pack(directory, tmp_path / "b")
    assert represent.PACKED == "packed"
