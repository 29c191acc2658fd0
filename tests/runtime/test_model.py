"""The Python interface: arrays of known shape, with the bits that the commands tell."""

from __future__ import annotations

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import larql
from larql.errors import CheckFailed, TokenizerError, UsageError
from larql.format.container import Container
from larql.runtime.model import Model, open_model
from larql.runtime.observe.basis import seeded_basis
from larql.runtime.observe.declaration import Declaration
from larql.runtime.observe.interventions import Intervention
from larql.runtime.observe.lens import Lens
from larql.runtime.observe.sites import WriteSite
from larql.runtime.observe.view import RunView
from tests.runtime.test_invariants import TOKENS, all_logits, assert_same_bits


@pytest.fixture(params=["production", "reference"])
def model(request: pytest.FixtureRequest, containers: dict[str, Container]) -> Model:
    return larql.open(containers["llama3"].path, backend=request.param)


def test_sessions_step_and_give_carriers_and_logits(model: Model) -> None:
    plain = all_logits(model.run, TOKENS)
    session = model.session(64)
    carrier = session.advance(TOKENS[:5])
    assert carrier.shape == (5, model.hidden_size) and carrier.dtype == np.float32
    assert_same_bits(session.logits(carrier), plain[:5])
    assert_same_bits(session.step(TOKENS[5:7]), plain[6])


@pytest.mark.parametrize("wrong", [[1.9], [1, True], ["1"], np.ones(2), np.ones(2, bool), [-1]])
def test_what_is_no_token_id_is_refused_and_not_rounded(wrong: Any, model: Model) -> None:
    for take in (model.lens, model.observe, model.dump, model.session(4).step):
        with pytest.raises(UsageError, match=r"token .* at position [01] is"):
            take(wrong)
    with pytest.raises(UsageError, match="declared: token"):
        model.lens(TOKENS, declared=wrong)


def test_integers_of_numpy_are_token_ids(model: Model) -> None:
    ids = np.array(TOKENS, np.uint16)
    seen = model.observe(ids)
    assert seen.tokens.tolist() == list(TOKENS)
    assert seen.receipt == model.observe(TOKENS).receipt


def test_arguments_are_named_as_they_are_written(model: Model) -> None:
    for call, name in (
        (lambda: model.lens([]), "tokens: expected at least one"),
        (lambda: model.lens(TOKENS, layers="01"), "layers: '01'"),
        (lambda: model.lens(TOKENS, top_k=0), "top_k 0"),
        (lambda: model.session(0), "context 0"),
        (lambda: model.observe(TOKENS, run_id=""), "the run id is empty"),
    ):
        with pytest.raises(UsageError, match=f"^{name}") as refused:
            call()
        assert "--" not in str(refused.value)


def test_two_calls_into_one_session_are_refused_by_name(model: Model) -> None:
    session = model.session(8)
    session.step(TOKENS[:2])
    snapshot = session.snapshot()
    calls = (
        lambda: session.step(TOKENS[:1]), session.snapshot, lambda: session.restore(snapshot),
        lambda: session.truncate(1),
    )  # fmt: skip
    with session._alone("a step"):
        for call in calls:
            with ThreadPoolExecutor(1) as other, pytest.raises(UsageError, match="in the middle"):
                other.submit(call).result()
    assert session.position == 2
    session.step(TOKENS[2:3])


def test_a_lens_is_arrays(model: Model) -> None:
    plain = all_logits(model.run, TOKENS)
    lens = model.lens(TOKENS, declared=[3, 5], top_k=4)
    layers = model.num_layers
    assert lens.sites == tuple(WriteSite(layer, "ffn") for layer in range(layers))
    assert lens.tokens.tolist() == [3, 5]
    assert lens.log_probabilities.shape == lens.ranks.shape == (len(TOKENS), layers, 2)
    assert lens.top_tokens.shape == lens.top_log_probabilities.shape == (len(TOKENS), layers, 4)
    totals = model.run.prepared.backend.log_sum_exp(plain)
    expected = plain[:, [3, 5]] - totals[:, None]
    np.testing.assert_allclose(lens.log_probabilities[:, -1], expected, rtol=0, atol=1e-12)
    assert (lens.top_tokens[:, -1, 0] == plain.argmax(axis=1)).all()
    assert (lens.ranks[:, -1, 0] == 1 + (plain > plain[:, [3]]).sum(axis=1)).all()
    some = model.lens(TOKENS, layers=[1], attention=True)
    assert some.sites == (WriteSite(1, "attention"), WriteSite(1, "ffn"))
    assert (some.top_tokens[:, 1] == model.lens(TOKENS).top_tokens[:, 1]).all()
    with pytest.raises(UsageError, match="reads at least one layer"):
        model.lens(TOKENS, layers="none")


def test_an_observed_run_is_arrays_and_so_is_its_record(model: Model, tmp_path: Path) -> None:
    declared = Declaration(
        readers=(Lens(model.run.prepared, [0, 1], tokens=[7]),),
        basis=seeded_basis(3, model.hidden_size, 0),
        interventions=(Intervention(WriteSite(0, "ffn"), range(2, 4), "zero", "write"),),
    )
    record = tmp_path / "r.jsonl"
    seen = model.observe(TOKENS, generate=3, declaration=declared, record=record)
    positions, writes = len(TOKENS) + 2, 1 + 2 * model.num_layers
    assert seen.carrier_norms.shape == seen.delta_norms.shape == (positions, writes)
    assert seen.projections.shape == (positions, writes, 3)
    assert seen.end is not None and seen.receipt is not None
    assert seen.tokens.tolist() == [*TOKENS, *seen.end.generated[:2]]
    assert (np.flatnonzero(seen.delta_norms[:, 2] == 0) == [2, 3]).all()
    assert seen.receipt.fired == (2,)
    again = larql.read_record(record)
    assert again.receipt == seen.receipt
    assert again.events == seen.events
    for name in ("tokens", "carrier_norms", "delta_norms", "projections"):
        assert (getattr(again, name) == getattr(seen, name)).all()
    assert again.lens is not None and seen.lens is not None
    assert (again.lens.log_probabilities == seen.lens.log_probabilities).all()
    assert (again.lens.ranks == seen.lens.ranks).all()
    record.write_bytes(record.read_bytes()[:-300])
    with pytest.raises(CheckFailed, match="has no receipt"):
        larql.read_record(record)


def test_what_does_not_fit_leaves_no_record(model: Model, tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    made = Intervention(WriteSite(9, "ffn"), None, "zero", "write")
    with pytest.raises(UsageError, match="no site"):
        model.observe(TOKENS, declaration=Declaration(interventions=(made,)), record=record)
    with pytest.raises(UsageError, match="token 256 at position 1"):
        model.observe([1, 256], record=record)
    assert not record.exists()


def test_by_default_the_lens_is_armed_everywhere(model: Model) -> None:
    seen = model.observe(TOKENS[:3])
    assert seen.lens is not None
    assert len(seen.lens.sites) == model.num_layers


def test_dumps_are_arrays(model: Model) -> None:
    planes = model.dump(TOKENS)
    count, width, layers = len(TOKENS), model.hidden_size, model.num_layers
    assert planes.layers.shape == (layers + 1, count, width)
    assert planes.attention.shape == (layers, count, width)
    assert planes.final_norm.shape == (count, width)
    assert_same_bits(planes.logits, all_logits(model.run, TOKENS))
    session = model.session(64)
    assert_same_bits(session.advance(TOKENS), planes.layers[-1])


def test_texts_are_tokenized(model: Model) -> None:
    tokens = model.tokenize("Hello")
    assert model.text(tokens[-1])
    assert (model.lens("Hello").top_tokens == model.lens(tokens).top_tokens).all()


def test_a_model_without_a_tokenizer(containers: dict[str, Container]) -> None:
    model = open_model(containers["llama"].path)
    with pytest.raises(TokenizerError):
        model.lens("Hello")
    seen = model.observe(TOKENS)
    assert seen.text(7) == "7"


def test_importing_larql_loads_nothing_heavy() -> None:
    code = "import larql, sys; assert not {'numpy', 'numba'} & set(sys.modules); larql.open"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_open_takes_what_open_model_takes() -> None:
    assert inspect.signature(larql.open).parameters == inspect.signature(open_model).parameters


def test_everything_public_says_what_it_returns() -> None:
    for kind in (Model, RunView):
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                assert inspect.getdoc(member), name
