"""Seed-OSS: biases on q, k, v and on the output projection, apart from each other."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "seed_oss",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 900.0},
}

RECIPES = (
    Recipe("seed_oss", {**_BASE, "attention_bias": False, "attention_out_bias": True}),
    Recipe(
        "seed_oss-older",
        {**_BASE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
