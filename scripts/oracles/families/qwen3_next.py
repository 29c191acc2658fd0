"""Qwen3-Next: projections packed by key head; all layers dense, or some with experts."""

from __future__ import annotations

from recipe import Recipe, older_style
from recurrent import recurrent_weights

_BASE = {
    "model_type": "qwen3_next",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-4,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "num_experts": 4,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "num_experts_per_tok": 2,
}

_ROPE = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}

RECIPES = (
    Recipe(
        "qwen3_next-routed",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
            "layer_types": ["linear_attention", "full_attention", "full_attention"],
            "num_experts_per_tok": 2,
            "norm_topk_prob": False,
            "rope_parameters": _ROPE,
        },
        dtype="bfloat16",
        shards=2,
        draw=recurrent_weights,
    ),
    Recipe(
        "qwen3_next",
        {
            **_BASE,
            "num_hidden_layers": 4,
            "mlp_only_layers": [0, 1, 2, 3],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.25,
            },
        },
        draw=recurrent_weights,
    ),
    Recipe(
        "qwen3_next-older",
        {
            **_BASE,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 5,
            "attention_bias": True,
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.5,
            },
        },
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
        draw=recurrent_weights,
    ),
)
