"""Comparing a container with its source finds whatever was changed at either end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import CompileError
from larql.format.container import Container, verify_container
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compare import compare_with_source
from tests.builders.containers import (
    copy_container,
    edit_graph,
    edit_index,
    flip_byte,
    make_container,
    vouch_for,
)
from tests.builders.models import (
    GemmaSpec,
    LlamaSpec,
    llama_weights,
    write_gemma_gguf,
    write_gemma_safetensors,
    write_llama_gguf,
    write_llama_safetensors,
)

T0 = LlamaSpec(tokenizer=True)
UP = "model.layers.1.mlp.up_proj.weight"
UP_OPERAND = "target.layer.001/ffn.up.weight"
SEGMENT = "segments/target.layer.001.safetensors"


def differences(container: Path, source: Path) -> list[str]:
    with open_checkpoint(source) as checkpoint:
        found = compare_with_source(Container(container), checkpoint, SilentProgress())
    lines = [defect.line() for defect in found]
    assert all("\n" not in line for line in lines)
    return lines


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama_safetensors(tmp_path_factory.mktemp("m") / "model", T0)


@pytest.fixture(scope="module", params=[None, "q8_0"])
def whole(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("c") / "c.vindex3"
    return make_container(source, out, quant=request.param).path


@pytest.fixture
def changed(whole: Path, tmp_path: Path) -> Path:
    return copy_container(whole, tmp_path / "c.vindex3")


@pytest.mark.parametrize("quant", [None, "q8_0", "q4_0", "q4_k", "q6_k"])
def test_a_container_equals_its_source(tmp_path: Path, quant: str | None) -> None:
    spec = LlamaSpec(layers=1, ffn=256, tokenizer=True, gguf_type="q4_1")
    for source in (
        write_llama_safetensors(tmp_path / "a", spec),
        write_llama_gguf(tmp_path / "b.gguf", spec),
        write_gemma_safetensors(tmp_path / "c", GemmaSpec(layers=1, nested=True)),
        write_gemma_gguf(tmp_path / "d.gguf", GemmaSpec(layers=1, tokenizer=True)),
    ):
        container = make_container(source, tmp_path / f"{source.name}.out", quant=quant)
        assert differences(container.path, source) == []


def test_a_moved_or_differently_sharded_source_is_the_same(whole: Path, tmp_path: Path) -> None:
    spec = LlamaSpec(tokenizer=True, shards=3)
    assert differences(whole, write_llama_safetensors(tmp_path / "another name", spec)) == []


def test_a_tensor_changed_in_the_source_is_named(whole: Path, tmp_path: Path) -> None:
    other = llama_weights(T0)[UP].copy()
    other[0, 0] = np.nextafter(other[0, 0], np.float32(np.inf))
    source = write_llama_safetensors(tmp_path / "m", T0, extra={UP: other})
    found = differences(whole, source)
    assert found[0].startswith(f"{UP_OPERAND}: {UP} has sha256 ")
    assert all(UP in line or UP_OPERAND in line or "ffn.up.weight" in line for line in found)


def test_a_byte_changed_in_a_segment_is_named(changed: Path, source: Path) -> None:
    """Even where the hashes of the container were made to fit."""
    for vouched in (False, True):
        flip_byte(changed / SEGMENT)
        if vouched:
            flip_byte(changed / SEGMENT)
            flip_byte(changed / SEGMENT, -2)
            vouch_for(changed, SEGMENT)
            assert verify_container(Container(changed), SilentProgress()) == []
        (line,) = differences(changed, source)
        assert line.startswith(f"{SEGMENT}: ffn.down.weight differs from ")
        assert "model.layers.1.mlp.down_proj.weight" in line


def test_each_tensor_is_compared(changed: Path, source: Path) -> None:
    container = Container(changed)
    for representation in container.index.representations.values():
        segment = container.segment(representation.segment)
        path = changed / representation.segment
        offset = segment.header_bytes + segment.header.entries[representation.tensor].begin
        flip_byte(path, offset)
        (line,) = differences(changed, source)
        assert representation.source.tensor in line
        flip_byte(path, offset)
    assert differences(changed, source) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g["components"][0]["head"]["norm"].update(eps=1e-6),
        lambda g: g["components"][0]["layers"][1]["blocks"][0]["mixer"].update(scale=0.5),
        lambda g: g["components"][0]["embed"].update(scale=8.0),
        lambda g: g["components"][0].update(context_length=513),
        lambda g: g["edges"].append({"producer": "target", "tap": "x", "consumer": "target"}),
    ],
)
def test_a_changed_graph_is_found_even_if_it_is_valid(
    changed: Path, source: Path, change: Callable[[Any], object]
) -> None:
    edit_graph(changed, change)
    assert verify_container(Container(changed), SilentProgress()) == []
    assert differences(changed, source) == [
        "system_graph.json: is not the graph that the source compiles to"
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "another"),
        ("family", "another"),
        ("hidden_size", 65),
        ("num_layers", 3),
        ("components", ["target", "mtp"]),
        ("text", {"end_of_text_ids": []}),
        ("text", {}),
    ],
)
def test_a_changed_fact_of_the_index_is_named(
    changed: Path, source: Path, key: str, value: object
) -> None:
    edit_index(changed, lambda index: index.update({key: value}))
    (line,) = differences(changed, source)
    assert line.startswith(f"index.json: {key} is ")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("tensor", "another", f"recorded as another in f32, in the source it is {UP} in f32"),
        ("encoding", "bf16", f"recorded as {UP} in bf16, in the source it is {UP} in f32"),
        ("sha256", "0" * 64, f"the index recorded {'0' * 64}"),
    ],
)
def test_a_changed_record_of_the_source_is_named(
    changed: Path, source: Path, key: str, value: object, words: str
) -> None:
    edit_index(
        changed, lambda index: index["representations"][UP_OPERAND]["source"].update({key: value})
    )
    (line,) = differences(changed, source)
    assert line.startswith(f"{UP_OPERAND}: ")
    assert words in line


def test_a_fidelity_that_cannot_be_is_named(changed: Path, source: Path) -> None:
    stored = Container(changed).operands[UP_OPERAND].fidelity
    lie = {"source-exact": "numerically-approximate"}.get(stored, "source-exact")
    edit_index(changed, lambda index: index["representations"][UP_OPERAND].update(fidelity=lie))
    (line,) = differences(changed, source)
    assert f"cannot be {lie}" in line


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
def test_a_changed_text_file_is_named(changed: Path, source: Path, name: str) -> None:
    flip_byte(changed / name, 5)
    vouch_for(changed, name)
    assert differences(changed, source) == [f"{name}: differs from the source's"]
    (changed / name).unlink()
    assert differences(changed, source) == [f"{name}: no such file"]
    edit_index(changed, lambda index: index["files"].pop(name))
    assert differences(changed, source) == [f"{name}: is missing, the source has it"]


def test_a_text_file_that_the_source_does_not_have_is_named(changed: Path, source: Path) -> None:
    (changed / "chat_template.jinja").write_text("{{ x }}")
    vouch_for(changed, "chat_template.jinja")
    assert differences(changed, source) == ["chat_template.jinja: has no counterpart in the source"]


def test_missing_and_additional_operands_are_named(changed: Path, source: Path) -> None:
    def change(index: Any) -> None:
        taken = index["representations"].pop(UP_OPERAND)
        index["representations"]["target.layer.009/x"] = {**taken, "operand": "target.layer.009/x"}

    edit_index(changed, change)
    assert differences(changed, source) == [
        f"{UP_OPERAND}: is missing; {UP} fills it",
        "target.layer.009/x: has no counterpart in the source",
    ]


def test_another_shape_is_named(changed: Path, source: Path) -> None:
    edit_index(changed, lambda index: index["representations"][UP_OPERAND].update(shape=[64, 128]))
    (line,) = differences(changed, source)
    assert line == f"{UP_OPERAND}: has shape [64, 128], {UP} gives [128, 64]"


def test_what_cannot_be_read_is_named(changed: Path, source: Path) -> None:
    (changed / SEGMENT).unlink()
    (changed / "system_graph.json").unlink()
    found = differences(changed, source)
    assert found[0].startswith("system_graph.json: ")
    assert len([line for line in found if line == f"{SEGMENT}: {SEGMENT}: no such file"]) <= 9
    assert all("no such file" in line.lower() for line in found)


def test_another_checkpoint_of_the_same_shape_differs_in_every_tensor(
    whole: Path, tmp_path: Path
) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(tokenizer=True, seed=1))
    named = {line.split(": ")[0] for line in differences(whole, source)}
    assert named >= set(Container(whole).operands)


def test_the_same_model_in_another_format_differs(whole: Path, tmp_path: Path) -> None:
    """A GGUF file orders the rows of q and k differently, so it is another source."""
    found = differences(whole, write_llama_gguf(tmp_path / "m.gguf", T0))
    assert "system_graph.json: is not the graph that the source compiles to" in found
    assert any("attention.q.weight" in line for line in found)


def test_a_checkpoint_of_another_family_differs(whole: Path, tmp_path: Path) -> None:
    found = differences(whole, write_gemma_safetensors(tmp_path / "m"))
    assert "index.json: family is 'llama', the source says 'gemma3'" in found
    assert "target.output_head/weight: has no counterpart in the source" in found


def test_a_source_that_does_not_compile_is_refused(whole: Path, tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", T0, config={"clamp": 1.0})
    with pytest.raises(CompileError, match="clamp"):
        differences(whole, source)


def test_a_container_made_from_other_bytes_with_the_same_values_differs(tmp_path: Path) -> None:
    """A head stored twice, or a dtype converted, is seen: bytes are compared, not values."""
    container = make_container(
        write_llama_safetensors(tmp_path / "a", LlamaSpec(layers=1, dtype="bf16")), tmp_path / "out"
    )
    weights = llama_weights(LlamaSpec(layers=1, dtype="bf16"))
    source = write_llama_safetensors(tmp_path / "b", LlamaSpec(layers=1), extra=weights)
    found = differences(container.path, source)
    assert len(found) >= len(weights)
