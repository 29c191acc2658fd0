"""OLMoE: norms over all heads, a clip that bites, fewer key heads than heads."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "olmoe",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "eos_token_id": 2,
    "max_position_embeddings": 128,
}

RECIPES = (
    Recipe(
        "olmoe",
        {
            **_BASE,
            "clip_qkv": 0.8,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    Recipe(
        "olmoe-renormalised",
        {**_BASE, "norm_topk_prob": True, "tie_word_embeddings": True},
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
