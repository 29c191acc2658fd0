"""Granite: four multipliers away from 1, biases."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "granite",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.35,
    "logits_scaling": 3.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 900.0},
}

RECIPES = (
    Recipe("granite", {**_BASE, "attention_bias": True, "mlp_bias": True}),
    Recipe(
        "granite-older",
        {**_BASE, "tie_word_embeddings": True},
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
