"""DeepSeek V3: narrow and direct queries, both orders of pairs, dense and routed layers."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "deepseek_v3",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 20,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}

RECIPES = (
    Recipe(
        "deepseek_v3",
        {
            **_BASE,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    Recipe(
        "deepseek_v3-direct",
        {
            **_BASE,
            "q_lora_rank": None,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 8.0,
                "beta_fast": 4.0,
                "beta_slow": 1.0,
                "mscale": 0.8,
                "mscale_all_dim": 1.1,
                "original_max_position_embeddings": 16,
            },
        },
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
