"""Gemma 2: both soft caps low enough to bend, a window on even layers, a scale of its own."""

from __future__ import annotations

from recipe import Recipe, offset_norms, older_style

_BASE = {
    "model_type": "gemma2",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 10,
    "sliding_window": 5,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 900.0},
}

RECIPES = (
    Recipe(
        "gemma2",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 4.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
        draw=offset_norms,
    ),
    Recipe(
        "gemma2-older",
        {
            **_BASE,
            "num_hidden_layers": 2,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 6.0,
        },
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
        draw=offset_norms,
    ),
)
