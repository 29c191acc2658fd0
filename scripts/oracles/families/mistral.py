"""Mistral: a window shorter than the prompt, on all layers or some; heads of an odd width."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "mistral",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}

RECIPES = (
    Recipe(
        "mistral",
        {
            **_BASE,
            "head_dim": 12,
            "sliding_window": 7,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 300.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 3.0,
                "beta_slow": 0.5,
                "truncate": False,
                "attention_factor": 1.25,
            },
        },
    ),
    Recipe(
        "mistral-mixed",
        {
            **_BASE,
            "head_dim": 12,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        },
        dtype="bfloat16",
    ),
    Recipe(
        "mistral-yarn",
        {
            **_BASE,
            "head_dim": 16,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 4.0,
                "beta_slow": 1.0,
            },
        },
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
