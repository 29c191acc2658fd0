"""OLMo 2: norms after each block only, q/k norms over all heads."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "olmo2",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 900.0},
}

RECIPES = (
    Recipe("olmo2", {**_BASE, "num_hidden_layers": 3, "attention_bias": True}),
    Recipe(
        "olmo2-older",
        {**_BASE, "num_hidden_layers": 2, "num_key_value_heads": 1, "tie_word_embeddings": True},
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
