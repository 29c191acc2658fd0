"""GPT-OSS: sinks, alternating windows, yarn that keeps its ramp's ends, clamped experts."""

from __future__ import annotations

from recipe import Recipe, older_style

_BASE = {
    "model_type": "gpt_oss",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "sliding_window": 6,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 32,
}

RECIPES = (
    Recipe(
        "gpt_oss",
        {**_BASE, "num_hidden_layers": 3, "rope_parameters": _YARN, "swiglu_limit": 0.7},
    ),
    Recipe(
        "gpt_oss-older",
        {
            **_BASE,
            "num_hidden_layers": 2,
            "rope_parameters": _YARN,
            "swiglu_alpha": 1.2,
            "tie_word_embeddings": True,
        },
        dtype="bfloat16",
        shards=2,
        rewrite=older_style,
    ),
)
