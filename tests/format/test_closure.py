"""What keeps a container's operands from closing, and contradictions among a graph's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from larql.errors import BindingDefect, LarqlError
from larql.format.closure import check_closure, check_geometry, operand_contracts
from larql.format.container import Container, verify_container
from larql.format.graph import Component
from larql.format.graph_json import graph_from_json
from larql.format.progress import SilentProgress
from tests.builders.containers import edit_graph, edit_index, make_container, read_json
from tests.builders.models import GemmaSpec, LlamaSpec, Scaling, write_gemma_gguf, write_llama_gguf
from tests.builders.mutate import paths, removed, replaced, value_at

LAYER0 = ("components", 0, "layers", 0, "blocks")
ATTENTION, FFN = (*LAYER0, 0, "mixer"), (*LAYER0, 1, "mixer")
HEAD, EMBED = ("components", 0, "head"), ("components", 0, "embed")


@pytest.fixture
def document(small: Path) -> Any:
    return read_json(small / "system_graph.json")


def component(document: Any) -> Component:
    return graph_from_json(document, "w").components[0]


def test_a_whole_container_closes(small: Path) -> None:
    container = Container(small)
    assert check_closure(container.component("target"), container.operands) == []


def test_contracts_come_in_execution_order_with_shape_and_use(small: Path) -> None:
    contracts = operand_contracts(Container(small).component("target"))
    layer0 = [(c.name.split("/")[1], c.shape, c.use) for c in contracts if c.layer == 0]
    assert layer0 == [
        ("attention.norm.weight", (64,), "attention.norm"),
        ("attention.q.weight", (64, 64), "attention.q"),
        ("attention.k.weight", (32, 64), "attention.k"),
        ("attention.v.weight", (32, 64), "attention.v"),
        ("attention.o.weight", (64, 64), "attention.o"),
        ("ffn.norm.weight", (64,), "ffn.norm"),
        ("ffn.gate.weight", (128, 64), "ffn.gate"),
        ("ffn.up.weight", (128, 64), "ffn.up"),
        ("ffn.down.weight", (64, 128), "ffn.down"),
    ]
    outside = [(c.name, c.shape, c.use) for c in contracts if c.layer is None]
    assert outside == [
        ("target.embedding/weight", (256, 64), "embed"),
        ("target.norms/output.weight", (64,), "head.norm"),
        ("target.output_head/weight", (256, 64), "head"),
    ]
    assert contracts[0].use == "embed"
    assert contracts[-1].use == "head"
    assert [c.layer for c in contracts if c.layer is not None] == [0] * 9 + [1] * 9


def test_every_kind_of_operand_has_a_contract(tmp_path: Path) -> None:
    llama = LlamaSpec(
        layers=1, tied=True, attention_bias=True, mlp_bias=True, scaling=Scaling("llama3", 8.0)
    )
    gemma = GemmaSpec(layers=1)
    for source, missing in (
        (write_llama_gguf(tmp_path / "l.gguf", llama), "target.rope/factors"),
        (write_gemma_gguf(tmp_path / "g.gguf", gemma), "target.layer.000/attention.k_norm.weight"),
    ):
        container = make_container(source, tmp_path / f"{source.stem}.vindex3")
        contracts = operand_contracts(container.component("target"))
        assert {c.name for c in contracts} == set(container.operands)
        assert missing in container.operands
        assert contracts[-1].name == "target.embedding/weight", "a tied head names it again"


def test_each_missing_or_misshapen_operand_is_named_once_in_order(small: Path) -> None:
    container = Container(small)
    target = container.component("target")
    order = list(dict.fromkeys(contract.name for contract in operand_contracts(target)))
    assert [d.problem for d in check_closure(target, {})] == [
        f"operand {name} of {use} is not in the container"
        for name, use in {c.name: c.use for c in operand_contracts(target)}.items()
    ]
    for name in order:
        others = {key: value for key, value in container.operands.items() if key != name}
        (defect,) = check_closure(target, others)
        assert name in defect.problem
        layer = name.split("/")[0].removeprefix("target.layer.")
        assert defect.where == (f"target layer {int(layer)}" if layer.isdigit() else "target")
    wrong = dict(container.operands)
    wrong["target.layer.001/attention.k.weight"] = wrong["target.layer.001/attention.q.weight"]
    (defect,) = check_closure(target, wrong)
    assert defect.line() == (
        "target layer 1: operand target.layer.001/attention.k.weight of attention.k has shape "
        "[64, 64], expected [32, 64]"
    )


def test_an_operand_that_every_layer_uses_is_one_defect(tmp_path: Path) -> None:
    spec = LlamaSpec(tied=True, scaling=Scaling("llama3", 8.0))
    container = make_container(write_llama_gguf(tmp_path / "t.gguf", spec), tmp_path / "t.vindex3")
    target, operands = container.component("target"), container.operands
    without = {name: r for name, r in operands.items() if name != "target.rope/factors"}
    (defect,) = check_closure(target, without)
    assert defect.line() == (
        "target layer 0: operand target.rope/factors of attention.rope.factors is not in the "
        "container"
    )
    without = {name: r for name, r in operands.items() if name != "target.embedding/weight"}
    uses = [defect.problem.split()[3] for defect in check_closure(target, without)]
    assert uses == ["embed", "head"]


CONTRADICTIONS: tuple[tuple[tuple[str | int, ...], object, str], ...] = (
    (("components", 0, "hidden_size"), 32, "width is 64, expected 32"),
    (("components", 0, "hidden_size"), 0, "hidden size is 0, expected at least 1"),
    (("components", 0, "vocab_size"), 255, "vocab is 256, expected 255"),
    (("components", 0, "vocab_size"), 0, "vocab size is 0"),
    (("components", 0, "context_length"), 0, "context length is 0"),
    ((*EMBED, "vocab"), 255, "vocab is 255, expected at least 256"),
    (
        (*EMBED, "norm"),
        {"op": "norm", "kind": "rms", "width": 32, "eps": 1e-6},
        "embedding: norm width is 32, expected 64",
    ),
    ((*HEAD, "rows"), 256, "has 256 rows for 256 logits, expected more or no number"),
    ((*EMBED, "width"), 63, "width is 63, expected 64"),
    ((*HEAD, "vocab"), 255, "vocab is 255, expected 256"),
    ((*HEAD, "width"), 63, "width is 63, expected 64"),
    ((*HEAD, "norm", "width"), 63, "norm width is 63, expected 64"),
    ((*HEAD, "softcap"), 0.0, "softcap is 0.0, expected a number above 0"),
    ((*HEAD, "softcap"), -30.0, "softcap is -30.0"),
    ((*HEAD, "tied"), True, "tied is True, but its weight is target.output_head/weight"),
    ((*HEAD, "weight"), "target.embedding/weight", "tied is False, but its weight is"),
    ((*LAYER0, 0, "norm", "width"), 32, "norm width is 32, expected 64"),
    ((*LAYER0, 0, "norm", "eps"), -1e-6, "norm eps is -1e-06, expected 0 or more"),
    ((*LAYER0, 0, "norm", "bias"), "target.layer.000/b", "an rms norm has no bias, but target"),
    ((*LAYER0, 0, "site"), "ffn", "has two blocks at one site"),
    ((*LAYER0, 1, "site"), "attention", "has two blocks at one site"),
    ((*ATTENTION, "heads"), 0, "heads is 0, expected at least 1"),
    ((*ATTENTION, "heads"), 2, "q is [64, 64], expected [32, 64]"),
    ((*ATTENTION, "kv_heads"), 0, "kv heads is 0"),
    ((*ATTENTION, "kv_heads"), 3, "4 heads cannot share 3 kv heads equally"),
    ((*ATTENTION, "key_dim"), 32, "q is [64, 64], expected [128, 64]"),
    ((*ATTENTION, "value_dim"), 8, "v is [32, 64], expected [16, 64]"),
    ((*ATTENTION, "window"), 0, "window is 0, expected at least 1"),
    ((*ATTENTION, "softcap"), 0, "softcap is 0.0"),
    ((*ATTENTION, "o", "inputs"), 32, "o is [64, 32], expected [64, 64]"),
    ((*ATTENTION, "rope", "dims"), 18, "rope turns 18 dims, expected an even count ≤ 16"),
    ((*ATTENTION, "rope", "dims"), 15, "rope turns 15 dims"),
    ((*ATTENTION, "rope", "dims"), 0, "rope turns 0 dims"),
    ((*ATTENTION, "rope", "theta"), 0.0, "rope theta is 0.0"),
    ((*ATTENTION, "rope", "theta"), -1.0, "rope theta is -1.0"),
    ((*ATTENTION, "rope", "scaling"), {"kind": "linear", "factor": 0}, "rope factor is 0.0"),
    (
        (*ATTENTION, "rope", "scaling"),
        {"kind": "linear", "factor": 2, "low_freq_factor": 1},
        "linear rope scaling has low_freq_factor, a number of another kind",
    ),
    (
        (*ATTENTION, "rope", "scaling"),
        {"kind": "llama3", "factor": 8},
        "llama3 rope scaling lacks original_context",
    ),
    (
        (*ATTENTION, "rope", "scaling"),
        {
            "kind": "llama3",
            "factor": 8,
            "low_freq_factor": 4,
            "high_freq_factor": 4,
            "original_context": 64,
        },
        "high_freq_factor is 4.0, expected more than 4.0",
    ),
    (
        (*ATTENTION, "rope", "scaling"),
        {
            "kind": "llama3",
            "factor": 8,
            "low_freq_factor": 0,
            "high_freq_factor": 4,
            "original_context": 0,
        },
        "low_freq_factor is 0.0",
    ),
    (
        (*ATTENTION, "rope", "scaling"),
        {"kind": "yarn", "factor": 8, "beta_fast": 32, "beta_slow": 1, "original_context": 64},
        "yarn rope scaling lacks truncate",
    ),
    (
        (*ATTENTION, "rope", "scaling"),
        {
            "kind": "yarn",
            "factor": 8,
            "beta_fast": 1,
            "beta_slow": 1,
            "original_context": 64,
            "truncate": True,
            "magnitude": 0,
        },
        "rope magnitude is 0.0",
    ),
    (
        (*ATTENTION, "rope", "scaling"),
        {"kind": "longrope", "factor": 8, "original_context": 64, "divisors": [1.0] * 8},
        "longrope scaling needs two lists, both of numbers or both of operands",
    ),
    (
        (*ATTENTION, "rope", "scaling"),
        {
            "kind": "longrope",
            "factor": 8,
            "original_context": 64,
            "divisors": [1.0] * 8,
            "long_divisors": [1.0] * 7,
        },
        "rope long_divisors are 7, expected 8",
    ),
    (
        (*ATTENTION, "rope", "scaling"),
        {
            "kind": "longrope",
            "factor": 8,
            "original_context": 64,
            "divisors": [0.0] * 8,
            "long_divisors": [1.0] * 8,
        },
        "rope divisors is 0.0",
    ),
    (
        (*ATTENTION, "rope", "long_factors"),
        "target.rope/factors",
        "long rope factors belong to longrope scaling",
    ),
    (
        (*ATTENTION, "k_norm"),
        {"op": "norm", "kind": "rms", "width": 64, "eps": 1e-6},
        "norm width is 64, expected 16",
    ),
    ((*FFN, "up", "outputs"), 64, "down inputs is 128, expected 64"),
    ((*FFN, "up", "outputs"), 0, "up outputs is 0, expected at least 1"),
    ((*FFN, "up", "inputs"), 32, "up inputs is 32, expected 64"),
    ((*FFN, "down", "outputs"), 32, "down outputs is 32, expected 64"),
    ((*FFN, "gate", "outputs"), 64, "gate outputs is 64, expected 128"),
    ((*FFN, "gate", "inputs"), 32, "gate inputs is 32, expected 64"),
)


def _consistent_state(document: Any) -> Any:
    """Restate what a hostile author would restate too."""
    changed = removed(document, ("components", 0, "state"))
    state = []
    for layer in changed["components"][0]["layers"]:
        for block in layer["blocks"]:
            mixer = block["mixer"]
            if mixer["op"] == "softmax_attention":
                row = {"op": "kv_rows", "layer": layer["index"], "heads": mixer["kv_heads"]}
                row |= {key: mixer[key] for key in ("key_dim", "value_dim")}
                row["span"] = "window" if "window" in mixer else "full"
                state.append(row | {k: mixer[k] for k in ("window",) if k in mixer})
    return replaced(changed, ("components", 0, "state"), state)


@pytest.mark.parametrize(
    ("path", "value", "words"), CONTRADICTIONS, ids=[f"{c[0][-1]}-{c[1]}" for c in CONTRADICTIONS]
)
def test_numbers_that_contradict_each_other_are_defects(
    document: Any, path: tuple[str | int, ...], value: object, words: str
) -> None:
    assert check_geometry(component(document)) == []
    changed = component(_consistent_state(replaced(document, path, value)))
    lines = [defect.line() for defect in check_geometry(changed)]
    assert any(words in line for line in lines), lines
    assert all(line.startswith("target") for line in lines)


def test_a_mixer_stands_at_its_own_site(document: Any) -> None:
    blocks = value_at(document, LAYER0)
    for site, mixer in (("attention", blocks[1]["mixer"]), ("ffn", blocks[0]["mixer"])):
        block = {"site": site, "mixer": mixer, "residual_scale": 1.0}
        changed = _consistent_state(replaced(document, LAYER0, [block]))
        (defect,) = check_geometry(component(changed))
        assert "which belongs to" in defect.problem


@pytest.mark.parametrize("word", ["heads", "key_dim", "dims", "outputs"])
def test_a_contradictory_graph_does_not_bind(damaged: Path, word: str) -> None:
    """Whichever count is wrong: verify says so, and no run begins."""
    from larql.runtime.run import RunOptions, open_run

    document = read_json(damaged / "system_graph.json")
    path = next(p for p in paths(document) if p[-1] == word and "layers" in p)
    number = value_at(document, path)
    changed = _consistent_state(replaced(document, path, 2 * number))
    edit_graph(damaged, lambda graph: graph.update(changed))
    container = Container(damaged)
    assert verify_container(container, SilentProgress())
    with pytest.raises(BindingDefect) as caught:
        open_run(container, RunOptions(backend="reference"))
    assert str(damaged) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_operand_that_is_not_in_the_index_does_not_bind(damaged: Path) -> None:
    from larql.runtime.run import RunOptions, open_run

    name = "target.layer.001/ffn.up.weight"
    edit_index(damaged, lambda index: index["representations"].pop(name))
    container = Container(damaged)
    (defect,) = verify_container(container, SilentProgress())
    assert name in defect.problem
    with pytest.raises(LarqlError, match=name):
        open_run(container, RunOptions(backend="reference"))
