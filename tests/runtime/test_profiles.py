"""Profiles at run time: a selection among what a container holds, resolved before anything runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import larql
from larql.errors import BindingDefect, Refusal, ResidencyRefusal, UnsupportedRefusal, UsageError
from larql.format.codec import ENCODINGS, pack
from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.format.represent import pack_container
from larql.kernels import encodings
from larql.runtime import warm
from larql.runtime.backends.production import arithmetic
from larql.runtime.bench.cost import weight_bytes
from larql.runtime.dump import canonical
from larql.runtime.operands import OperandStore, StoredOperand
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.walk.answer import WalkOptions
from larql.runtime.walk.run import walk
from tests.builders.containers import copy_container, edit_index, make_container
from tests.builders.models import LlamaSpec, write_llama_gguf

Q = "target.layer.000/attention.q.weight"
DOWN = "target.layer.001/ffn.down.weight"
TOKENS = [3, 250, 17, 17, 90]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["q8_0", "q5_1", "q4_k"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Container:
    """A container with packed rows beside each encoding's plain ones; the head is tied."""
    at = tmp_path_factory.mktemp("packed")
    spec = LlamaSpec(hidden=256, heads=4, ffn=256, tied=True, gguf_type=request.param)
    plain = make_container(write_llama_gguf(at / "m.gguf", spec), at / "plain")
    pack_container(plain, at / "packed", force=False, progress=SilentProgress())
    return Container(at / "packed")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("profiles")
    return make_container(
        write_llama_gguf(at / "m.gguf", LlamaSpec(gguf_type="q8_0")), at / "a"
    ).path


def with_profiles(source: Path, at: Path, **profiles: object) -> Container:
    """A container with the profiles; variant `same` serves Q by another representation."""
    directory = copy_container(source, at)

    def change(index: Any) -> None:
        values = index["representations"]
        values[f"{Q}#same"] = values[Q]
        index["variants"]["same"] = {"representations": {Q: f"{Q}#same"}}
        index["variants"]["first"] = {"representations": {Q: Q}}
        index["profiles"] = profiles

    return Container(edit_index(directory, change))


def reference(container: Container, profile: str | None = None) -> Run:
    return open_run(container, RunOptions(backend="reference", profile=profile))


def test_packed_rows_give_the_same_bits(packed: Container) -> None:
    plain, other = reference(packed), reference(packed, "packed")
    names = {value.encoding.name for value in other.prepared.selection.bound.values()}
    assert any(name.endswith("_r16") for name in names)
    assert other.prepared.bytes_read == plain.prepared.bytes_read
    rows = [Session(run.prepared, 8) for run in (plain, other)]
    a, b = (session.logits(session.advance(TOKENS)) for session in rows)
    assert canonical(a).tobytes() == canonical(b).tobytes()


@pytest.mark.parametrize("residuals", [False, True])
def test_packed_rows_are_walked_to_the_same_bits(
    packed: Container, residuals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[str, str] = {}
    fetch = OperandStore.fetch_alone

    def seen(self: OperandStore, name: str, shape: tuple[int, ...]) -> StoredOperand:
        found = fetch(self, name, shape)
        read[name] = found.encoding.name
        return found

    monkeypatch.setattr(OperandStore, "fetch_alone", seen)
    plain = walk(packed, WalkOptions(top=200), tokens=TOKENS, residuals=residuals)
    before = dict(read)
    other = walk(packed, WalkOptions(top=200, profile="packed"), tokens=TOKENS, residuals=residuals)
    assert (plain.profile, other.profile) == (None, "packed")
    assert other.banks == plain.banks
    assert len(before) == 2
    assert read == {name: f"{encoding}_r16" for name, encoding in before.items()}
    sliced = walk(packed, WalkOptions(top=5, profile="packed", layers=(1, 2)), tokens=TOKENS)
    assert [bank.layer for bank in sliced.banks] == [1]


def test_a_walk_finds_what_its_profile_leaves(llama: Path, tmp_path: Path) -> None:
    gate = "target.layer.001/ffn.gate.weight"
    container = with_profiles(llama, tmp_path / "a", less={"omits": [gate]})
    walk(container, WalkOptions(writes=0), tokens=TOKENS)
    options = WalkOptions(writes=0, profile="less")
    with pytest.raises(Refusal, match=gate):
        walk(container, options, tokens=TOKENS)
    found = walk(container, replace(options, partial=True), tokens=TOKENS)
    assert [bank.layer for bank in found.banks] == [0]
    # A run under the profile needs what it leaves out elsewhere.
    other = with_profiles(llama, tmp_path / "b", less={"omits": [Q]})
    options = WalkOptions(writes=0, profile="less")
    walk(other, options, tokens=TOKENS)
    with pytest.raises(Refusal, match=Q):
        walk(other, options, tokens=TOKENS, residuals=True)
    with pytest.raises(UsageError, match="there is no profile 'absent'; the container has less"):
        walk(container, WalkOptions(profile="absent"), tokens=TOKENS)


def test_the_floor_is_that_of_the_profile(packed: Container) -> None:
    plan = reference(packed).prepared.plan
    for name in (None, "packed"):
        bound = packed.select(name).bound
        assert weight_bytes(bound, plan) == weight_bytes(packed.operands, plan)


def test_production_refuses_rows_that_it_has_no_kernel_for(
    packed: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {k: v for k, v in encodings.BLOCKS.items() if ENCODINGS[k].unpacked is None}
    monkeypatch.setattr(arithmetic, "BLOCKS", known)
    with pytest.raises(UnsupportedRefusal, match=r"no production kernel for q\w+_r16; run with"):
        open_run(packed, RunOptions(profile="packed"))
    open_run(packed, RunOptions())


def test_kernels_that_read_single_rows_refuse_slabs(packed: Container) -> None:
    held = arithmetic.Arithmetic("f32")
    for id_ in (Q, f"{Q}@packed"):
        value = packed.index.representations[id_]
        data = packed.segment(value.segment).bytes_of(value.tensor)
        held.operands[id_] = StoredOperand(id_, value.encoding, value.shape, data)
    assert held.by_rows(Q) is held.operands[Q]
    with pytest.raises(UnsupportedRefusal, match="its kernel reads single rows"):
        held.by_rows(f"{Q}@packed")


@pytest.mark.parametrize("name", ["q4_0_r16", "q6_k_r16"])
def test_rows_of_slabs_as_operands(name: str) -> None:
    enc = ENCODINGS[name]
    assert enc.unpacked is not None
    generator = np.random.default_rng(1)
    rows = generator.integers(0, 256, (64, enc.row_bytes(256)), np.uint8)
    whole = StoredOperand("w", enc, (64, 256), pack(enc, rows, 256).reshape(-1))
    part = whole.rows_at(slice(16, 48))
    assert (part.encoding, part.shape) == (enc, (32, 256))
    assert np.shares_memory(part.data, whole.data)
    assert np.array_equal(part.data.reshape(32, -1), pack(enc, rows[16:48], 256))
    assert whole.rows_at(slice(32, 8192)).shape == (32, 256)
    picks: list[slice | Any] = [slice(8, 48), slice(16, 40), slice(0, 64, 16), np.array([63, 0, 5])]
    for chosen in picks:
        part = whole.rows_at(chosen)
        assert part.encoding is ENCODINGS[enc.unpacked]
        assert np.array_equal(part.data.reshape(part.shape[0], -1), rows[chosen])


def test_an_unknown_profile_is_refused_before_kernels_load(
    packed: Container, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("larql.runtime.run.make_backend", None)
    for container, known in ((packed, "packed"), (Container(llama), "none")):
        with pytest.raises(UsageError, match=f"no profile 'small'; the container has {known}"):
            open_run(container, RunOptions(profile="small"))
    with pytest.raises(UsageError, match="no profile 'small'"):
        larql.open(packed.path, profile="small")


def test_default_is_active_and_another_may_be_asked_for(llama: Path, tmp_path: Path) -> None:
    container = with_profiles(llama, tmp_path / "a", default={"variants": ["same"]}, whole={})
    for asked, found, id_ in ((None, "default", f"{Q}#same"), ("whole", "whole", Q)):
        run = reference(container, asked)
        assert run.prepared.selection.profile == found
        assert run.prepared.selection.bound[Q].id == id_
        told: Any = run.provenance([1], 1)["container"]
        assert list(told) == ["fingerprint", "profile", "model", "source"]
        assert told["profile"] == found
    plain: Any = reference(Container(llama)).provenance([1], 1)["container"]
    assert plain["profile"] is None


def test_python_opens_under_a_profile(packed: Container) -> None:
    model = larql.open(packed.path, backend="reference", profile="packed")
    assert model.run.prepared.selection.profile == "packed"
    assert model.session(4).step([1]).shape == (256,)


OMITS: list[tuple[list[str], str]] = [
    ([DOWN], f"operand {DOWN}: profile p leaves it out; choose a profile that keeps it"),
    (["target.layer.001"], r"profile p leaves it out"),
    ([f"{DOWN}[4:8]", f"{DOWN}[12:16]"], "profile p leaves entries 4:8, 12:16 of it out"),
]


@pytest.mark.parametrize(("omits", "words"), OMITS)
def test_what_is_left_out_is_refused_though_it_is_here(
    llama: Path, omits: list[str], words: str, tmp_path: Path
) -> None:
    container = with_profiles(llama, tmp_path / "a", p={"omits": omits})
    with pytest.raises(ResidencyRefusal, match=re.escape(words)):
        reference(container, "p")
    reference(container)
    # What a draft does not read it does not miss.
    open_run(container, RunOptions(backend="reference", draft_depth=1, profile="p"))


def test_what_is_elsewhere_is_told_from_what_is_missing(llama: Path, tmp_path: Path) -> None:
    container = with_profiles(llama, tmp_path / "a", p={"remote": [DOWN]})
    edit_index(container.path, lambda index: index["representations"].pop(DOWN))
    gone = Container(container.path)
    with pytest.raises(ResidencyRefusal, match="profile p says that it is elsewhere; take"):
        reference(gone, "p")
    with pytest.raises(BindingDefect, match=f"operand {DOWN} is not in the container"):
        reference(gone)


def test_two_choices_at_once_are_refused(llama: Path, tmp_path: Path) -> None:
    container = with_profiles(llama, tmp_path / "a", p={"variants": ["same", "first"]})
    with pytest.raises(BindingDefect, match=f"profile p selects {Q}#same, {Q} at once"):
        reference(container, "p")


def test_a_profile_that_speaks_of_nothing_is_refused(llama: Path, tmp_path: Path) -> None:
    container = with_profiles(llama, tmp_path / "a", default={"omits": ["target.layer.7"]})
    with pytest.raises(larql.errors.ContainerError, match=r"speaks of 'target\.layer\.7'"):
        reference(container)


def test_kernels_are_warm_for_what_a_profile_selects(
    packed: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run compiled says nothing of another that binds other encodings."""
    monkeypatch.setattr(warm, "_kept_in", lambda: tmp_path)
    markers = []
    for profile in (None, "packed"):
        run = reference(packed, profile)
        monkeypatch.setattr(run.prepared.backend, "name", "production", raising=False)
        markers.append(warm._marker(run))
    assert None not in markers
    assert markers[0] != markers[1]


def test_nothing_binds_past_a_selection() -> None:
    """Runs and commands ask a selection what serves an operand, and never the index itself."""
    for path in sorted((ROOT / "larql" / "runtime").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert "container.operands" not in text and "by_operand" not in text, path
