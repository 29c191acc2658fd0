"""What is told of each bank, and where in it a defect is."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from larql.format.closure import BankPlace
from larql.format.container import Container, verify_container
from larql.format.moe.bank_view import bank_views
from larql.format.moe.capability import capability_of
from larql.format.progress import SilentProgress
from larql.format.region_bytes import regions_stand
from tests.builders.containers import (
    copy_container,
    edit_index,
    flip_byte,
    make_container,
    read_json,
    vouch_for,
    write_json,
)
from tests.builders.shards import cut_bank

CHECKPOINT = Path(__file__).parents[2] / "oracles" / "mixtral" / "checkpoint"
BANK = "routed/layer_001.lyrw"
SCHEMAS_AT = 24 + 24 + 12


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_container(CHECKPOINT, tmp_path_factory.mktemp("mixture") / "a").path


@pytest.fixture
def copy(mixture: Path, tmp_path: Path) -> Path:
    return copy_container(mixture, tmp_path / "c")


def defects(directory: Path) -> list[tuple[str, BankPlace | None]]:
    found = verify_container(Container(directory), SilentProgress())
    return [(defect.where, defect.place) for defect in found]


def test_each_bank_has_its_programme_its_storage_and_whether_it_binds(mixture: Path) -> None:
    first, second = bank_views(Container(mixture))
    assert (first.layer, first.bank, first.programme) == (0, "routed", "gated-mlp-v1")
    assert (first.experts, first.chosen, first.storage) == (4, 2, "layer_000")
    assert (second.files, second.binds, second.binding) == ((BANK,), True, "binds")


@pytest.mark.parametrize("role", ["gate", "up", "down"])
def test_a_changed_byte_is_placed_by_role(copy: Path, role: str) -> None:
    container = Container(copy)
    value = container.operands[f"target.layer.001/experts.{role}"]
    stored = container.entries(value).stored(2).tobytes()
    data = (copy / BANK).read_bytes()
    assert data.count(stored) == 1
    flip_byte(copy / BANK, data.index(stored) + 5)
    assert defects(copy) == [(BANK, BankPlace(1, "routed", role))]


@pytest.mark.parametrize("number", range(3))
def test_a_region_out_of_range_is_placed_by_role_and_leaves_the_others(
    copy: Path, number: int
) -> None:
    role = ("gate", "up", "down")[number]
    data = bytearray((copy / BANK).read_bytes())
    at = SCHEMAS_AT + 3 * 20 + 16 * (2 * 3 + number)  # of entry 2
    struct.pack_into("<Q", data, at, len(data) + 64 - len(data) % 64)
    (copy / BANK).write_bytes(data)
    assert defects(copy) == [(BANK, BankPlace(1, "routed", role))]
    vouch_for(copy, BANK)
    (defect,) = verify_container(Container(copy), SilentProgress())
    assert (defect.where, defect.place) == (BANK, BankPlace(1, "routed", role))
    assert f"bank 0, entry 2, schema {number} ({role}) is bytes" in defect.line()
    operations = {one.name: one for one in capability_of(Container(copy)).operations}
    assert operations["walk"].admitted is (role != "gate")
    assert not operations["local_decode"].admitted


def test_what_was_carried_is_known_by_itself(tmp_path: Path) -> None:
    """Its bytes are those that the checkpoint's hash is of, in every form that carries them."""
    told = 0
    for checkpoint in sorted(CHECKPOINT.parents[1].glob("*/checkpoint")):
        container = make_container(checkpoint, tmp_path / checkpoint.parent.name)
        for value in container.index.representations.values():
            if container.index.holds_banks(value.segment):
                assert regions_stand(container, value) in (True, None), value.id
                told += regions_stand(container, value) is True
    assert told > 50


def test_a_damaged_or_missing_file_is_placed(copy: Path) -> None:
    flip_byte(copy / BANK, 60)  # of the tables, which no role has
    assert (BANK, BankPlace(1, "routed")) in defects(copy)
    (copy / BANK).unlink()
    assert defects(copy) == [(BANK, BankPlace(1, "routed"))]
    _, view = bank_views(Container(copy))
    assert not view.binds
    assert view.binding.startswith("binding_defect: target.layer.001/experts.gate")


def test_a_segment_is_placed_among_the_bank_s_files(copy: Path) -> None:
    names = cut_bank(copy)
    assert defects(copy) == []
    flip_byte(copy / names[1])
    assert defects(copy) == [(names[1], BankPlace(1, "routed", None, 1))]


def test_a_region_that_no_codec_reads_is_placed_by_role_and_segment(copy: Path) -> None:
    names = cut_bank(copy)
    path = copy / names[1]
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, SCHEMAS_AT + 2 * 20 + 4, 0x8FFF)
    path.write_bytes(data)
    vouch_for(copy, names[1])
    found = verify_container(Container(copy), SilentProgress())
    # The files of a bank must agree, so all of the second is what the first is not.
    assert {defect.where for defect in found} == {names[1]}
    assert {d.place for d in found} == {
        BankPlace(1, "routed", role, 1) for role in ("gate", "up", "down")
    }


def test_one_role_of_a_whole_bank(copy: Path) -> None:
    path = copy / BANK
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, SCHEMAS_AT + 2 * 20 + 4, 0x8FFF)
    path.write_bytes(data)
    vouch_for(copy, BANK)
    (defect,) = verify_container(Container(copy), SilentProgress())
    assert (defect.where, defect.place) == (BANK, BankPlace(1, "routed", "down", None))
    assert "layer 1, routed bank, down: present but unsupported" in defect.line()


def test_what_a_profile_leaves_out_is_no_defect_though_it_does_not_bind(copy: Path) -> None:
    def change(index: Any) -> None:
        index["profiles"] = {"default": {"omits": ["target.layer.001/experts.down"]}}

    edit_index(copy, change)
    assert defects(copy) == []
    _, view = bank_views(Container(copy))
    assert not view.binds and view.binding.startswith("residency: ")


def test_banks_without_a_graph_are_shown_and_verified(copy: Path) -> None:
    edit_index(copy, lambda index: index.update(system_graph=None))
    first, second = bank_views(Container(copy))
    assert first.binds and second.binds
    assert defects(copy) == []
    (copy / BANK).unlink()
    assert defects(copy) == [(BANK, BankPlace(1, "routed"))]
    manifest = read_json(copy / "moe_manifest.json")
    manifest["layers"][0]["routed_bank"]["experts"] = 0
    write_json(copy / "moe_manifest.json", manifest)
    vouch_for(copy, "moe_manifest.json")
    assert ("moe_manifest.json", BankPlace(0, "routed")) in defects(copy)
