"""Families with routed experts, whose experts are stored as Q4_K and MXFP4: see docs/testing.md.

What they are held to is what transformers computed from the same weights, dequantised.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from larql.format.codec import decode
from larql.format.container import Container, verify_container
from larql.format.encoding import ENCODINGS
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compare import compare_with_source
from larql.format.source.extract_banks import padded_columns
from larql.format.source.pieces import BankBinding
from larql.format.source.recode import Recoding
from larql.format.source.reconstruct import reconstruct
from larql.runtime.planes import SiteWatch
from larql.runtime.run import RunOptions, open_run
from tests.builders.containers import make_container
from tests.builders.widened import widen_experts
from tests.oracles.recorded import BANK_ENCODINGS, EXPERT_WIDTH, MIXTURES, OWN, load_oracle
from tests.oracles.test_oracles import assert_close

Banked = Callable[[str, str], Container]


def in_blocks(encoding: str) -> Callable[[BankBinding, str | None], Recoding]:
    """Store all matrices of experts in an encoding, filled up to whole blocks."""
    wanted = ENCODINGS[encoding]

    def choose(binding: BankBinding, quant: str | None) -> Recoding:
        if len(binding.shape) != 3:
            return Recoding(binding.encoding, verbatim=True)
        block = wanted.block_elements
        stored = -(-binding.columns // block) * block
        padded = None if stored == binding.columns else stored
        return Recoding(wanted, verbatim=False, stored_columns=padded)

    return choose


@pytest.fixture(scope="module")
def banked(tmp_path_factory: pytest.TempPathFactory) -> Banked:
    at = tmp_path_factory.mktemp("banked")

    @cache
    def made(name: str, encoding: str) -> Container:
        source = at / name
        if not source.exists():
            widen_experts(load_oracle(name, OWN).checkpoint, source, EXPERT_WIDTH)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("larql.format.source.extract.bank_recoding", in_blocks(encoding))
            return make_container(source, at / f"{name}.{encoding}.vindex3")

    return made


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize("encoding", BANK_ENCODINGS)
@pytest.mark.parametrize("name", MIXTURES)
def test_a_family_s_oracle_with_its_experts_in_blocks(
    banked: Banked, name: str, encoding: str, backend: str
) -> None:
    oracle, container = load_oracle(name, OWN), banked(name, encoding)
    stored = {
        value.encoding.name
        for value in container.index.representations.values()
        if container.index.holds_banks(value.segment) and len(value.shape) == 3
    }
    assert stored == {encoding}
    with safe_open(OWN / name / f"{encoding}.safetensors", framework="np") as file:
        hidden, logits = file.get_tensor("hidden"), file.get_tensor("logits")
        greedy = file.get_tensor("greedy").tolist()
    run = open_run(container, RunOptions(backend=backend))
    watch = SiteWatch(512)
    session = run.session(len(oracle.tokens) + len(greedy), watch)
    found = session.logits(session.advance(oracle.tokens))
    assert_close(found, logits)
    assert np.abs(logits - oracle.logits).max() > 1e-2 * np.abs(logits).max(), "not rounded"
    ends = np.cumsum([0, *(len(layer.blocks) for layer in run.prepared.plan.layers)])
    for ours, theirs in zip(watch.carriers()[ends], hidden, strict=True):
        assert_close(ours, theirs)
    row = found[-1]
    for token in greedy:
        assert int(row.argmax()) == token
        row = session.step([token])


@pytest.mark.parametrize("encoding", BANK_ENCODINGS)
def test_what_is_stored_is_what_the_source_gives(banked: Banked, encoding: str) -> None:
    container = banked("mixtral", encoding)
    assert verify_container(container, SilentProgress()) == []
    (down,) = {
        value.stored_shape[-1]
        for value in container.index.representations.values()
        if value.operand.endswith("experts.down")
    }
    assert down == ENCODINGS[encoding].block_elements
    with open_checkpoint(container.path.parent / "mixtral") as checkpoint:
        assert compare_with_source(container, checkpoint, SilentProgress()) == []


def test_a_checkpoint_comes_back_without_the_padding(banked: Banked, tmp_path: Path) -> None:
    container = banked("mixtral", "mxfp4")
    reconstruct(container, tmp_path / "back", force=False, progress=SilentProgress())
    value = container.operands["target.layer.000/experts.down"]
    rows = container.entries(value).stored(2).reshape(value.shape[1], -1)
    expected = decode(value.encoding, rows, value.stored_shape[-1])[:, : value.shape[-1]]
    name = "model.layers.0.block_sparse_moe.experts.2.w2.weight"
    with safe_open(tmp_path / "back" / "model.safetensors", framework="np") as file:
        assert file.get_tensor(name).tobytes() == expected.tobytes()


def test_padding_is_chosen_where_it_is_not_larger() -> None:
    """704 columns in blocks of 256, as the widest fallback has blocks of 32."""
    chosen = {
        columns: padded_columns(ENCODINGS["q4_k"], ENCODINGS["q5_0"], columns)
        for columns in (704, 2880, 288, 32)
    }
    assert chosen == {704: 768, 2880: 3072, 288: None, 32: None}
    # Rows of 40 would be smaller than as float32, but no production kernel would read them.
    assert padded_columns(ENCODINGS["mxfp4"], ENCODINGS["f32"], 48) == 64
    assert padded_columns(ENCODINGS["mxfp4"], ENCODINGS["f32"], 40) is None
