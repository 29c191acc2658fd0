"""Llama: biases everywhere, a head width of its own, an untied head; Llama 3's scaling."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-4,
}

RECIPES = (
    Recipe(
        "llama",
        {
            **_BASE,
            "head_dim": 16,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    Recipe(
        "llama-llama3",
        {
            **_BASE,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        dtype="bfloat16",
        shards=3,
        rewrite=older_style,
    ),
    Recipe(
        "llama-yarn",
        {
            **_BASE,
            "num_hidden_layers": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 8,
                "beta_fast": 2.0,
                "beta_slow": 0.25,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
            },
        },
    ),
)
