"""Qwen2: biases on q, k and v, a window on the later layers."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}

RECIPES = (
    Recipe(
        "qwen2",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
        },
    ),
    # The window is stated and not used.
    Recipe(
        "qwen2-older",
        {
            **_BASE,
            "num_hidden_layers": 2,
            "use_sliding_window": False,
            "sliding_window": 6,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 700.0, "factor": 2.0},
        },
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
