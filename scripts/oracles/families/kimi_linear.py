"""Kimi Linear: delta attention with a decay for each channel; without experts."""

from __future__ import annotations

from recipe import Recipe
from recurrent import recurrent_weights

_BASE = {
    "model_type": "kimi_linear",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-4,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}

RECIPES = (
    Recipe(
        "kimi_linear-delta",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention"] * 3,
            "mlp_layer_types": ["dense"] * 3,
            "max_position_embeddings": 64,
            "linear_head_dim": 12,
            "linear_num_heads": 3,
            "linear_conv_kernel_dim": 4,
        },
        draw=recurrent_weights,
    ),
)
