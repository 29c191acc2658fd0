"""Qwen3.5 with experts: packed, a gated shared one, in delta layers and full ones."""

from __future__ import annotations

from recipe import Config, Recipe, older_style
from recurrent import recurrent_weights

_BASE = {
    "model_type": "qwen3_5_moe_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-4,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 12,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.25,
    },
}


def _by_interval(config: Config) -> Config:
    older = older_style(config)
    older["full_attention_interval"] = 2
    return older


RECIPES = (
    Recipe(
        "qwen3_5_moe",
        {
            **_BASE,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
        },
        draw=recurrent_weights,
    ),
    Recipe(
        "qwen3_5_moe-older",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "num_experts_per_tok": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "tie_word_embeddings": True,
        },
        dtype="bfloat16",
        shards=2,
        rewrite=_by_interval,
        draw=recurrent_weights,
    ),
)
