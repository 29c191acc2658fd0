"""Mixtral: a window, experts with tensors of their own in bfloat16, a scaled rope."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "mixtral",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}

RECIPES = (
    Recipe("mixtral", {**_BASE, "head_dim": 12, "sliding_window": 7}),
    Recipe(
        "mixtral-top3",
        {
            **_BASE,
            "num_experts_per_tok": 3,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
        },
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
