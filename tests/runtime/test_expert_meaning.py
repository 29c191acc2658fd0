"""What a file of experts says of itself, and the numbers that weigh experts, held before a run."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from larql.errors import BindingDefect, UnsupportedRefusal
from larql.format.container import Container, verify_container
from larql.format.progress import SilentProgress
from larql.format.segment import Segment
from larql.runtime.run import RunOptions, open_run
from tests.builders.containers import copy_container, make_container, vouch_for

ORACLES = Path(__file__).parents[1] / "oracles"
FILE = "routed/layer_001.lyrw"
LAYER = 8  # of the header
ROLE = 62  # of the first schema: behind a header of 24 bytes, a bank and a segment of 36


@pytest.fixture(scope="module")
def olmoe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("olmoe") / "m"
    return make_container(ORACLES / "olmoe" / "checkpoint", path).path


def changed(source: Path, to: Path, at: int, value: int, old: int) -> Path:
    """Set a 16-bit word of a file of experts, and have the index vouch for it."""
    directory = copy_container(source, to)
    data = bytearray((directory / FILE).read_bytes())
    assert struct.unpack_from("<H", data, at) == (old,)
    struct.pack_into("<H", data, at, value)
    (directory / FILE).write_bytes(data)
    return vouch_for(directory, FILE)


@pytest.mark.parametrize(
    ("role", "words"),
    [(77, "schema 0 (unknown role 77), expected gate"), (1, "schema 0 (up), expected gate")],
    ids=["unknown", "another"],
)
def test_a_region_for_something_else_is_not_bound(
    olmoe: Path, tmp_path: Path, role: int, words: str
) -> None:
    directory = changed(olmoe, tmp_path / "m", ROLE, role, old=0)
    with pytest.raises(BindingDefect, match=re.escape(words)):
        open_run(Container(directory), RunOptions(backend="reference"))
    found = verify_container(Container(directory), SilentProgress())
    assert words in "; ".join(defect.line() for defect in found)


@pytest.mark.parametrize(("at", "value"), [(ROLE + 2, 0x9ABC), (ROLE + 4, 9)])
def test_what_this_build_cannot_read_is_unsupported(
    olmoe: Path, tmp_path: Path, at: int, value: int
) -> None:
    directory = changed(olmoe, tmp_path / "m", at, value, old=0)
    with pytest.raises(UnsupportedRefusal, match="cannot read; use a newer larql"):
        open_run(Container(directory), RunOptions(backend="reference"))


def test_a_bank_of_another_layer_is_not_bound(olmoe: Path, tmp_path: Path) -> None:
    directory = changed(olmoe, tmp_path / "m", LAYER, 9, old=1)
    with pytest.raises(BindingDefect, match="holds banks of layer 9, expected 1"):
        open_run(Container(directory), RunOptions(backend="reference"))


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scales_of_experts_are_finite(tmp_path: Path, backend: str, value: float) -> None:
    directory = make_container(ORACLES / "gemma4-experts" / "checkpoint", tmp_path / "m").path
    container = Container(directory)
    (name,) = (
        name
        for name in container.operands
        if name.endswith("router.expert_scale") and "001" in name
    )
    held = container.operands[name]
    file = directory / held.segment
    header = Segment(file).header
    data = bytearray(file.read_bytes())
    at = header.data_start + header.entries[held.tensor].begin
    bits = np.array([value], np.float32).tobytes()
    data[at : at + held.encoding.block_bytes] = bits[-held.encoding.block_bytes :]
    file.write_bytes(data)
    vouch_for(directory, held.segment)
    with pytest.raises(BindingDefect, match=rf"{name}: number 0 is {value}, expected a finite one"):
        open_run(Container(directory), RunOptions(backend=backend))
