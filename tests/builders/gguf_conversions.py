"""How checkpoints of latent attention and recurrent layers become GGUF files.

As :mod:`tests.builders.gguf_names`, from what llama.cpp's converter is described to do; where it
drops what a configuration states, the file says it by the key that a reader looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tests.builders.gguf import f32, u32
from tests.builders.gguf_names import (
    NEXT_NORM,
    POST_NORMS,
    Array,
    Conversion,
    expert_keys,
    rope_of,
    yarn_keys,
)

Config = Mapping[str, Any]
Arrays = dict[str, Array]


def _each(tensors: Arrays, ending: str) -> list[tuple[str, str]]:
    """Names with an ending, and what stands before it."""
    return [(name, name.removesuffix(ending)) for name in tensors if name.endswith(ending)]


def _negate(tensors: Arrays) -> None:
    for name, _ in _each(tensors, ".A_log"):
        tensors[name] = -np.exp(tensors[name].astype("<f8"))


def _squeeze(tensors: Arrays, ending: str) -> None:
    for name, _ in _each(tensors, ending):
        tensors[name] = tensors[name][:, 0]


def _halve(tensors: Arrays, ending: str, first: str, second: str) -> None:
    """Rows of gate, then rows of up, as two tensors."""
    for name, before in _each(tensors, ending):
        rows = tensors.pop(name)
        tensors[before + first], tensors[before + second] = np.split(rows, 2, axis=-2)


# Latent attention

LATENT_NAMES = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
}


def latents_apart(tensors: Arrays, config: Config) -> None:
    """Keys' part of each head turned, values' part by itself."""
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    for name, before in _each(tensors, "kv_b_proj.weight"):
        rows = tensors.pop(name)
        rows = rows.reshape(heads, -1, rows.shape[-1])
        tensors[f"{before}k_b_proj.weight"] = rows[:, :nope].swapaxes(1, 2)
        tensors[f"{before}v_b_proj.weight"] = rows[:, nope:]


def neighbours_turn(tensors: Arrays, config: Config) -> None:
    """Rows of rotated parts so that neighbours turn together, where they are halves."""
    nope, dims = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    order = np.arange(dims).reshape(2, -1).T.ravel()
    heads = config["num_attention_heads"]
    for name, _ in _each(tensors, "self_attn.q_proj.weight"):
        rows = tensors[name].reshape(heads, nope + dims, -1).copy()
        rows[:, nope:] = rows[:, nope:][:, order]
        tensors[name] = rows.reshape(tensors[name].shape)
    for name, _ in _each(tensors, "kv_a_proj_with_mqa.weight"):
        rows = tensors[name].copy()
        rows[-dims:] = rows[-dims:][order]
        tensors[name] = rows


def _latent_keys(config: Config, *, apart: bool) -> dict[str, object]:
    rope, latent, value = (
        config[key] for key in ("qk_rope_head_dim", "kv_lora_rank", "v_head_dim")
    )
    key = config["qk_nope_head_dim"] + rope
    keys: dict[str, object] = {
        "attention.kv_lora_rank": u32(latent),
        "rope.dimension_count": u32(rope),
        "attention.head_count_kv": u32(1 if apart else config["num_attention_heads"]),
        "attention.key_length": u32(latent + rope if apart else key),
        "attention.value_length": u32(latent if apart else value),
    }
    if config.get("q_lora_rank"):
        keys["attention.q_lora_rank"] = u32(config["q_lora_rank"])
    if apart:
        keys |= {"attention.key_length_mla": u32(key), "attention.value_length_mla": u32(value)}
    return keys


def _deepseek_keys(config: Config, *, apart: bool) -> dict[str, object]:
    keys = {
        **_latent_keys(config, apart=apart),
        **expert_keys(config),
        "expert_group_count": u32(config["n_group"]),
        "expert_group_used_count": u32(config["topk_group"]),
        "expert_shared_count": u32(config["n_shared_experts"]),
        "leading_dense_block_count": u32(config["first_k_dense_replace"]),
        "expert_weights_scale": f32(config["routed_scaling_factor"]),
        "vocab_size": u32(config["vocab_size"]),
    }
    if config["norm_topk_prob"]:
        keys["expert_weights_norm"] = True
    if rope_of(config).get("rope_type") == "yarn":
        keys |= yarn_keys(config)
        growth = 0.1 * rope_of(config)["mscale_all_dim"]
        keys["rope.scaling.yarn_log_multiplier"] = f32(growth)
    return keys


DEEPSEEK = Conversion(
    "deepseek2",
    names=LATENT_NAMES,
    keys=lambda config: _deepseek_keys(config, apart=True),
    prepare=latents_apart,
)
DEEPSEEK_WHOLE = replace(
    DEEPSEEK, keys=lambda config: _deepseek_keys(config, apart=False), prepare=None
)


def _halves_apart(tensors: Arrays, config: Config) -> None:
    neighbours_turn(tensors, config)
    latents_apart(tensors, config)


DEEPSEEK_HALVES = replace(DEEPSEEK, prepare=_halves_apart)


def _kimi_prepare(tensors: Arrays, config: Config) -> None:
    _negate(tensors)
    latents_apart(tensors, config)
    for part in "qkv":
        for name, _ in _each(tensors, f"{part}_conv1d.weight"):
            channels, _one, taps = tensors[name].shape
            tensors[name] = tensors[name].reshape(1, channels, 1, taps)


def _kimi_keys(config: Config) -> dict[str, object]:
    linear = config["linear_attn_config"]
    full = [number - 1 for number in linear["full_attn_layers"]]
    layers = range(config["num_hidden_layers"])
    experts = expert_keys({**config, "num_experts_per_tok": config["num_experts_per_token"]})
    return {
        **_latent_keys(config, apart=True),
        **experts,
        # What is written of values is a default, which nothing reads.
        "attention.value_length": u32(3),
        "attention.head_count_kv": [1 if i in full else 0 for i in layers],
        "context_length": u32(config.get("model_max_length") or 64),
        "kda.head_dim": u32(linear["head_dim"]),
        "ssm.conv_kernel": u32(linear["short_conv_kernel_size"]),
        "expert_group_count": u32(config["num_expert_group"]),
        "expert_group_used_count": u32(config["topk_group"]),
        "expert_shared_count": u32(config["num_shared_experts"]),
        "expert_gating_func": u32(2),
        "expert_weights_scale": f32(config["routed_scaling_factor"]),
        "leading_dense_block_count": u32(config["first_k_dense_replace"]),
    }


_MOE = "block_sparse_moe"
KIMI = Conversion(
    "kimi-linear",
    names={
        **LATENT_NAMES,
        "self_attn.A_log": "ssm_a",
        "self_attn.dt_bias": "ssm_dt.bias",
        "self_attn.b_proj": "ssm_beta",
        "self_attn.f_a_proj": "ssm_f_a",
        "self_attn.f_b_proj": "ssm_f_b",
        "self_attn.g_a_proj": "ssm_g_a",
        "self_attn.g_b_proj": "ssm_g_b",
        "self_attn.o_norm": "ssm_norm",
        "self_attn.q_conv1d": "ssm_conv1d_q",
        "self_attn.k_conv1d": "ssm_conv1d_k",
        "self_attn.v_conv1d": "ssm_conv1d_v",
        **{f"{_MOE}.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        **{
            f"{_MOE}.shared_experts.{part}_proj": f"ffn_{part}_shexp"
            for part in ("gate", "up", "down")
        },
        f"{_MOE}.gate.e_score_correction": "exp_probs_b",
    },
    keys=_kimi_keys,
    prepare=_kimi_prepare,
)

# Gated delta layers

DELTA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_qkvz": "ssm_in",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}


def _delta_prepare(tensors: Arrays, config: Config) -> None:
    _negate(tensors)
    _squeeze(tensors, "conv1d.weight")
    for name, before in _each(tensors, "norm.weight"):
        if not before.endswith("linear_attn."):
            tensors[name] = tensors[name] + 1


def _tile(tensors: Arrays, config: Config) -> None:
    """Value heads in turn over the key heads, where they lay side by side."""
    _delta_prepare(tensors, config)
    key_heads, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    order = np.arange(heads).reshape(key_heads, -1).T.ravel()
    dim = config["linear_value_head_dim"]
    rows = (order[:, None] * dim + np.arange(dim)).ravel()
    behind = 2 * key_heads * config["linear_key_head_dim"]
    mixed = np.concatenate([np.arange(behind), behind + rows])
    places = {
        "in_proj_qkv.weight": mixed,
        "conv1d.weight": mixed,
        "in_proj_z.weight": rows,
        "in_proj_a.weight": order,
        "in_proj_b.weight": order,
        "A_log": order,
        "dt_bias": order,
    }
    for ending, place in places.items():
        for name, _ in _each(tensors, f"linear_attn.{ending}"):
            tensors[name] = tensors[name][place]
    for name, _ in _each(tensors, "linear_attn.out_proj.weight"):
        tensors[name] = tensors[name][:, rows]


def _unpack(tensors: Arrays, config: Config) -> None:
    """Queries, keys and values of all heads in one tensor, gates in another."""
    _delta_prepare(tensors, config)
    key_heads, dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    wide = config["linear_num_value_heads"] // key_heads * config["linear_value_head_dim"]
    for name, before in _each(tensors, "in_proj_qkvz.weight"):
        rows = tensors.pop(name)
        rows = rows.reshape(key_heads, -1, rows.shape[-1])
        parts = np.split(rows, np.cumsum([dim, dim, wide]), axis=1)
        q, k, v, z = (part.reshape(-1, part.shape[-1]) for part in parts)
        tensors[f"{before}in_proj_qkv.weight"] = np.concatenate([q, k, v])
        tensors[f"{before}in_proj_z.weight"] = z


def _delta_keys(config: Config) -> dict[str, object]:
    heads, dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    share = rope_of(config).get("partial_rotary_factor") or config.get("partial_rotary_factor")
    keys: dict[str, object] = {
        "ssm.conv_kernel": u32(config["linear_conv_kernel_dim"]),
        "ssm.state_size": u32(config["linear_key_head_dim"]),
        "ssm.group_count": u32(config["linear_num_key_heads"]),
        "ssm.time_step_rank": u32(heads),
        "ssm.inner_size": u32(heads * dim),
        "full_attention_interval": u32(config.get("full_attention_interval") or 4),
        "rope.dimension_count": u32(int(config["head_dim"] * (share or 0.25))),
        "rope.dimension_sections": [1, 1, 0, 0],
    }
    if "layer_types" in config:
        kinds = config["layer_types"]
        keys["attention.recurrent_layers"] = [kind == "linear_attention" for kind in kinds]
    if config.get("num_experts"):
        keys |= expert_keys(config)
        shared = config["shared_expert_intermediate_size"]
        keys["expert_shared_feed_forward_length"] = u32(shared)
        keys["expert_weights_norm"] = config.get("norm_topk_prob", True)
    return keys


def _delta(architecture: str, prepare: Callable[[Arrays, Config], None]) -> Conversion:
    return Conversion(architecture, names=DELTA_NAMES, keys=_delta_keys, prepare=prepare)


QWEN35 = _delta("qwen35", _tile)
QWEN35_MOE = _delta("qwen35moe", _tile)
QWEN3_NEXT = _delta("qwen3next", _unpack)
QWEN3_NEXT_PACKED = _delta("qwen3next", _delta_prepare)

# State spaces

GRANITE_NAMES = {
    "mamba.A_log": "ssm_a",
    "mamba.D": "ssm_d",
    "mamba.dt_bias": "ssm_dt.bias",
    "mamba.conv1d": "ssm_conv1d",
    "mamba.in_proj": "ssm_in",
    "mamba.norm": "ssm_norm",
    "mamba.out_proj": "ssm_out",
    f"{_MOE}.router.layer": "ffn_gate_inp",
    f"{_MOE}.gate_exps": "ffn_gate_exps",
    f"{_MOE}.up_exps": "ffn_up_exps",
    f"{_MOE}.output_linear": "ffn_down_exps",
}


def _granite_prepare(tensors: Arrays, config: Config) -> None:
    _negate(tensors)
    _squeeze(tensors, "conv1d.weight")
    for ending in (".A_log", "mamba.D"):
        for name, _ in _each(tensors, ending):
            tensors[name] = tensors[name][:, None]
    for name, _ in _each(tensors, "mamba.norm.weight"):
        tensors[name] = tensors[name].reshape(config["mamba_n_groups"], -1)
    _halve(tensors, f"{_MOE}.input_linear.weight", f"{_MOE}.gate_exps.weight",
           f"{_MOE}.up_exps.weight")  # fmt: skip
    _halve(tensors, "shared_mlp.input_linear.weight", "shared_mlp.gate.weight",
           "shared_mlp.up.weight")  # fmt: skip


def _granite_keys(config: Config) -> dict[str, object]:
    kinds = config.get("layer_types") or config.get("layers_block_type")
    heads = config["mamba_n_heads"]
    inner = config["mamba_expand"] * config["hidden_size"]
    kv_heads = config["num_key_value_heads"]
    attention = ("attention", "full_attention")
    keys: dict[str, object] = {
        "attention.head_count_kv": [kv_heads if kind in attention else 0 for kind in kinds],
        "ssm.conv_kernel": u32(config["mamba_d_conv"]),
        "ssm.state_size": u32(config["mamba_d_state"]),
        "ssm.group_count": u32(config["mamba_n_groups"]),
        "ssm.time_step_rank": u32(heads),
        "ssm.inner_size": u32(inner),
        "rope.dimension_count": u32(config["hidden_size"] // config["num_attention_heads"]),
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        "attention.scale": f32(config["attention_multiplier"]),
        "embedding_scale": f32(config["embedding_multiplier"]),
        "residual_scale": f32(config["residual_multiplier"]),
        "logit_scale": f32(config["logits_scaling"]),
        "expert_shared_feed_forward_length": u32(config["shared_intermediate_size"]),
        **expert_keys(config),
    }
    return keys


def _granite(architecture: str, *, routed: bool) -> Conversion:
    suffix = "_shexp" if routed else ""
    ffn = {
        "shared_mlp.gate": f"ffn_gate{suffix}",
        "shared_mlp.up": f"ffn_up{suffix}",
        "shared_mlp.output_linear": f"ffn_down{suffix}",
    }
    return Conversion(
        architecture,
        adjacent=True,
        names={**GRANITE_NAMES, **ffn},
        keys=_granite_keys,
        prepare=_granite_prepare,
    )


GRANITE_HYBRID = _granite("granitehybrid", routed=False)
GRANITE_HYBRID_ROUTED = _granite("granitehybrid", routed=True)
GRANITE_MOE = _granite("granitemoe", routed=False)

# Layers of two geometries


def _gemma4_prepare(tensors: Arrays, config: Config) -> None:
    for name, before in _each(tensors, "experts.gate_up_proj"):
        tensors[f"{before}gate_up_exps.weight"] = tensors.pop(name)
    for name, before in _each(tensors, "experts.down_proj"):
        tensors[f"{before}down_exps.weight"] = tensors.pop(name)


def _gemma4_keys(config: Config) -> dict[str, object]:
    layers, ropes = config["num_hidden_layers"], config.get("rope_parameters") or {}
    windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
    own = next(
        (
            config["per_layer_config"][str(i)]
            for i in range(layers)
            if config.get("per_layer_config") and not windowed[i]
        ),
        {},
    )
    dim, full = config["head_dim"], config.get("global_head_dim") or own["head_dim"]
    kv_heads = config["num_key_value_heads"]
    full_heads = (
        config.get("num_global_key_value_heads") or own.get("num_key_value_heads") or kv_heads
    )
    shared = config["num_kv_shared_layers"]
    width = config["intermediate_size"]
    wide = 2 * width if config.get("use_double_wide_mlp") else width
    keys: dict[str, object] = {
        "attention.sliding_window": u32(config["sliding_window"]),
        "attention.sliding_window_pattern": windowed,
        "attention.shared_kv_layers": u32(shared),
        "attention.key_length": u32(full),
        "attention.value_length": u32(full),
        "attention.key_length_swa": u32(dim),
        "attention.value_length_swa": u32(dim),
        "rope.dimension_count": u32(full),
        "rope.dimension_count_swa": u32(dim),
        "rope.freq_base": f32(ropes.get("full_attention", {}).get("rope_theta", 1e6)),
        "rope.freq_base_swa": f32(ropes.get("sliding_attention", {}).get("rope_theta", 1e4)),
        "attention.head_count_kv": [kv_heads if swa else full_heads for swa in windowed],
        "feed_forward_length": [wide if i >= layers - shared else width for i in range(layers)],
        "embedding_length_per_layer_input": u32(config.get("hidden_size_per_layer_input") or 0),
    }
    if config.get("final_logit_softcapping"):
        keys["final_logit_softcapping"] = f32(config["final_logit_softcapping"])
    if config.get("enable_moe_block"):
        keys |= expert_keys({**config, "num_experts_per_tok": config["top_k_experts"]})
    return keys


def _gemma4_tensors(config: Config) -> dict[str, list[float]]:
    rope = (config.get("rope_parameters") or {}).get("full_attention", {})
    full = config.get("global_head_dim") or max(
        own.get("head_dim", 0) for own in config["per_layer_config"].values()
    )
    turning = int(rope.get("partial_rotary_factor", 0.25) * full / 2)
    return {"rope_freqs.weight": [1.0] * turning + [1e30] * (full // 2 - turning)}


GEMMA4 = Conversion(
    "gemma4",
    names={
        **POST_NORMS,
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "layer_scalar": "layer_output_scale.weight",
        "router.proj": "ffn_gate_inp",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "gate_up_exps": "ffn_gate_up_exps",
        "down_exps": "ffn_down_exps",
        "per_layer_input_gate": "inp_gate",
        "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm",
    },
    keys=_gemma4_keys,
    tensors=_gemma4_tensors,
    outside={
        "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
        "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
        "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    },
    prepare=_gemma4_prepare,
)


def _lfm2_keys(config: Config) -> dict[str, object]:
    full = config.get("full_attn_idxs")
    kinds = config.get("layer_types") or [
        "full_attention" if i in full else "conv" for i in range(config["num_hidden_layers"])
    ]
    kv_heads = config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [kv_heads if k == "full_attention" else 0 for k in kinds],
        "shortconv.l_cache": u32(config["conv_L_cache"]),
        "feed_forward_length": u32(config["block_ff_dim"]),
        "vocab_size": u32(config["vocab_size"]),
    }


LFM2 = Conversion(
    "lfm2",
    names={
        "operator_norm": "attn_norm",
        "ffn_norm": "ffn_norm",
        "conv.conv": "shortconv.conv",
        "conv.in_proj": "shortconv.in_proj",
        "conv.out_proj": "shortconv.out_proj",
        "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm",
        "feed_forward.w1": "ffn_gate",
        "feed_forward.w3": "ffn_up",
        "feed_forward.w2": "ffn_down",
    },
    keys=_lfm2_keys,
    outside={"model.embedding_norm.weight": "token_embd_norm.weight"},
    prepare=lambda tensors, config: _squeeze(tensors, "conv.conv.weight"),
)
SEED_OSS = Conversion("seed_oss", names=NEXT_NORM)
