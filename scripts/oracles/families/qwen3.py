"""Qwen3: norms of each head's queries and keys, a head width that is not hidden / heads."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "qwen3",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}

RECIPES = (
    Recipe(
        "qwen3",
        {
            **_BASE,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
        },
    ),
    Recipe(
        "qwen3-yarn",
        {
            **_BASE,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 3.0,
                "beta_slow": 0.5,
            },
        },
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
        seed=1,
    ),
)
