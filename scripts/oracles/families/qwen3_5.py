"""Qwen3.5: three delta layers and a full one; shared key heads, odd widths, a partial rotation."""

from __future__ import annotations

from recipe import Config, Recipe, older_style
from recurrent import recurrent_weights

_BASE = {
    "model_type": "qwen3_5_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}


def _by_interval(config: Config) -> Config:
    older = older_style(config)
    older["full_attention_interval"] = 2
    return older


RECIPES = (
    Recipe(
        "qwen3_5",
        {
            **_BASE,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [1, 1, 0],
                "mrope_interleaved": True,
            },
        },
        draw=recurrent_weights,
    ),
    Recipe(
        "qwen3_5-older",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "tie_word_embeddings": True,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
            },
        },
        dtype="bfloat16",
        shards=3,
        rewrite=_by_interval,
        draw=recurrent_weights,
    ),
)
