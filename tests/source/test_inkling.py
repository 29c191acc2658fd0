"""Inkling: what its configurations say in either style, its published layout, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from larql.errors import CompileError
from larql.format.closure import check_geometry
from larql.format.container import verify_container
from larql.format.graph import (
    Block,
    Component,
    DenseFfn,
    PositionScale,
    RoutedFfn,
    SoftmaxAttention,
)
from larql.format.moe.bank_routes import manifest_contracts
from larql.format.moe.capability import capability_of
from larql.format.moe.manifest import MoeLayer
from larql.format.moe.manifest_json import manifest_from_json
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import Compiled, compile_checkpoint
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.builders.containers import make_container, read_json
from tests.builders.hybrids import REMOVED, Tensors, changed, recorded, write_changed
from tests.builders.safetensors import write_safetensors_dir
from tests.oracles.recorded import OWN

PUBLISHED = OWN / "inkling-published" / "checkpoint"
TOKENS = [3, 1, 4, 1, 5, 95, 2, 6, 5, 3, 5]


def compiled(path: Path) -> Compiled:
    with open_checkpoint(path) as checkpoint:
        return compile_checkpoint(checkpoint)


def target(at: Path, name: str = "inkling", /, **keys: object) -> Component:
    return compiled(write_changed(at, name, **keys)).graph.components[0]


def attention(component: Component, layer: int) -> SoftmaxAttention:
    mixer = component.layers[layer].blocks[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    return mixer


def routed(component: Component, layer: int) -> RoutedFfn:
    mixer = component.layers[layer].blocks[1].mixer
    assert isinstance(mixer, RoutedFfn)
    return mixer


def logits(checkpoint: Path, at: Path, backend: str) -> npt.NDArray[np.float32]:
    run = open_run(make_container(checkpoint, at), RunOptions(backend=backend))
    session = Session(run.prepared, len(TOKENS), None)
    return session.logits(session.advance(TOKENS))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"shared_expert_sink": False}, "`shared_expert_sink` is False, a computation"),
        ({"n_shared_experts": 0}, "`n_shared_experts` is 0, expected an integer of at least 1"),
        ({"n_shared_experts": 1}, "mlp.gate.weight has shape [8, 32], expected [7, 32]"),
        ({"hidden_act": "snake"}, "`hidden_act` is 'snake', which this build does not know"),
        ({"layer_types": ["hybrid", "full_attention", "hybrid"]}, "`layer_types` holds 'full_att"),
        ({"layer_types": ["hybrid"] * 2}, "`layer_types` is '2 entries' but `num_hidden_layers`"),
        ({"local_layer_ids": [1]}, "`layer_types` is ['sliding', 'full', 'full'] but `local_lay"),
        ({"local_layer_ids": [-1]}, "`local_layer_ids` is not an array of integers of at least 0"),
        ({"mlp_layer_types": ["sparse"] * 2}, "`mlp_layer_types` is '2 entries' but"),
        ({"mlp_layer_types": ["sparse", "moe", "sparse"]}, "`mlp_layer_types` holds 'moe'"),
        ({"dense_mlp_idx": 1}, "`mlp_layer_types` is ['sparse', 'dense', 'sparse'] but `dense_mlp"),
        ({"sliding_window": 7}, "`sliding_window_size` is 6 but `sliding_window` is 7"),
        ({"sconv_kernel_size": 3}, "`conv_kernel_size` is 4 but `sconv_kernel_size` is 3"),
        ({"model_max_length": 64}, "`max_position_embeddings` is 128 but `model_max_length` is 64"),
        ({"num_local_experts": 4}, "`num_local_experts` is 4 but `n_routed_experts` is 6"),
        ({"num_experts_per_tok": 7}, "`num_experts_per_tok` is 7, of 6 experts"),
        ({"embedding_multiplier": 2.0}, "`logits_mup_width_multiplier` is 3.0 but `embedding_mul"),
        ({"logits_mup_width_multiplier": 0.0}, "`logits_mup_width_multiplier` is 0.0, expected a"),
        ({"dense_intermediate_size": 40}, "`moe_intermediate_size` is 12 but `intermediate_size`"),
        ({"log_scaling_alpha": -0.1}, "`log_scaling_alpha` is -0.1, expected a finite number"),
        ({"log_scaling_n_floor": 0}, "`log_scaling_n_floor` is 0, expected an integer of at least"),
        ({"unpadded_vocab_size": 0}, "`unpadded_vocab_size` is 0, expected an integer of at least"),
        ({"rel_extent": 8}, "rel_logits_proj.proj has shape [5, 9], expected [5, 8]"),
        ({"d_rel": 4}, "rel_logits_proj.proj has shape [5, 6], expected [4, 6]"),
        ({"sliding_window_size": 7}, "rel_logits_proj.proj has shape [5, 6], expected [5, 7]"),
        (
            {"conv_kernel_size": 3},
            "k_sconv.conv1d.weight has shape [24, 1, 4], expected [24, 1, 3]",
        ),
        ({"swa_num_attention_heads": 4}, "r_proj.weight has shape [30, 32], expected [20, 32]"),
        ({"swa_head_dim": 6}, "self_attn.q_proj.weight has shape [48, 32], expected [36, 32]"),
        ({"quantization_config": {"quant_method": "nvfp4"}}, "`quantization_config` is"),
        (
            {"attention_bias": True},
            "`attention_bias` is True, a computation this build",
        ),
    ],
)
def test_what_is_refused_is_named(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        target(tmp_path / "m", **keys)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"local_layer_ids": [0]},
        {"layer_types": REMOVED, "local_layer_ids": [0]},
        {"num_local_experts": 6, "n_routed_experts": REMOVED},
        {"embedding_multiplier": 3.0, "logits_mup_width_multiplier": REMOVED},
        {"sliding_window": 6, "sliding_window_size": REMOVED},
        {"sconv_kernel_size": 4, "conv_kernel_size": REMOVED},
        {"model_max_length": 128, "max_position_embeddings": REMOVED},
        {"dense_intermediate_size": 40, "intermediate_size": 12, "moe_intermediate_size": REMOVED},
        {"num_mtp_layers": 2, "mtp_local_layer_ids": [0], "rms_norm_eps_moe_gate": 0.5},
    ],
)
def test_one_thing_in_two_styles(tmp_path: Path, keys: dict[str, object]) -> None:
    assert target(tmp_path / "a", **keys) == target(tmp_path / "b")


def test_layers_without_a_list_are_full_each_sixth_time_and_sparse_behind_the_first(
    tmp_path: Path,
) -> None:
    config, tensors = recorded("inkling")
    sliding = {n: t for n, t in tensors.items() if n.startswith("model.layers.0.")}
    full = {n: t for n, t in tensors.items() if n.startswith("model.layers.2.")}
    made: Tensors = {n: t for n, t in tensors.items() if ".layers." not in n}
    for i in range(6):
        for name, tensor in (sliding if i < 5 else full).items():
            made[f"model.layers.{i}.{name.split('.', 3)[3]}"] = tensor
    keys = {"num_hidden_layers": 6, "layer_types": REMOVED, "mlp_layer_types": REMOVED}
    path = write_safetensors_dir(tmp_path / "m", changed(config, keys), made)
    found = compiled(path).graph.components[0]
    assert [attention(found, i).window for i in range(6)] == [6, 6, 6, 6, 6, None]
    assert all(isinstance(layer.blocks[1].mixer, RoutedFfn) for layer in found.layers)
    with pytest.raises(CompileError, match=r"layers\.0\.mlp\.gate_proj\.weight is missing"):
        compiled(write_safetensors_dir(tmp_path / "d", {**changed(config, keys),
                                                        "dense_mlp_idx": 1}, made))  # fmt: skip


def test_positions_are_scaled_on_full_layers_where_there_is_a_floor_and_a_rate(
    tmp_path: Path,
) -> None:
    usual = target(tmp_path / "a")
    assert [attention(usual, i).position_scale for i in range(3)] == [
        None, PositionScale(4, 0.6), PositionScale(4, 0.6)
    ]  # fmt: skip
    for number, keys in enumerate(
        ({"log_scaling_n_floor": None}, {"log_scaling_alpha": 0}, {"log_scaling_alpha": 0.0})
    ):
        found = target(tmp_path / str(number), **keys)
        assert all(attention(found, i).position_scale is None for i in range(3))
    default = attention(target(tmp_path / "d", log_scaling_alpha=REMOVED), 1).position_scale
    assert default == PositionScale(4, 0.1)


# The published layout


def test_a_published_model_is_compiled_and_its_other_parts_are_named() -> None:
    found = compiled(PUBLISHED)
    assert found.family == "inkling"
    assert set(found.left) == {
        "model.audio.encoder.weight",
        "model.audio.final_norm.weight",
        *(name for name in found.left if name.startswith("model.visual.")),
    }
    assert set(found.left.values()) == {"not the text model"}
    assert any(f"{len(found.left)} tensors outside the text model" in n for n in found.notes)
    verdicts = {key.key: key.verdict for key in found.keys}
    for key in ("vision_config", "audio_config", "mtp_config", "audio_bos_token_id"):
        assert verdicts[key] == "irrelevant"
    assert verdicts["text_config.dense_mlp_idx"] == "consumed"
    sources = {b.operand: b for b in found.bindings}
    rows = sources["target.layer.001/ffn.shared.0.up.weight"].rows
    assert rows is not None
    assert (rows.first, rows.length, rows.stride, rows.runs) == (1, 1, 2, 12)


def test_layers_that_draft_are_left_and_told(tmp_path: Path) -> None:
    config, tensors = recorded("inkling")
    draft = "model.mtp.layers.0.embed_norm.weight"
    tensors[draft] = np.zeros(32, np.float32)
    found = compiled(write_safetensors_dir(tmp_path, config, tensors))
    assert found.left == {draft: "a layer that drafts tokens"}
    assert any("1 tensors of layers that draft tokens" in note for note in found.notes)


def test_the_usual_names_inside_of_a_model_that_sees(tmp_path: Path) -> None:
    config, tensors = recorded("inkling")
    outer = {"model_type": "inkling_mm_model", "text_config": config, "vision_config": {}}
    inside = {n.replace("model.", "model.language_model.", 1): v for n, v in tensors.items()}
    inside["model.vision_tower.encoder_layers.0.projection.weight"] = np.ones((4, 3), np.float32)
    inside["model.audio_tower.norm.weight"] = np.ones(32, np.float32)
    found = compiled(write_safetensors_dir(tmp_path / "outer", outer, inside))
    assert found.graph.components[0] == target(tmp_path / "alone")
    assert len(found.left) == 2


@pytest.mark.parametrize(
    ("outer", "message"),
    [
        ({"quantization_config": {"quant_method": "nvfp4"}}, "`quantization_config`: unknown"),
        ({"text_config": {"model_type": "llama"}}, "but `text_config.model_type` is 'llama'"),
        ({"text_config": {"model_type": "inkling_text", "soft_limit": 2.0}}, "`text_config.soft_l"),
    ],
)
def test_nested_configurations_are_judged_too(
    tmp_path: Path, outer: dict[str, Any], message: str
) -> None:
    document = json.loads((PUBLISHED / "config.json").read_text(encoding="utf-8"))
    changes = {**outer}
    if "text_config" in outer:
        changes["text_config"] = document["text_config"] | outer["text_config"]
    for file in PUBLISHED.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(document | changes), encoding="utf-8")
    with pytest.raises(CompileError) as caught:
        compiled(tmp_path)
    assert message in str(caught.value)


# Heads with fewer logits than the embedding has rows


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_a_head_is_padded_or_cut_or_the_embedding(tmp_path: Path, backend: str) -> None:
    config, tensors = recorded("inkling")
    embedding = tensors["model.embed_tokens.weight"]
    found = {}
    for name, head in (("padded", embedding), ("cut", embedding[:90].copy()), ("tied", None)):
        keys = {**config, "tie_word_embeddings": head is None}
        held = {**tensors, "lm_head.weight": head} if head is not None else dict(tensors)
        if head is None:
            del held["lm_head.weight"]
        checkpoint = write_safetensors_dir(tmp_path / f"{name}-m", keys, held)
        found[name] = logits(checkpoint, tmp_path / name, backend)
        component = compiled(checkpoint).graph.components[0]
        assert component.head.rows == (None if name == "cut" else 96)
        assert (component.vocab_size, component.embed.vocab) == (90, 96)
    assert found["padded"].shape == (len(TOKENS), 90)
    assert found["padded"].tobytes() == found["cut"].tobytes() == found["tied"].tobytes()


def test_a_head_that_is_neither_cut_nor_padded_is_refused(tmp_path: Path) -> None:
    config, tensors = recorded("inkling")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:93].copy()
    with pytest.raises(CompileError, match=r"lm_head\.weight has shape \[93, 32\], expected \[96"):
        compiled(write_safetensors_dir(tmp_path, config, tensors))


def test_a_vocabulary_without_padding_is_the_embedding_s(tmp_path: Path) -> None:
    for number, size in enumerate((96, 500, None)):
        found = target(tmp_path / str(number), unpadded_vocab_size=size)
        assert (found.vocab_size, found.head.rows) == (96, None)


# Shared experts that take part in the routing


def test_the_manifest_says_how_many_rows_of_scores_are_of_shared_experts(tmp_path: Path) -> None:
    container = make_container(OWN / "inkling" / "checkpoint", tmp_path / "c")
    assert list(verify_container(container, SilentProgress())) == []
    manifest = manifest_from_json(read_json(container.path / "moe_manifest.json"), "m")
    layers: tuple[MoeLayer, ...] = manifest.layers
    assert [(m.layer, m.router.shared_sink, m.router.dense_sinks) for m in layers] == [
        (0, True, 2), (2, True, 2)
    ]  # fmt: skip
    assert {m.combine for m in layers} == {"add"}
    for layer in layers:
        (scores,) = (c for c in manifest_contracts(layer, 32) if c.use == "router.scores")
        assert scores.shape == (8, 32)
    found = {op.name: op for op in capability_of(container).operations}
    assert all(op.diagnoses == () for op in found.values())
    searched = found["walk"].covered
    assert {"target.layer.002/shared.0", "target.layer.002/shared.1"} <= set(searched)


def _with(component: Component, layer: int, block: Block) -> Component:
    changed_layer = component.layers[layer]
    blocks = tuple(block if b.site == block.site else b for b in changed_layer.blocks)
    layers = list(component.layers)
    layers[layer] = replace(changed_layer, blocks=blocks)
    return replace(component, layers=tuple(layers))


@pytest.mark.parametrize(
    ("router", "weighted", "words"),
    [
        ({"sinks": 1}, None, "router is [8, 32], expected [7, 32]"),
        ({}, 1, "weighted is 1, expected 2"),
        ({"sinks": None}, None, "weighted is 2, expected 0"),
        ({"score": "softmax"}, None, "sinks belong to sigmoids that are renormalised"),
        ({"renormalise": False}, None, "sinks belong to sigmoids that are renormalised"),
        ({"renormalise_eps": 1e-9}, None, "that are renormalised without an eps"),
        ({"sinks": 0}, 0, "sinks is 0, expected at least 1"),
    ],
)
def test_sinks_that_contradict_themselves(
    tmp_path: Path, router: dict[str, Any], weighted: int | None, words: str
) -> None:
    component = target(tmp_path)
    assert check_geometry(component) == []
    block, mixer = component.layers[0].blocks[1], routed(component, 0)
    assert mixer.weighted is not None
    shared: tuple[DenseFfn, ...] = mixer.weighted[:weighted]
    other = replace(mixer, router=replace(mixer.router, **router), weighted=shared)
    lines = [d.line() for d in check_geometry(_with(component, 0, replace(block, mixer=other)))]
    assert any(words in line for line in lines), lines
