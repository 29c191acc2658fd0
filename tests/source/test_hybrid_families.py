"""Families with recurrent layers: what their configurations say, in either style, and what not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from larql.errors import CompileError
from larql.format.graph import (
    Component,
    DenseFfn,
    GatedDelta,
    Kda,
    Recurrent,
    ShortConvolution,
    SoftmaxAttention,
    Ssm,
    state_schema,
)
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import Compiled, compile_checkpoint
from tests.builders.containers import make_container
from tests.builders.hybrids import REMOVED, changed, recorded, write_changed
from tests.builders.safetensors import write_safetensors_dir


def compiled(path: Path) -> Compiled:
    with open_checkpoint(path) as checkpoint:
        return compile_checkpoint(checkpoint)


def target(at: Path, name: str, /, **keys: object) -> Component:
    return compiled(write_changed(at, name, **keys)).graph.components[0]


def kinds(component: Component) -> list[type]:
    return [type(layer.blocks[0].mixer) for layer in component.layers]


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("qwen3_5", {"layer_types": ["linear_attention"] * 3}, "'3 entries' but `num_hidden_lay"),
        ("qwen3_5", {"layer_types": ["sliding_attention"] * 4}, "holds 'sliding_attention'"),
        ("qwen3_5", {"full_attention_interval": 3}, "`full_attention_interval` is 3"),
        ("qwen3_5", {"partial_rotary_factor": 0.5}, "partial_rotary_factor` is 0.5 but"),
        (
            "qwen3_5",
            {"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 2.0}},
            "most 1",
        ),
        ("qwen3_5", {"rope_theta": 7.0}, "`rope_theta` is 7.0 but"),
        ("qwen3_5", {"attn_output_gate": False}, "`attn_output_gate` is False"),
        ("qwen3_5", {"output_gate_type": "sigmoid"}, "`output_gate_type` is 'sigmoid'"),
        ("qwen3_5", {"mlp_only_layers": [1]}, "`mlp_only_layers` is"),
        ("qwen3_5", {"linear_num_value_heads": 3}, "`linear_num_value_heads` is 3, no multiple"),
        ("qwen3_5", {"linear_conv_kernel_dim": 3}, "conv1d.weight has shape"),
        ("qwen3_5", {"hidden_act": "snake"}, "`hidden_act` is 'snake'"),
        ("qwen3_5", {"surprise": 1}, "`surprise`"),
        ("qwen3_5", {"mtp_num_hidden_layers": 3}, "`mtp_num_hidden_layers` is 3"),
        (
            "qwen3_next",
            {"mlp_only_layers": [0, 1, 2]},
            "tensor model.layers.3.mlp.gate.weight is missing",
        ),
        ("qwen3_next", {"mlp_only_layers": [0.5]}, "`mlp_only_layers` is not an array of integers"),
        ("qwen3_next", {"linear_num_key_heads": 3}, "has shape"),
        ("granitemoehybrid", {"layer_types": ["mamba2"] * 4}, "holds 'mamba2'"),
        ("granitemoehybrid", {"layers_block_type": ["mamba"] * 4}, "`layer_types[2]` is"),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, "is 'alibi'"),
        ("granitemoehybrid", {"mamba_d_head": 9}, "8 heads of 9"),
        ("granitemoehybrid", {"num_local_experts": 4}, "block_sparse_moe"),
        ("granitemoehybrid", {"num_local_experts": REMOVED}, "block_sparse_moe"),
        ("granitemoehybrid", {"time_step_limit": [0.5]}, "`time_step_limit` is [0.5]"),
        ("granitemoehybrid", {"time_step_limit": [-1.0, 2.0]}, "neither below 0"),
        ("granitemoehybrid", {"time_step_limit": [3.0, 2.0]}, "first bound is above"),
        ("granitemoehybrid", {"mamba_proj_bias": False}, "in_proj.bias"),
        ("granitemoehybrid", {"normalization_function": "layernorm"}, "is 'layernorm'"),
        ("granitemoehybrid", {"mamba_n_groups": 3}, "has shape"),
        ("lfm2", {"full_attn_idxs": [0]}, "`full_attn_idxs` is (0,)"),
        ("lfm2", {"layer_types": ["mamba"] * 4}, "holds 'mamba'"),
        ("lfm2", {"theta": 3.0}, "`theta` is 3.0 but"),
        ("lfm2", {"conv_dim": 48}, "`conv_dim` is 48"),
        ("lfm2", {"block_use_swiglu": False}, "`block_use_swiglu` is False"),
        ("lfm2", {"block_ff_dim": 71}, "`block_ff_dim` is 71 but"),
        ("lfm2", {"tie_embedding": True}, "`tie_embedding` is True but"),
        ("lfm2", {"block_norm_eps": 0.5}, "`block_norm_eps` is 0.5"),
        ("lfm2", {"conv_bias": False}, "conv.conv.bias: nothing"),
        (
            "kimi_linear-delta",
            {"mlp_layer_types": REMOVED},
            "layers.1.block_sparse_moe.shared_experts.gate_proj.weight is missing",
        ),
        ("kimi_linear-delta", {"first_k_dense_replace": 1}, "`first_k_dense_replace` is 1"),
        (
            "kimi_linear-delta",
            {"linear_attn_config": {"num_heads": 4}},
            "but `linear_attn_config.num_heads` is 4",
        ),
        (
            "kimi_linear-delta",
            {"rope_scaling": {"rope_type": "ntk"}},
            "rope_type` is 'ntk'",
        ),
        ("kimi_linear-delta", {"rope_parameters": {"type": "dynamic"}}, "type` is 'dynamic'"),
        ("kimi_linear-delta", {"moe_layer_freq": 2}, "`moe_layer_freq` is 2"),
        ("kimi_linear-delta", {"max_position_embeddings": 65}, "`max_position_embeddings` is 65"),
        ("kimi_linear-delta", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        (
            "kimi_linear-delta",
            {"linear_attn_config": {"full_attn_layers": [], "kda_layers": [1, 2]}},
            "do not name each of layers 1 to 3 once",
        ),
    ],
)
def test_what_is_refused_is_named(
    tmp_path: Path, name: str, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(CompileError) as caught:
        target(tmp_path / "m", name, **keys)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_delta_layers_come_by_a_list_or_by_an_interval(tmp_path: Path) -> None:
    usual = target(tmp_path / "usual", "qwen3_5")
    assert kinds(usual) == [GatedDelta] * 3 + [SoftmaxAttention]
    assert target(tmp_path / "default", "qwen3_5", layer_types=REMOVED) == usual
    both = target(tmp_path / "both", "qwen3_5", full_attention_interval=4)
    assert both == usual
    rope = usual.layers[3].blocks[0].mixer.rope  # type: ignore[union-attr]
    assert rope is not None and (rope.dims, rope.theta) == (4, 500.0)
    delta = usual.layers[0].blocks[0].mixer
    assert isinstance(delta, GatedDelta)
    assert delta.norm.offset == 0.0 and usual.head.norm.offset == 1.0
    assert [type(s) for s in state_schema(usual)].count(Recurrent) == 3


@pytest.mark.parametrize(
    ("keys", "dims"),
    [
        ({"rope_parameters": {"rope_theta": 5.0}}, 4),
        ({"rope_parameters": {"rope_theta": 5.0}, "partial_rotary_factor": 0.5}, 8),
        ({"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 1.0}}, 16),
        (
            {
                "rope_parameters": REMOVED, "rope_theta": 5.0,
                "rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.75},
            },
            12,
        ),
    ],
)  # fmt: skip
def test_the_share_of_dims_that_turn(tmp_path: Path, keys: dict[str, object], dims: int) -> None:
    component = target(tmp_path / "m", "qwen3_5", **keys)
    mixer = component.layers[3].blocks[0].mixer
    assert isinstance(mixer, SoftmaxAttention) and mixer.rope is not None
    assert (mixer.rope.dims, mixer.rope.theta) == (dims, 5.0)


def test_a_tied_head_may_be_stated_outside_the_text_model_alone(tmp_path: Path) -> None:
    config, tensors = recorded("qwen3_5")
    inner = changed(config, {"tie_word_embeddings": REMOVED})
    outer = {"model_type": "qwen3_5", "text_config": inner, "tie_word_embeddings": True}
    del tensors["lm_head.weight"]
    directory = write_safetensors_dir(tmp_path / "m", outer, tensors)
    assert compiled(directory).graph.components[0].head.tied


def test_packed_projections_are_dealt_out_head_by_head(tmp_path: Path) -> None:
    config, tensors = recorded("qwen3_next")
    directory = write_safetensors_dir(tmp_path / "m", config, tensors)
    made = make_container(directory, tmp_path / "m.vindex3")
    at = "model.layers.1.linear_attn."
    wide, small = tensors[f"{at}in_proj_qkvz.weight"], tensors[f"{at}in_proj_ba.weight"]
    # 2 key heads of 8; each has 3 value heads of 12
    by_head, pairs = wide.reshape(2, 2 * 8 + 2 * 36, 32), small.reshape(2, 6, 32)
    expected = {
        "q": by_head[:, :8], "k": by_head[:, 8:16], "v": by_head[:, 16:52], "gate": by_head[:, 52:],
        "beta": pairs[:, :3], "decay": pairs[:, 3:],
    }  # fmt: skip
    for part, rows in expected.items():
        stored = made.operands[f"target.layer.001/delta.{part}.weight"]
        raw = b"".join(made.segment(stored.segment).chunks(stored.tensor))
        assert raw == np.ascontiguousarray(rows).tobytes(), part
    taps = tensors[f"{at}conv1d.weight"].reshape(-1, 3)
    for part, rows in (("q", taps[:16]), ("k", taps[16:32]), ("v", taps[32:])):
        stored = made.operands[f"target.layer.001/delta.{part}_conv.weight"]
        assert b"".join(made.segment(stored.segment).chunks(stored.tensor)) == rows.tobytes()


def test_a_draft_head_of_packed_layers_is_left_and_named(tmp_path: Path) -> None:
    config, tensors = recorded("qwen3_next")
    tensors["mtp.fc.weight"] = np.ones((2, 2), np.float32)
    found = compiled(write_safetensors_dir(tmp_path / "m", config, tensors))
    problem = "tensor mtp.fc.weight has shape [2, 2], expected"
    assert list(found.left) == ["mtp.fc.weight"]
    assert found.left["mtp.fc.weight"].startswith(problem)
    assert any(
        note.startswith(f"warning: the draft head was left behind: {problem}")
        for note in found.notes
    )


def test_granite_s_numbers(tmp_path: Path) -> None:
    component = target(tmp_path / "m", "granitemoehybrid")
    assert kinds(component) == [Ssm, Ssm, SoftmaxAttention, Ssm]
    assert component.embed.scale == 3.0 and component.head.multiplier == 1 / 3.0
    assert {b.residual_scale for layer in component.layers for b in layer.blocks} == {0.6}
    ssm, attention = (component.layers[i].blocks[0].mixer for i in (0, 2))
    assert isinstance(ssm, Ssm) and isinstance(attention, SoftmaxAttention)
    assert (ssm.step_least, ssm.step_most, ssm.groups) == (0.3, 0.9, 2)
    assert (attention.scale, attention.rope) == (0.3, None)
    ffn = component.layers[0].blocks[1].mixer
    assert isinstance(ffn, DenseFfn) and ffn.up.outputs == 40
    assert target(tmp_path / "auto", "granitemoehybrid", mamba_d_head=8) == component


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ([0.0, {"__float__": "Infinity"}], (0.0, None)),
        ([0, float("inf")], (0.0, None)),
        ([0.1, 2], (0.1, 2.0)),
        (REMOVED, (0.0, None)),
        (None, (0.0, None)),
    ],
)
def test_limits_of_a_step(
    tmp_path: Path, limit: object, expected: tuple[float, float | None]
) -> None:
    component = target(tmp_path / "m", "granitemoehybrid", time_step_limit=limit)
    ssm = component.layers[0].blocks[0].mixer
    assert isinstance(ssm, Ssm)
    assert (ssm.step_least, ssm.step_most) == expected


def test_layers_of_short_convolutions_by_list_or_index(tmp_path: Path) -> None:
    usual = target(tmp_path / "usual", "lfm2")
    assert kinds(usual) == [ShortConvolution, SoftmaxAttention, ShortConvolution, ShortConvolution]
    older = target(tmp_path / "older", "lfm2", layer_types=REMOVED, full_attn_idxs=[1])
    assert older == usual
    ffn = usual.layers[0].blocks[1].mixer
    assert isinstance(ffn, DenseFfn)
    assert ffn.up.outputs == 56  # 70 * 2/3 = 46.7, cut to 46; times 1.1, cut to 50; up to 8's


def test_kimi_s_layers_are_counted_from_one(tmp_path: Path) -> None:
    usual = target(tmp_path / "usual", "kimi_linear-delta")
    assert kinds(usual) == [Kda] * 3
    lists = {
        "full_attn_layers": [], "kda_layers": [3, 1, 2], "head_dim": 12, "num_heads": 3,
        "short_conv_kernel_size": 4,
    }  # fmt: skip
    keys = ("layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim")
    older = target(
        tmp_path / "older", "kimi_linear-delta", linear_attn_config=lists,
        mlp_layer_types=REMOVED, first_k_dense_replace=3, **dict.fromkeys(keys, REMOVED),
    )  # fmt: skip
    assert older == usual


def test_dense_layers_of_kimi_may_stand_where_routed_ones_do(tmp_path: Path) -> None:
    config, tensors = recorded("kimi_linear-delta")
    moved = {k.replace("block_sparse_moe", "mlp"): v for k, v in tensors.items()}
    assert moved.keys() != tensors.keys()
    components = [
        compiled(write_safetensors_dir(tmp_path / str(i), config, found)).graph.components
        for i, found in enumerate((tensors, moved))
    ]
    assert components[0] == components[1]
