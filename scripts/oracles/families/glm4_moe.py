"""GLM 4.5: partial rotation, norms of heads, biases, dense and routed layers."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "glm4_moe",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 128,
}

RECIPES = (
    Recipe(
        "glm4_moe",
        {
            **_BASE,
            "attention_bias": True,
            "use_qk_norm": True,
            "routed_scaling_factor": 1.5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.34,
            },
        },
    ),
    Recipe(
        "glm4_moe-groups",
        {**_BASE, "n_group": 2, "topk_group": 1, "tie_word_embeddings": True},
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
