"""The graph's JSON: a strict round trip, and nothing that this build does not understand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import ContainerError, LarqlError, UnsupportedRefusal
from larql.format.graph import (
    Block,
    Component,
    DenseFfn,
    Edge,
    Embed,
    Graph,
    Head,
    KvRows,
    Layer,
    Linear,
    Norm,
    Rope,
    RopeScaling,
    SoftmaxAttention,
    state_schema,
)
from larql.format.graph_json import graph_from_json, graph_to_json
from larql.format.index import dump_json
from tests.builders.containers import vouch_for
from tests.builders.mutate import WRONG, paths, removed, replaced, value_at

NORM = Norm(kind="rms", width=8, eps=1e-5, offset=1.0, weight="n/w")
FULL = Graph(
    components=(
        Component(
            id="target",
            role="decoder",
            hidden_size=8,
            vocab_size=16,
            context_length=32,
            embed=Embed(weight="e/w", vocab=16, width=8, scale=8**0.5),
            layers=(
                Layer(
                    index=0,
                    blocks=(
                        Block(
                            site="attention",
                            mixer=SoftmaxAttention(
                                heads=2,
                                kv_heads=1,
                                key_dim=4,
                                value_dim=4,
                                scale=0.5,
                                q=Linear(weight="q", outputs=8, inputs=8, bias="qb"),
                                k=Linear(weight="k", outputs=4, inputs=8),
                                v=Linear(weight="v", outputs=4, inputs=8),
                                o=Linear(weight="o", outputs=8, inputs=8),
                                window=3,
                                softcap=50.0,
                                q_norm=dataclasses.replace(NORM, width=4),
                                rope=Rope(
                                    layout="half",
                                    dims=4,
                                    theta=10000.0,
                                    scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64),
                                    factors="r/f",
                                ),
                            ),
                            norm=NORM,
                            post_norm=dataclasses.replace(NORM, kind="layer", bias="n/b"),
                            residual_scale=0.25,
                        ),
                        Block(
                            site="ffn",
                            mixer=DenseFfn(
                                activation="gelu_tanh",
                                up=Linear(weight="u", outputs=4, inputs=8),
                                down=Linear(weight="d", outputs=8, inputs=4),
                            ),
                        ),
                    ),
                ),
            ),
            head=Head(norm=NORM, weight="e/w", vocab=16, width=8, tied=True, softcap=30.0),
        ),
    ),
    edges=(Edge(producer="target", tap="post_norm", consumer="target"),),
)


@pytest.fixture
def document() -> Any:
    return json.loads(dump_json(graph_to_json(FULL)))


def refusal(document: object, kind: type[LarqlError] = ContainerError) -> str:
    with pytest.raises(LarqlError) as caught:
        graph_from_json(document, "m/graph.json")
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert message.startswith("m/graph.json: ")
    assert "\n" not in message
    return message


def test_reading_and_writing_is_a_round_trip(document: Any) -> None:
    assert graph_from_json(document, "w") == FULL
    assert dump_json(graph_to_json(graph_from_json(document, "w"))) == dump_json(document)


numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 1 << 40)
names = st.text(max_size=20)
optional_names = st.none() | names


@given(
    norm=st.builds(
        Norm,
        kind=st.sampled_from(["rms", "layer"]),
        width=counts,
        eps=numbers,
        offset=numbers,
        weight=optional_names,
        bias=optional_names,
    ),
    rope=st.none()
    | st.builds(
        Rope,
        layout=st.sampled_from(["half", "adjacent"]),
        dims=counts,
        theta=numbers,
        scaling=st.none()
        | st.builds(
            RopeScaling,
            kind=st.sampled_from(["linear", "llama3"]),
            factor=numbers,
            low_freq_factor=st.none() | numbers,
            original_context=st.none() | counts,
        ),
        factors=optional_names,
    ),
    window=st.none() | counts,
    scale=numbers,
    activation=st.sampled_from(["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid"]),
    tied=st.booleans(),
)
def test_any_graph_survives_its_file(
    norm: Norm,
    rope: Rope | None,
    window: int | None,
    scale: float,
    activation: Any,
    tied: bool,
) -> None:
    component = FULL.components[0]
    attention, ffn = component.layers[0].blocks
    mixer = attention.mixer
    assert isinstance(mixer, SoftmaxAttention)
    mixer = dataclasses.replace(mixer, rope=rope, window=window, scale=scale, k_norm=norm)
    blocks = (
        dataclasses.replace(attention, mixer=mixer, norm=norm),
        dataclasses.replace(ffn, mixer=dataclasses.replace(ffn.mixer, activation=activation)),
    )
    graph = Graph(
        components=(
            dataclasses.replace(
                component,
                layers=(Layer(0, blocks), Layer(1, ())),
                head=dataclasses.replace(component.head, tied=tied, norm=norm, multiplier=scale),
            ),
        )
    )
    assert graph_from_json(json.loads(dump_json(graph_to_json(graph))), "w") == graph


def test_what_is_none_is_absent(document: Any) -> None:
    ffn = document["components"][0]["layers"][0]["blocks"][1]
    assert set(ffn) == {"site", "mixer", "residual_scale"}
    assert "gate" not in ffn["mixer"]
    assert "null" not in json.dumps(document)


def test_wrong_types_are_refused_or_mean_the_same_everywhere(document: Any) -> None:
    """One wrong value in each place: a refusal of one line, or exactly that value is read."""
    for path in paths(document):
        for wrong in WRONG:
            changed = replaced(document, path, wrong)
            try:
                graph = graph_from_json(changed, "m/graph.json")
            except LarqlError as error:
                assert str(error).startswith("m/graph.json: ")
                assert "\n" not in str(error)
                continue
            again = graph_to_json(graph)
            if path == ("edges",) and wrong == []:
                continue
            assert again == changed, path
            assert type(value_at(again, path)) is type(wrong) or isinstance(wrong, int), path
            assert not isinstance(wrong, bool) or path[-1] == "tied", path


def test_a_missing_key_is_refused_or_absent_from_the_graph(document: Any) -> None:
    defaults = {"offset": 0.0, "scale": 1.0, "multiplier": 1.0, "residual_scale": 1.0}
    for path in paths(document):
        changed = removed(document, path)
        try:
            graph = graph_from_json(changed, "m/graph.json")
        except LarqlError as error:
            assert str(error).startswith("m/graph.json: ")
            continue
        again = graph_to_json(graph)
        if again != changed:
            assert path == ("edges",) or value_at(again, path) == defaults[str(path[-1])], path


def test_an_unknown_key_is_refused_in_every_object(document: Any) -> None:
    objects = [
        (),
        *(path for path in paths(document) if isinstance(value_at(document, path), dict)),
    ]
    assert len(objects) > 15
    for path in objects:
        changed = replaced(document, (*path, "clamp"), 1.0)
        assert "'clamp'" in refusal(changed), path


def test_only_operations_have_an_op(document: Any) -> None:
    for path in paths(document):
        value = value_at(document, path)
        if isinstance(value, dict) and "op" not in value:
            assert "'op'" in refusal(replaced(document, (*path, "op"), "norm"))


@pytest.mark.parametrize("op", ["mystery_attention", "", None, 3, ["norm"], True])
def test_an_unknown_operation_is_unsupported_and_named(document: Any, op: object) -> None:
    for path in paths(document):
        if path[-1] == "op":
            message = refusal(replaced(document, path, op), UnsupportedRefusal)
            assert repr(op) in message
            assert "softmax_attention" in message


@pytest.mark.parametrize("value", [-1, 1 << 48, 10**400, True, 1.0, 8.5, "8", None, [8]])
def test_a_count_is_an_integer_within_reason(document: Any, value: object) -> None:
    at = ("components", 0)
    for path in ((*at, "hidden_size"), (*at, "head", "norm", "width"), (*at, "embed", "vocab")):
        message = refusal(replaced(document, path, value))
        assert f"components[0].{'.'.join(map(str, path[2:]))} is " in message
        assert len(message) < 200


@pytest.mark.parametrize("value", [True, "0.5", None, [0.5], 10**400, float("inf")])
def test_a_number_is_finite(document: Any, value: object) -> None:
    path = ("components", 0, "embed", "scale")
    assert "components[0].embed.scale is " in refusal(replaced(document, path, value))


def test_a_known_operation_in_the_wrong_place_is_refused(document: Any) -> None:
    at = ("components", 0, "layers", 0, "blocks", 0)
    assert "cannot be a embed" in refusal(replaced(document, (*at, "mixer"), {"op": "embed"}))
    norm = value_at(document, (*at, "norm"))
    assert "cannot be a norm" in refusal(replaced(document, (*at, "mixer"), norm))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("layers", 0, "blocks", 0, "site"), "router"),
        (("layers", 0, "blocks", 0, "norm", "kind"), "batch"),
        (("layers", 0, "blocks", 0, "mixer", "rope", "layout"), "spiral"),
        (("layers", 0, "blocks", 0, "mixer", "rope", "scaling", "kind"), "ntk"),
        (("layers", 0, "blocks", 1, "mixer", "activation"), "mish"),
        (("role",), "encoder"),
    ],
)
def test_an_unknown_choice_is_unsupported_and_named(
    document: Any, path: tuple[str | int, ...], value: str
) -> None:
    message = refusal(replaced(document, ("components", 0, *path), value), UnsupportedRefusal)
    assert repr(value) in message
    assert str(path[-1]) in message


@pytest.mark.parametrize("schema", [0, 2, 1.0, True, "1", None, [1], -1])
def test_another_graph_schema_is_unsupported(document: Any, schema: object) -> None:
    assert repr(schema) in refusal({**document, "schema": schema}, UnsupportedRefusal)


def test_a_stated_state_must_be_the_one_that_the_operations_keep(document: Any) -> None:
    at = ("components", 0, "state")
    assert value_at(document, (*at, 0)) == {
        "op": "kv_rows",
        "layer": 0,
        "heads": 1,
        "key_dim": 4,
        "value_dim": 4,
        "span": "window",
        "window": 3,
    }
    for changed in (
        replaced(document, at, []),
        replaced(document, (*at, 0, "window"), 4),
        replaced(document, (*at, 0, "span"), "full"),
        replaced(document, (*at, 0, "heads"), 2),
        replaced(document, at, value_at(document, at) * 2),
        replaced(document, ("components", 0, "layers", 0, "blocks", 0, "mixer", "window"), 4),
    ):
        assert "components[0].state contradicts" in refusal(changed)
    for changed in (removed(document, at), replaced(document, at, None)):
        assert "components[0].state is null, expected an array" in refusal(changed)


def test_the_state_schema_follows_the_attention_layers() -> None:
    component = FULL.components[0]
    attention, ffn = component.layers[0].blocks
    mixer = attention.mixer
    assert isinstance(mixer, SoftmaxAttention)
    full = dataclasses.replace(attention, mixer=dataclasses.replace(mixer, window=None))
    layers = (Layer(0, (attention, ffn)), Layer(1, (ffn,)), Layer(2, (full, ffn)))
    assert state_schema(dataclasses.replace(component, layers=layers)) == (
        KvRows(0, 1, 4, 4, "window", 3),
        KvRows(2, 1, 4, 4, "full"),
    )


@pytest.mark.parametrize("indices", [[1], [0, 2], [1, 0], [0, 0], []])
def test_layers_are_numbered_in_order(document: Any, indices: list[int]) -> None:
    layer = {"index": 0, "blocks": []}
    component = {
        **document["components"][0],
        "state": [],
        "layers": [{**layer, "index": index} for index in indices],
    }
    message = refusal({**document, "components": [component]})
    assert "components[0].layers must be numbered 0, 1, … in order" in message


def test_components_have_ids_of_their_own(document: Any) -> None:
    component = document["components"][0]
    assert "same id" in refusal({**document, "components": [component, component]})
    wrong: tuple[object, ...] = ([], {}, None, "target", [None], ["target"])
    for components in wrong:
        refusal({**document, "components": components})


def test_edges_join_components_that_exist(document: Any) -> None:
    for end in ("producer", "consumer"):
        assert "'mtp'" in refusal(replaced(document, ("edges", 0, end), "mtp"))


@pytest.mark.parametrize("document", [None, [], "x", 3, True, [{}]])
def test_a_graph_is_an_object(document: object) -> None:
    assert "expected a JSON object" in refusal(document)


def test_a_container_reads_its_graph_strictly(damaged: Path) -> None:
    from larql.format.container import Container

    graph = damaged / "system_graph.json"
    text = graph.read_text()
    for changed, words in (
        (text.replace('"schema": 1', '"schema": 1,\n "schema": 1', 1), "duplicate key 'schema'"),
        (text.replace('"eps": 1e-05', '"eps": NaN', 1), "NaN"),
        (text.replace('"eps": 1e-05', '"eps": 1e999', 1), "too large"),
        (text.replace('"eps": 1e-05', f'"eps": 1{"0" * 400}', 1), "expected a finite number"),
        ("[]", "not a JSON object"),
        (text[:-20], "is not JSON"),
    ):
        assert changed != text
        graph.write_text(changed)
        vouch_for(damaged, "system_graph.json")
        with pytest.raises(ContainerError, match=words) as caught:
            _ = Container(damaged).graph
        assert str(graph) in str(caught.value)
