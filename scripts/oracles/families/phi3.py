"""Phi-3: fused tensors, a part of each head that turns, and both lists of long rope."""

from __future__ import annotations

from recipe import Config, Recipe, older_style

_BASE = {
    "model_type": "phi3",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def _long_rope(share: float, pairs: int) -> Config:
    return {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "partial_rotary_factor": share,
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "long_factor": [2.0 + 0.7 * i for i in range(pairs)],
    }


RECIPES = (
    Recipe(
        "phi3",
        {
            **_BASE,
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 64,
            "sliding_window": 9,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.75,
            },
        },
    ),
    # All that is asked fits the original context, so the short list holds.
    Recipe(
        "phi3-short",
        {
            **_BASE,
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 32,
            "rope_parameters": _long_rope(1.0, 8),
        },
        rewrite=older_style,
    ),
    # The prompt alone is longer than the original context.
    Recipe(
        "phi3-long",
        {
            **_BASE,
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 16,
            "tie_word_embeddings": True,
            "rope_parameters": _long_rope(0.5, 4),
        },
        dtype="bfloat16",
        shards=2,
    ),
)
