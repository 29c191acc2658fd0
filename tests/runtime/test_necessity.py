"""The experts that a run was routed to are enough for it, and each of them is needed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from larql.errors import ResidencyRefusal, UsageError
from larql.format.container import Container
from larql.runtime.backends.production import routed_ffn
from larql.runtime.parity import necessity
from larql.runtime.parity.necessity import climb
from larql.runtime.routes import LeftOutNotes
from larql.runtime.run import RunOptions
from tests.builders import expert_banks
from tests.builders.containers import make_container
from tests.builders.experts import mixture
from tests.builders.models import LlamaSpec, write_llama_safetensors

TOKENS = (3, 1)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    at = tmp_path_factory.mktemp("ladder")
    return make_container(mixture(at / "m", layers=6), at / "c")


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_five_layers_with_captured_routing(container: Container, backend: str) -> None:
    found = climb(container, RunOptions(backend=backend), TOKENS)
    assert found.layers == (0, 1, 2, 4, 5)
    assert found.holds and not found.trivial
    assert [rung.name for rung in found.rungs] == [
        "full", "minimal", *(["removed", "padded", "restored"] * 5),
    ]  # fmt: skip
    full, minimal, *rest = found.rungs
    assert (full.bound, full.outcome) == (5 * 8, "exact")
    assert minimal.bound == sum(len(found.minimal[layer]) for layer in found.layers)
    assert 2 * 5 <= minimal.bound <= 4 * 5
    assert minimal.outcome == "exact"
    for rung in rest:
        assert rung.layer is not None and rung.expert in found.minimal[rung.layer]
        if rung.name == "restored":
            assert (rung.outcome, rung.message) == ("exact", None)
            continue
        assert rung.outcome == "refused(residency)"
        assert rung.message is not None
        assert rung.message.startswith(f"layer {rung.layer}: entry {rung.expert} of bank 0 ")
        assert (rung.other is None) == (rung.name == "removed")
        assert rung.other not in found.minimal[rung.layer]


def test_layers_may_be_named_and_chunks_change_nothing(container: Container) -> None:
    found = climb(container, RunOptions(chunk=1), TOKENS, (2, 4))
    assert found.layers == (2, 3)
    assert found.holds
    with pytest.raises(UsageError, match=r"--layers 7:9: .* 0 to 5 have"):
        climb(container, RunOptions(), TOKENS, (7, 9))


def test_a_population_that_is_all_chosen_proves_nothing(container: Container) -> None:
    found = climb(container, RunOptions(), tuple(range(40)), (0, 1))
    assert found.minimal[0] == tuple(range(8))
    assert all(rung.holds for rung in found.rungs)
    assert [rung.name for rung in found.rungs] == ["full", "minimal", "removed", "restored"]
    assert not found.holds
    assert found.trivial[0].startswith("every expert of layer 0 was chosen")


def test_a_model_of_which_all_logits_are_equal_proves_nothing(tmp_path: Path) -> None:
    model = expert_banks.weights(expert_banks.Spec(8, 2, 32, 32, layers=2))
    blank = dataclasses.replace(model, head=np.zeros_like(model.head))
    container = expert_banks.write(blank, tmp_path / "m")
    found = climb(container, RunOptions(), [1, 2, 3])
    assert found.blank and not found.holds
    assert found.trivial[0].startswith("all logits are 0.0")


def test_an_expert_that_is_skipped_is_found(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that goes on without an expert gives numbers, which the ladder does not take."""
    honest = routed_ffn.reach

    def lenient(route, inputs, chosen, broken, add, start, notes):  # type: ignore[no-untyped-def]
        return honest(route, inputs, chosen, broken, add, start, notes or LeftOutNotes())

    monkeypatch.setattr(routed_ffn, "reach", lenient)
    found = climb(container, RunOptions(), TOKENS, (0, 1))
    outcomes = {rung.name: rung.outcome for rung in found.rungs}
    assert outcomes["removed"] == outcomes["padded"] == "numeric_mismatch"
    assert not found.holds


def test_a_run_that_hangs_on_experts_it_was_not_routed_to_is_found(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = necessity._Climber.run

    def off(self, kept):  # type: ignore[no-untyped-def]
        run, seen, logits = honest(self, kept)
        return run, seen, logits if kept is None else logits + 1e-6

    monkeypatch.setattr(necessity._Climber, "run", off)
    found = climb(container, RunOptions(), TOKENS, (0, 1))
    assert found.rungs[1].outcome == "numeric_mismatch"
    assert not found.holds


def test_a_refusal_of_another_expert_is_not_the_one_expected(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = necessity._Climber.run

    def off(self, kept):  # type: ignore[no-untyped-def]
        try:
            return honest(self, kept)
        except ResidencyRefusal as refusal:
            assert refusal.at is not None
            wrong = dataclasses.replace(refusal.at, entry=refusal.at.entry + 1)
            raise ResidencyRefusal(str(refusal), wrong) from None

    monkeypatch.setattr(necessity._Climber, "run", off)
    found = climb(container, RunOptions(), TOKENS, (0, 1))
    assert found.rungs[2].outcome == "refused(residency) of another expert"
    assert not found.holds


def test_a_model_without_experts_has_no_ladder(tmp_path: Path) -> None:
    plain = make_container(write_llama_safetensors(tmp_path / "m", LlamaSpec()), tmp_path / "c")
    with pytest.raises(UsageError, match="no routed experts"):
        climb(plain, RunOptions(), TOKENS)
