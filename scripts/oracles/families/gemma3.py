"""Gemma 3: a window shorter than the prompt, its own local base, linear scaling of full layers."""

from __future__ import annotations

import copy

from recipe import Config, Recipe, offset_norms

_BASE = {
    "model_type": "gemma3_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 5,
    "max_position_embeddings": 64,
}


def _older(config: Config) -> Config:
    """Write the keys of transformers 4: a pattern, and a base for each kind of layer."""
    older = copy.deepcopy(config)
    rope = older.pop("rope_parameters")
    full, sliding = rope["full_attention"], rope["sliding_attention"]
    older["rope_theta"] = full.pop("rope_theta")
    older["rope_local_base_freq"] = sliding["rope_theta"]
    older["rope_scaling"] = full
    older["sliding_window_pattern"] = 2
    older.pop("layer_types")
    older.pop("_sliding_window_pattern", None)
    older["torch_dtype"] = older.pop("dtype")
    return older


RECIPES = (
    Recipe(
        "gemma3",
        {
            **_BASE,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "final_logit_softcapping": 8.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        },
        draw=offset_norms,
    ),
    Recipe(
        "gemma3-linear",
        {
            **_BASE,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        },
        dtype="bfloat16",
        shards=2,
        rewrite=_older,
        draw=offset_norms,
    ),
)
