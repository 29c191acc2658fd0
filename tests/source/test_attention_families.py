"""Families of many kinds of attention: what their configurations say, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import CompileError
from larql.format.closure import check_geometry
from larql.format.graph import (
    Component,
    DenseFfn,
    LatentAttention,
    RoutedFfn,
    SoftmaxAttention,
    state_schema,
)
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import Compiled, compile_checkpoint
from tests.builders.hybrids import REMOVED, changed, recorded, write_changed
from tests.builders.safetensors import write_safetensors_dir

_FULL, _SLIDING = "full_attention", "sliding_attention"
LONG = {"rope_type": "longrope", "rope_theta": 5.0, "original_max_position_embeddings": 8,
        "short_factor": [1.0], "long_factor": [1.0]}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "original_max_position_embeddings": 16,
}


def compiled(path: Path) -> Compiled:
    with open_checkpoint(path) as checkpoint:
        return compile_checkpoint(checkpoint)


def target(at: Path, name: str, /, **keys: object) -> Component:
    return compiled(write_changed(at, name, **keys)).graph.components[0]


def softmax(component: Component, layer: int) -> SoftmaxAttention:
    mixer = component.layers[layer].blocks[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    return mixer


def latent(component: Component, layer: int = 0) -> LatentAttention:
    mixer = component.layers[layer].blocks[0].mixer
    assert isinstance(mixer, LatentAttention)
    return mixer


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("gemma4-embeddings", {"use_bidirectional_attention": "all"}, "only 'vision'"),
        ("gemma4-embeddings", {"sliding_window": None}, "`sliding_window` is null"),
        ("gemma4-embeddings", {"num_kv_shared_layers": 6}, "leaves a kind of layer without keys"),
        ("gemma4-embeddings", {"num_kv_shared_layers": 5}, "leaves a kind of layer without keys"),
        ("gemma4-embeddings", {"layer_types": [_FULL] * 5}, "'5 entries' but"),
        ("gemma4-embeddings", {"layer_types": ["chunked"] * 6}, "holds 'chunked'"),
        ("gemma4-embeddings", {"global_head_dim": 32}, "`global_head_dim` is 32 but `per_layer_c"),
        (
            "gemma4-embeddings",
            {"per_layer_config": {"1": {"head_dim": 16, "hidden_size": 9}, "5": {"head_dim": 16}}},
            "`per_layer_config.1.hidden_size`",
        ),
        ("gemma4-embeddings", {"enable_moe_block": True}, "`num_experts` is missing"),
        ("gemma4-embeddings", {"hidden_activation": "snake"}, "`hidden_activation` is 'snake'"),
        ("gemma4-embeddings", {"hidden_size_per_layer_input": 4}, "has shape [90, 48], expected"),
        ("gemma4-embeddings", {"vocab_size_per_layer_input": 91}, "has shape [90, 48], expected"),
        ("gemma4-embeddings", {"attention_bias": True}, "q_proj.bias is missing"),
        ("gemma4-embeddings", {"a_new_key": 1}, "`a_new_key`"),
        (
            "gemma4-embeddings",
            {"rope_parameters": {_SLIDING: {"rope_type": "default", "rope_theta": 5.0}}},
            "`rope_parameters` says nothing of layer type 'full_attention'",
        ),
        (
            "gemma4-embeddings",
            {"rope_parameters": {_FULL: {"rope_type": "snake"}, _SLIDING: {"rope_theta": 5.0}}},
            "`rope_parameters.full_attention.rope_type` is 'snake', a rope type",
        ),
        (
            "gemma4-embeddings",
            {
                "rope_parameters": {
                    _FULL: {"rope_type": "linear", "type": "yarn"},
                    _SLIDING: {"rope_theta": 5.0},
                }
            },
            "`rope_parameters.full_attention.rope_type` is 'linear' but",
        ),
        (
            "gemma4-embeddings",
            {"rope_parameters": {_FULL: LONG, _SLIDING: {"rope_theta": 5.0}}},
            "`rope_parameters.full_attention.short_factor` has 1 entries, expected 8",
        ),
        ("deepseek_v3", {"q_lora_rank": None}, "self_attn.q_proj.weight is missing"),
        (
            "deepseek_v3",
            {"kv_lora_rank": 16},
            "kv_a_layernorm.weight has shape [20], expected [16]",
        ),
        ("deepseek_v3", {"num_key_value_heads": 2}, "`num_key_value_heads` is 2"),
        ("deepseek_v3", {"head_dim": 12}, "`head_dim` is 12"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "`scoring_func` is 'softmax'"),
        ("deepseek_v3", {"topk_method": "greedy"}, "`topk_method` is 'greedy'"),
        ("deepseek_v3", {"num_experts_per_tok": 9}, "`num_experts_per_tok` is 9, of 8 experts"),
        ("deepseek_v3", {"num_experts_per_tok": 5}, "`num_experts_per_tok` is 5, of 4 experts in"),
        ("deepseek_v3", {"n_group": 3}, "`n_group` is 3, but 8 experts do not make so many"),
        ("deepseek_v3", {"n_group": 8}, "`n_group` is 8, but 8 experts do not make so many"),
        ("deepseek_v3", {"topk_group": 5}, "`topk_group` is 5, of 4 groups"),
        (
            "deepseek_v3",
            {"qk_rope_head_dim": 7, "head_dim": 7, "qk_head_dim": REMOVED},
            "`qk_rope_head_dim` leaves 7 of a head's 7 numbers to turn, expected an even count",
        ),
        ("glm4_moe", {"n_group": 4}, "`n_group` is 4, but 6 experts"),
        (
            "glm4_moe",
            {"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 0.25}},
            "`rope_parameters.partial_rotary_factor` leaves 3 of a head's 12 numbers to turn",
        ),
        ("deepseek_v3", {"first_k_dense_replace": 2}, "layers.1.mlp.gate_proj.weight is missing"),
        ("deepseek_v3", {"quantization_config": {"quant_method": "fp8"}}, "`quantization_config`"),
        ("deepseek_v3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("glm4_moe", {"use_qk_norm": False}, "norm.weight"),
        ("glm4_moe", {"partial_rotary_factor": 0.7}, "partial_rotary_factor"),
        ("glm4_moe", {"head_dim": 8}, "q_norm.weight has shape [12], expected [8]"),
        ("olmoe", {"clip_qkv": -1.0}, "`clip_qkv` is -1.0"),
        ("olmoe", {"num_key_value_heads": 4}, "k_proj.weight has shape [16, 32]"),
        ("olmoe", {"num_experts_per_tok": 7}, "`num_experts_per_tok` is 7, of 6 experts"),
        ("gpt_oss", {"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
        ("gpt_oss", {"experts_per_token": 3}, "`experts_per_token` is 3"),
        ("gpt_oss", {"initial_context_length": 64}, "`initial_context_length` is 64"),
        ("gpt_oss", {"quantization_config": {"quant_method": "awq"}}, "quant_method` is 'awq'"),
        ("gpt_oss", {"swiglu_limit": 0.0}, "`swiglu_limit` is 0.0"),
        ("gpt_oss", {"sliding_window": None}, "`layer_types` is 'sliding_attention' but `slid"),
        ("granitemoehybrid", {"attention_multiplier": None}, "`attention_multiplier` is null"),
        ("olmoe", {"norm_topk_prob": None}, "`norm_topk_prob` is null, expected"),
        ("glm4_moe", {"norm_topk_prob": None}, "`norm_topk_prob` is null, expected"),
        ("deepseek_v3", {"norm_topk_prob": None}, "`norm_topk_prob` is null, expected"),
        (
            "deepseek_v3",
            {"rope_parameters": {"rope_type": None, "rope_theta": 5.0}},
            "`rope_parameters.rope_type` is null, which is no rope type",
        ),
    ],
)
def test_refused(tmp_path: Path, name: str, keys: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        target(tmp_path, name, **keys)
    assert message in str(caught.value)


# Gemma 4


def test_gemma4_reads_the_geometry_of_full_layers_in_either_style(tmp_path: Path) -> None:
    newer = target(tmp_path / "a", "gemma4-embeddings")
    older = target(
        tmp_path / "b", "gemma4-embeddings", per_layer_config=REMOVED, global_head_dim=16
    )
    assert newer == older
    assert [softmax(newer, i).key_dim for i in range(6)] == [8, 16, 8, 8, 8, 16]


def test_gemma4_shares_the_last_layer_of_a_kind_and_no_other(tmp_path: Path) -> None:
    found = target(tmp_path, "gemma4-embeddings")
    assert [softmax(found, i).shared for i in range(6)] == [None, None, None, 2, 2, 1]
    assert [spec.layer for spec in state_schema(found)] == [0, 1, 2]
    widths = [layer.blocks[1].mixer.up.outputs for layer in found.layers]  # type: ignore[union-attr]
    assert widths == [24, 24, 24, 48, 48, 48]
    assert [layer.blocks[-1].carrier_scale for layer in found.layers] == [
        f"target.layer.{i:03d}/layer_scale" for i in range(6)
    ]


def test_gemma4_leaves_keys_and_values_that_no_layer_reads(tmp_path: Path) -> None:
    config, tensors = recorded("gemma4-embeddings")
    place = "model.layers.4.self_attn"
    extra = {f"{place}.k_proj.weight": (8, 32), f"{place}.v_proj.weight": (8, 32)}
    extra[f"{place}.k_norm.weight"] = (8,)
    for name, shape in extra.items():
        tensors[name] = np.zeros(shape, np.float32)
    found = compiled(write_safetensors_dir(tmp_path, config, tensors))
    assert {name for name, why in found.left.items() if why == "keys and values are shared"} == {
        *extra
    }


def test_gemma4_as_part_of_a_model_that_sees_and_hears(tmp_path: Path) -> None:
    config, tensors = recorded("gemma4-embeddings")
    outer = {
        "model_type": "gemma4",
        "text_config": config,
        "vision_config": {"hidden_size": 4},
        "audio_config": {"hidden_size": 4},
        "audio_token_id": 3,
        "boa_token_id": 4,
        "eoa_token_index": 5,
        "tie_word_embeddings": False,
    }
    inside = {name.replace("model.", "model.language_model.", 1): v for name, v in tensors.items()}
    towers = ("model.vision_tower.a", "model.embed_vision.b", "model.audio_tower.c",
              "model.embed_audio.d")  # fmt: skip
    for name in towers:
        inside[name] = np.zeros(3, np.float32)
    found = compiled(write_safetensors_dir(tmp_path / "outer", outer, inside))
    alone = target(tmp_path / "alone", "gemma4-embeddings")
    assert found.graph.components[0] == alone
    assert set(found.left) == set(towers)


def test_gemma4_default_ropes_are_those_of_its_configuration_class(tmp_path: Path) -> None:
    stated = target(tmp_path / "a", "gemma4-embeddings")
    absent = target(tmp_path / "b", "gemma4-embeddings", rope_parameters=REMOVED)
    assert absent == stated
    rope = softmax(absent, 1).rope
    assert rope is not None and (rope.dims, rope.turning, rope.theta) == (16, 2, 1e6)


def test_a_row_of_each_layer_s_embeddings_for_every_token(tmp_path: Path) -> None:
    """Also for tokens that no logit is made for."""
    found = target(tmp_path, "gemma4-embeddings")
    rows = found.embed.vocab
    cut = replace(found, vocab_size=60, head=replace(found.head, vocab=60, rows=rows))
    assert check_geometry(cut) == [] and cut.per_layer is not None
    (defect,) = check_geometry(replace(cut, per_layer=replace(cut.per_layer, vocab=rows - 1)))
    assert f"vocab is {rows - 1}, expected at least {rows}" in defect.line()


def test_gemma4_makes_the_last_layer_full_and_says_so(tmp_path: Path) -> None:
    kinds = [_SLIDING, _FULL, _SLIDING, _SLIDING, _SLIDING, _SLIDING]
    found = compiled(write_changed(tmp_path, "gemma4-embeddings", layer_types=kinds))
    assert softmax(found.graph.components[0], 5).window is None
    assert any("last layer is declared to have a window" in note for note in found.notes)


# DeepSeek V3


def test_deepseek_takes_fused_projections_apart(tmp_path: Path) -> None:
    found = compiled(write_changed(tmp_path, "deepseek_v3"))
    rows = {b.tensor: b.rows for b in found.bindings if b.object == "target.layer.000"}
    heads = {
        part: (r.first, r.length, r.stride, r.runs)
        for part in ("k_up", "v_up", "q_nope", "q_rope")
        if (r := rows[f"attention.{part}.weight"]) is not None
    }
    assert heads == {
        "k_up": (0, 12, 22, 4),
        "v_up": (12, 10, 22, 4),
        "q_nope": (0, 12, 20, 4),
        "q_rope": (12, 8, 20, 4),
    }
    mixer = latent(found.graph.components[0])
    assert (mixer.latent.outputs, mixer.k_rope.outputs) == (20, 8)
    assert mixer.latent.bias is not None and mixer.k_rope.bias is not None
    assert mixer.q_nope.bias is None and mixer.o.bias is not None


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        (YARN, 1.0),
        ({**YARN, "mscale_all_dim": 1.1}, (0.11 * math.log(8.0) + 1.0) ** 2),
        ({**YARN, "factor": 1.0, "mscale_all_dim": 1.1}, 1.0),
        ({"rope_type": "default", "rope_theta": 500.0, "mscale_all_dim": 1.1}, 1.0),
    ],
)
def test_deepseek_scales_scores_by_how_far_the_context_is_stretched(
    tmp_path: Path, scaling: dict[str, Any], factor: float
) -> None:
    if scaling["rope_type"] == "default":
        scaling = {k: v for k, v in scaling.items() if k != "mscale_all_dim"}
    newer = latent(target(tmp_path / "a", "deepseek_v3", rope_parameters=scaling))
    assert newer.scale == pytest.approx(factor / math.sqrt(20), rel=1e-12)
    inner = {k: v for k, v in scaling.items() if k != "rope_theta"}
    older = latent(
        target(
            tmp_path / "b",
            "deepseek_v3",
            rope_parameters=REMOVED,
            rope_theta=500.0,
            rope_scaling=None if inner["rope_type"] == "default" else inner,
        )
    )
    assert older == newer


def drafting(layer: int, *parts: str) -> dict[str, Any]:
    """What marks a layer as one that drafts tokens, and more."""
    held = ("eh_proj", "enorm", "hnorm", *parts)
    return {f"model.layers.{layer}.{part}.weight": np.zeros(4, np.float32) for part in held}


def with_more(path: Path, name: str, more: dict[str, Any], drafts: object) -> Path:
    config, tensors = recorded(name)
    keys = changed(config, {"num_nextn_predict_layers": drafts})
    return write_safetensors_dir(path, keys, {**tensors, **more})


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe"])
def test_layers_that_draft_are_left(tmp_path: Path, name: str) -> None:
    layers = recorded(name)[0]["num_hidden_layers"]
    own = ("embed_tokens", "shared_head.norm", "shared_head.head", "input_layernorm")
    more = {**drafting(layers, *own), **drafting(layers + 1)}
    found = compiled(with_more(tmp_path / "a", name, more, 2))
    assert dict(found.left) == dict.fromkeys(more, "a layer that drafts tokens")
    assert any("10 tensors of layers that draft tokens" in note for note in found.notes)
    verdicts = {key.key: key.verdict for key in found.keys}
    assert verdicts["num_nextn_predict_layers"] == "consumed"
    for number, drafts in enumerate((1, 0, None, REMOVED)):
        assert not compiled(with_more(tmp_path / str(number), name, {}, drafts)).left


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe"])
@pytest.mark.parametrize(
    ("places", "drafts", "without", "odd", "message"),
    [
        ((0, 1), 1, "", "", "eh_proj.weight: layer {1} is behind the model's last, {n}"),
        ((0,), 0, "", "", "eh_proj.weight: layer {0} is behind the model's last, {n}"),
        ((0,), REMOVED, "", "", "`num_nextn_predict_layers` allows 0"),
        ((1,), 2, "", "", "layer {1} drafts tokens, but layer {0} before it is missing"),
        ((0,), 1, "enorm", "", "layer {0} is behind the model's last, {n}, but has no enorm"),
        ((0,), 1, "eh_proj", "", "but has no eh_proj.weight as layers that draft tokens do"),
        ((0,), 1, "hnorm", "", "but has no hnorm.weight as layers that draft tokens do"),
        ((0,), 1, "", "gist", "tensor model.layers.{0}.gist.weight: neither layers of the"),
        ((0,), -1, "", "", "`num_nextn_predict_layers` is -1, expected"),
    ],
)
def test_what_stands_behind_the_last_layer_must_draft(
    tmp_path: Path,
    name: str,
    places: tuple[int, ...],
    drafts: object,
    without: str,
    odd: str,
    message: str,
) -> None:
    layers = recorded(name)[0]["num_hidden_layers"]
    more = {}
    for place in places:
        more |= drafting(layers + place, *([odd] if odd else []))
    more = {key: value for key, value in more.items() if f".{without}." not in key}
    with pytest.raises(CompileError) as caught:
        compiled(with_more(tmp_path, name, more, drafts))
    assert message.format(layers, layers + 1, n=layers - 1) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_deepseek_routes_behind_its_first_layers(tmp_path: Path) -> None:
    found = target(tmp_path, "deepseek_v3")
    mixers = [layer.blocks[1].mixer for layer in found.layers]
    assert [type(mixer) for mixer in mixers] == [DenseFfn, RoutedFfn, RoutedFfn]
    routed = mixers[1]
    assert isinstance(routed, RoutedFfn)
    assert routed.router.groups is not None and routed.router.scale == 1.7
    assert routed.shared is not None and routed.shared.ffn.up.outputs == 24


# The others


def test_gpt_oss_alternates_windows_and_is_stretched_unless_told(tmp_path: Path) -> None:
    found = target(tmp_path / "a", "gpt_oss", layer_types=REMOVED)
    assert [softmax(found, i).window for i in range(3)] == [6, None, 6]
    assert softmax(found, 0).sinks == "target.layer.000/attention.sinks"
    unwindowed = target(tmp_path / "b", "gpt_oss", sliding_window=None, layer_types=REMOVED)
    assert softmax(unwindowed, 0).window is None
    rope = softmax(target(tmp_path / "c", "gpt_oss", rope_parameters=REMOVED), 0).rope
    assert rope is not None and rope.scaling is not None
    assert (rope.theta, rope.scaling.factor, rope.scaling.truncate) == (150000.0, 32.0, False)


def test_olmoe_without_a_clip(tmp_path: Path) -> None:
    assert softmax(target(tmp_path / "a", "olmoe", clip_qkv=None), 0).clip is None
    mixer = softmax(target(tmp_path / "b", "olmoe"), 0)
    assert mixer.clip == 0.8
    assert mixer.q_norm is not None and mixer.q_norm.width == 32
    assert mixer.k_norm is not None and mixer.k_norm.width == 16


def test_glm_turns_a_part_of_each_head(tmp_path: Path) -> None:
    config, tensors = recorded("glm4_moe")
    rope = {"rope_type": "default", "rope_theta": 500.0}
    keys = {"rope_parameters": rope, "partial_rotary_factor": REMOVED}
    found = compiled(write_safetensors_dir(tmp_path, changed(config, keys), tensors))
    half = softmax(found.graph.components[0], 0).rope
    assert half is not None and half.dims == 6
    assert softmax(found.graph.components[0], 0).o.bias is None
