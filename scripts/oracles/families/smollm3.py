"""SmolLM3: layers without positions, by interval and by list, and windows on them."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "smollm3",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 900.0},
}

RECIPES = (
    Recipe(
        "smollm3",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "no_rope_layers": [0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 6,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    Recipe(
        "smollm3-older",
        {**_BASE, "num_hidden_layers": 4},
        dtype="bfloat16",
        shards=2,
        rewrite=lambda config: {
            key: value
            for key, value in older_style(config).items()
            if key not in ("no_rope_layers",)
        },
    ),
)
