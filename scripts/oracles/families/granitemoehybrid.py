"""Granite 4: dense attention with rope, and state-space layers with groups and a limited step."""

from __future__ import annotations

from recipe import Config, Recipe, older_style
from recurrent import recurrent_weights

_BASE = {
    "model_type": "granitemoehybrid",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "shared_intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-4,
    "num_local_experts": 0,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.6,
    "logits_scaling": 3.0,
    "pad_token_id": None,
}


def _older_types(config: Config) -> Config:
    older = older_style(config)
    older["layer_types"] = ["mamba", "attention", "mamba", "mamba"]
    older["time_step_limit"] = [0.0, float("inf")]
    return older


RECIPES = (
    Recipe(
        "granitemoehybrid-routed",
        {
            **_BASE,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "intermediate_size": 8,
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "position_embedding_type": "nope",
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 8,
        },
        draw=recurrent_weights,
    ),
    Recipe(
        "granitemoehybrid",
        {
            **_BASE,
            "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention"],
            "position_embedding_type": "nope",
            "mamba_n_heads": 8,
            "mamba_d_head": "auto",
            "mamba_n_groups": 2,
            "mamba_d_state": 10,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_chunk_size": 8,
            "mamba_proj_bias": True,
            "time_step_limit": [0.3, 0.9],
        },
        draw=recurrent_weights,
    ),
    Recipe(
        "granitemoehybrid-dense",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention"] * 3,
            "attention_bias": True,
            "position_embedding_type": "rope",
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
        },
        draw=recurrent_weights,
    ),
    Recipe(
        "granitemoehybrid-older",
        {
            **_BASE,
            "layer_types": [
                "linear_attention",
                "full_attention",
                "linear_attention",
                "linear_attention",
            ],
            "position_embedding_type": "nope",
            "tie_word_embeddings": True,
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
            "mamba_conv_bias": False,
        },
        dtype="bfloat16",
        shards=3,
        rewrite=_older_types,
        draw=recurrent_weights,
    ),
)
