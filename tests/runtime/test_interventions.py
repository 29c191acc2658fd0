"""Interventions: what they leave alone stays, what they change is counted and in the identity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from larql.errors import UsageError
from larql.format.container import Container
from larql.runtime.observe.capture import parse_captures, read_capture, write_captures
from larql.runtime.observe.declaration import Declaration
from larql.runtime.observe.events import CarrierWrite, InterventionFired
from larql.runtime.observe.interventions import (
    Intervention,
    interventions_sha256,
    load_interventions,
)
from larql.runtime.observe.lens import Lens
from larql.runtime.observe.observation import Observation
from larql.runtime.observe.sites import WriteSite, parse_positions, parse_site
from larql.runtime.session import Session
from tests.runtime.observing import Events, Rows, recorded
from tests.runtime.test_invariants import (
    TOKENS,
    all_logits,
    assert_same_bits,
    run_of,
    whole_logits,
)

FFN = WriteSite(1, "ffn")


def logits_under(run: Any, *made: Intervention, chunk: int | None = None) -> tuple[Rows, Events]:
    sink = Events()
    observation = Observation(run.prepared, Declaration(interventions=made), sink)
    session = Session(run.prepared, 64, chunk, observation)
    return session.logits(session.advance(TOKENS)), sink


def writes_at(sink: Events, write: int) -> list[CarrierWrite]:
    return [e for e in sink.all if isinstance(e, CarrierWrite) and e.write == write]


def test_zeroing_a_write_makes_its_delta_zero(container: Container, numerics: str) -> None:
    run = run_of(container, numerics)
    made = Intervention(FFN, None, "zero", "write")
    changed, sink = logits_under(run, made)
    assert all(event.delta == 0.0 for event in writes_at(sink, 4))
    assert all(event.delta != 0.0 for event in writes_at(sink, 3))
    assert all(
        a.carrier == b.carrier for a, b in zip(writes_at(sink, 4), writes_at(sink, 3), strict=True)
    )
    assert (changed != all_logits(run, TOKENS)).any()
    fired = [event for event in sink.all if isinstance(event, InterventionFired)]
    assert fired == [InterventionFired(position, 4, 0) for position in range(len(TOKENS))]


def test_zeroing_all_writes_leaves_the_embedding(containers: dict[str, Container]) -> None:
    run = run_of(containers["llama"], "production")
    plan = run.prepared.plan
    made = [
        Intervention(WriteSite(layer, site), None, "zero", "write")
        for layer in plan.executed_layers
        for site in ("attention", "ffn")
    ]
    found, _ = logits_under(run, *made)
    embedding = run.prepared.backend.embed(plan.component.embed, np.array(TOKENS))
    assert_same_bits(found, run.session(64).logits(embedding))


@pytest.mark.parametrize("target", ["carrier", "write"])
def test_replacing_by_the_own_captured_vector_changes_nothing(
    container: Container, numerics: str, target: str, tmp_path: Path
) -> None:
    run = run_of(container, numerics)
    sites = ("0.attention", "1.ffn", "embed")
    wanted = parse_captures(",".join(f"{site}@5" for site in sites))
    _, found = recorded(run, TOKENS, Declaration(captures=wanted))
    write_captures(tmp_path / "c.safetensors", found.captured, {"run": "this one"})
    declared = [
        {
            "site": site,
            "positions": "5",
            "do": "replace",
            "target": target,
            "capture": {"file": "c.safetensors", "tensor": f"{site}@5/{target}"},
        }
        for site in sites
    ]
    (tmp_path / "i.json").write_text(json.dumps({"interventions": declared}))
    made = load_interventions(tmp_path / "i.json", run.prepared.plan.component.hidden_size)
    expected = whole_logits(container, numerics)
    for chunk in (None, 1):
        changed, sink = logits_under(run, *made, chunk=chunk)
        assert_same_bits(changed, expected)
        assert sum(isinstance(event, InterventionFired) for event in sink.all) == 3


def test_scaling_by_one_and_adding_zero_change_nothing(container: Container) -> None:
    run = run_of(container, "production")
    zeros = np.zeros(run.prepared.plan.component.hidden_size)
    for made in (
        Intervention(FFN, None, "scale", "write", factor=1.0),
        Intervention(FFN, None, "scale", "carrier", factor=1.0),
        Intervention(FFN, None, "add", "carrier", vector=zeros),
    ):
        assert_same_bits(logits_under(run, made)[0], all_logits(run, TOKENS))


def test_only_the_positions_that_are_named_change(containers: dict[str, Container]) -> None:
    """Positions before are untouched; chunks and single steps make no difference."""
    run = run_of(containers["llama"], "production")
    plain = all_logits(run, TOKENS)
    vector = np.ones(64)
    made = Intervention(FFN, range(9, 11), "add", "carrier", vector=vector)
    whole, sink = logits_under(run, made)
    assert_same_bits(whole[:9], plain[:9])
    for position in range(9, len(TOKENS)):
        assert (whole[position] != plain[position]).any()
    fired = [event.position for event in sink.all if isinstance(event, InterventionFired)]
    assert fired == [9, 10]
    for chunk in (1, 4, 10):
        again, other = logits_under(run, made, chunk=chunk)
        assert_same_bits(again, whole)
        assert other.all == sink.all


def test_a_recorded_step_does_not_repeat_an_intervention(containers: dict[str, Container]) -> None:
    """Single positions around one that is changed run as recorded programs."""
    run = run_of(containers["llama"], "production")
    made = Intervention(WriteSite(2, "ffn"), range(12, 13), "zero", "carrier")
    found, _ = logits_under(run, made, chunk=1)
    plain = all_logits(run, TOKENS)
    changed = [i for i in range(len(TOKENS)) if (found[i] != plain[i]).any()]
    # The carrier after the last layer reaches no other position.
    assert changed == [12]


def test_a_middle_carrier_scaled_by_ten_changes_nothing_where_eps_is_small(
    containers: dict[str, Container],
) -> None:
    """The head's norm divides it out: only where the last carrier is scaled."""
    run = run_of(containers["llama"], "reference")
    made = Intervention(WriteSite(2, "ffn"), None, "scale", "carrier", factor=10.0)
    found, _ = logits_under(run, made)
    np.testing.assert_allclose(found, all_logits(run, TOKENS), rtol=1e-4, atol=1e-4)


def test_they_are_made_in_the_order_of_the_declaration(containers: dict[str, Container]) -> None:
    run = run_of(containers["llama"], "production")
    vector = np.random.default_rng(1).normal(size=64)
    add = Intervention(FFN, None, "add", "carrier", vector=vector)
    scale = Intervention(FFN, None, "scale", "carrier", factor=3.0)
    assert (logits_under(run, add, scale)[0] != logits_under(run, scale, add)[0]).any()


def test_firings_and_hash_are_in_the_record(containers: dict[str, Container]) -> None:
    run = run_of(containers["llama"], "production")
    made = (
        Intervention(FFN, range(3, 6), "zero", "write"),
        Intervention(FFN, range(900, 901), "zero", "write"),
    )
    data, found = recorded(run, TOKENS, Declaration(interventions=made))
    assert found.receipt.fired == (3, 0)
    declared = json.loads(data.splitlines()[0])["identity"]["observed"]["interventions"]
    assert declared["sha256"] == interventions_sha256(made)
    assert [entry["positions"] for entry in declared["declared"]] == ["3:6", "900:901"]
    other = (made[0], Intervention(FFN, range(900, 902), "zero", "write"))
    _, changed = recorded(run, TOKENS, Declaration(interventions=other))
    assert changed.header["provenance_fingerprint"] != found.header["provenance_fingerprint"]


def test_the_lens_sees_what_interventions_made(containers: dict[str, Container]) -> None:
    run = run_of(containers["llama"], "production")
    made = Intervention(WriteSite(2, "ffn"), None, "scale", "write", factor=-2.0)
    changed, _ = logits_under(run, made)
    sink = Events()
    declared = Declaration((Lens(run.prepared, [2], tokens=range(256)),), interventions=(made,))
    Session(run.prepared, 64, None, Observation(run.prepared, declared, sink)).advance(TOKENS)
    from tests.runtime.observing import readouts

    rows = [event.values["logits"] for event in readouts(sink)]
    assert_same_bits(np.array(rows, np.float32), changed)


@given(
    vector=npst.arrays(np.float64, 4, elements=st.floats(-1e6, 1e6)),
    other=npst.arrays(np.float64, 4, elements=st.floats(-1e6, 1e6)),
)
def test_the_hash_is_of_the_vector(vector: Any, other: Any) -> None:
    made = [Intervention(FFN, None, "add", "carrier", vector=v) for v in (vector, other)]
    same = vector.tobytes() == other.tobytes()
    assert (interventions_sha256(made[:1]) == interventions_sha256(made[1:])) is same


GOOD = {"site": "1.ffn", "do": "zero"}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ([], "expected an object"),
        (GOOD | {"layer": 1}, "unknown field 'layer'"),
        ({"do": "zero"}, "site: expected a text"),
        (GOOD | {"site": "1.mlp"}, "'1.mlp' is no site"),
        (GOOD | {"do": "double"}, "expected one of zero, add, replace, scale"),
        (GOOD | {"target": "head"}, "expected one of write, carrier"),
        (GOOD | {"positions": [1]}, "positions: expected a text"),
        (GOOD | {"positions": "3:3"}, "names no positions"),
        (GOOD | {"factor": 2}, "zero takes no vector and no factor"),
        (GOOD | {"do": "scale"}, "scale takes factor, found none"),
        (GOOD | {"do": "scale", "factor": "2"}, "expected a finite number"),
        (GOOD | {"do": "scale", "factor": True}, "expected a finite number"),
        (GOOD | {"do": "add"}, "add takes capture or vector, found none"),
        (GOOD | {"do": "add", "vector": [1, 2]}, "expected 4 numbers, found 2"),
        (GOOD | {"do": "add", "vector": [1, 2, 3, None]}, "expected a finite number"),
        (GOOD | {"do": "add", "capture": "x"}, "expected file and tensor"),
        (
            GOOD | {"do": "add", "capture": {"file": "absent", "tensor": "x"}},
            "cannot be read as captures",
        ),
        (
            GOOD | {"do": "add", "capture": {"file": "c.safetensors", "tensor": "x"}},
            "has no tensor 'x'; it has embed@0/carrier",
        ),
        (
            GOOD | {"do": "add", "capture": {"file": "c.safetensors", "tensor": "embed@0/carrier"}},
            "has shape [3], expected [4]",
        ),
    ],
)
def test_declarations_that_are_wrong(entry: Any, problem: str, tmp_path: Path) -> None:
    write_captures(tmp_path / "c.safetensors", {"embed@0/carrier": np.zeros(3)}, {})
    path = tmp_path / "i.json"
    path.write_text(json.dumps({"interventions": [GOOD, entry]}))
    with pytest.raises(UsageError) as error:
        load_interventions(path, 4)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_changed_unless_the_declaration_says(tmp_path: Path) -> None:
    path, zeros = tmp_path / "i.json", [0.0] * 4
    entries = [
        {"site": "0.ffn", "do": "zero"},
        {"site": "0.ffn", "do": "scale", "factor": 2},
        {"site": "0.ffn", "do": "add", "vector": zeros},
        {"site": "0.ffn", "do": "replace", "vector": zeros},
        {"site": "0.ffn", "do": "zero", "target": "carrier"},
    ]
    path.write_text(json.dumps({"interventions": entries}))
    made = load_interventions(path, 4)
    assert [one.target for one in made] == ["write", "write", "carrier", "carrier", "carrier"]
    assert all(one.positions is None for one in made)


@pytest.mark.parametrize("text", ["", "[]", '{"interventions": []}', '{"a": 1}', "{"])
def test_files_that_are_no_declarations(text: str, tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"i\.json: "):
        load_interventions(path, 4)


def test_sites_that_the_run_does_not_have(containers: dict[str, Container]) -> None:
    run = run_of(containers["llama"], "production", 2)
    made = Intervention(WriteSite(2, "ffn"), None, "zero", "write")
    with pytest.raises(UsageError, match=r"intervention 0: the run has no site 2\.ffn"):
        logits_under(run, made)
    with pytest.raises(UsageError, match=r"--capture: the run has no site 9\.ffn"):
        recorded(run, TOKENS, Declaration(captures=parse_captures("9.ffn@0")))


@pytest.mark.parametrize("text", ["", "1.ffn", "1.ffn@", "1.ffn@x", "ffn@1", "1.ffn@1,", "1@1"])
def test_what_is_no_capture(text: str) -> None:
    with pytest.raises(UsageError, match="--capture"):
        parse_captures(text)


def test_names_of_sites_and_positions() -> None:
    for name in ("embed", "0.attention", "12.ffn"):
        assert str(parse_site(name, "x")) == name
    assert parse_positions("all", "x") is None
    assert parse_positions("7", "x") == range(7, 8)
    assert parse_positions("7:9", "x") == range(7, 9)


def test_a_capture_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    write_captures(tmp_path / "c.safetensors", {"a": np.array([1.0, np.nan])}, {})
    with pytest.raises(UsageError, match="not finite"):
        read_capture(tmp_path / "c.safetensors", "a")


def test_a_field_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.json"
    path.write_text(
        '{"interventions": [{"site": "0.ffn", "do": "zero", "do": "scale", "factor": 2}]}'
    )
    with pytest.raises(UsageError, match="duplicate key 'do'"):
        load_interventions(path, 8)
