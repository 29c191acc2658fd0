"""Kimi Linear: delta attention with a decay for each channel; without experts."""

from __future__ import annotations

from recipe import Config, Recipe
from recurrent import recurrent_weights

_BASE = {
    "model_type": "kimi_linear",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-4,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}


def _published(config: Config) -> Config:
    """Rewrite as the published checkpoints are: layers in two lists, other names for numbers."""
    older = dict(config)
    types = older.pop("layer_types")
    older["linear_attn_config"] = {
        "full_attn_layers": [i + 1 for i, kind in enumerate(types) if kind == "full_attention"],
        "kda_layers": [i + 1 for i, kind in enumerate(types) if kind == "linear_attention"],
        "head_dim": older.pop("linear_head_dim"),
        "num_heads": older.pop("linear_num_heads"),
        "short_conv_kernel_size": older.pop("linear_conv_kernel_dim"),
    }
    older["first_k_dense_replace"] = older.pop("mlp_layer_types").count("dense")
    older["mla_use_nope"] = True
    older["rope_theta"], older["rope_scaling"] = 10000.0, None
    older["torch_dtype"] = older.pop("dtype")
    return older


RECIPES = (
    Recipe(
        "kimi_linear",
        {
            **_BASE,
            "num_hidden_layers": 4,
            "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense"] * 4,
            "max_position_embeddings": 64,
            "linear_head_dim": 16,
            "linear_num_heads": 2,
            "linear_conv_kernel_dim": 3,
        },
        dtype="bfloat16",
        shards=3,
        rewrite=_published,
        draw=recurrent_weights,
    ),
    Recipe(
        "kimi_linear-delta",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention"] * 3,
            "mlp_layer_types": ["dense"] * 3,
            "max_position_embeddings": 64,
            "linear_head_dim": 12,
            "linear_num_heads": 3,
            "linear_conv_kernel_dim": 4,
        },
        draw=recurrent_weights,
    ),
)
