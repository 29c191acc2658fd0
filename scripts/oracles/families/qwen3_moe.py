"""Qwen3 MoE: dense layers among routed ones, both renormalisations, biases, a window."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "qwen3_moe",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 64,
}

RECIPES = (
    Recipe(
        "qwen3_moe",
        {
            **_BASE,
            "norm_topk_prob": True,
            "attention_bias": True,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 6,
        },
    ),
    Recipe(
        "qwen3_moe-raw",
        {
            **_BASE,
            "decoder_sparse_step": 2,
            "tie_word_embeddings": True,
            "sliding_window": 6,
        },
        dtype="bfloat16",
        shards=3,
        rewrite=older_style,
    ),
)
