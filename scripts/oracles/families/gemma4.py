"""Gemma 4: full and windowed layers of two geometries, with and without embeddings of layers."""

from __future__ import annotations

from recipe import Recipe

_COMMON = {
    "model_type": "gemma4_text",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 6,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SLIDING, _FULL = "sliding_attention", "full_attention"

RECIPES = [
    Recipe(
        name="gemma4",
        config={
            **_COMMON,
            "vocab_size": 96,
            "intermediate_size": 40,
            "num_hidden_layers": 3,
            "layer_types": [_SLIDING, _FULL, _FULL],
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "attention_bias": True,
            "hidden_size_per_layer_input": 0,
            "rope_parameters": {
                _SLIDING: {"rope_type": "default", "rope_theta": 5000.0},
                _FULL: {
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 50000.0,
                },
            },
        },
        dtype="bfloat16",
        shards=2,
    ),
    Recipe(
        name="gemma4-embeddings",
        config={
            **_COMMON,
            "vocab_size": 80,
            "vocab_size_per_layer_input": 90,
            "intermediate_size": 24,
            "num_hidden_layers": 6,
            "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING, _SLIDING, _FULL],
            "num_key_value_heads": 1,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8,
            "final_logit_softcapping": 8.0,
            "tie_word_embeddings": False,
        },
    ),
    Recipe(
        name="gemma4-experts",
        config={
            **_COMMON,
            "vocab_size": 96,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "layer_types": [_SLIDING, _FULL],
            "num_key_value_heads": 2,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 12,
        },
        dtype="bfloat16",
    ),
]
