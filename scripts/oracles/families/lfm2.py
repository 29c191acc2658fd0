"""LFM2: short convolutions and attention; an adjusted FFN width, biases, an untied head."""

from __future__ import annotations

from recipe import Config, Recipe, older_style

_BASE = {
    "model_type": "lfm2",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "norm_eps": 1e-4,
    "pad_token_id": None,
}


def _older_keys(config: Config) -> Config:
    older = older_style(config)
    older["full_attn_idxs"] = [2]
    older["block_ff_dim"] = older.pop("intermediate_size")
    older["theta"] = older["rope_theta"]
    older["block_dim"] = older["conv_dim"] = older["conv_dim_out"] = 32
    older["block_norm_eps"] = older["norm_eps"]
    older["block_use_swiglu"] = older["use_pos_enc"] = True
    older["num_heads"] = 4
    older["tie_embedding"] = older.pop("tie_word_embeddings")
    return older


RECIPES = (
    Recipe(
        "lfm2",
        {
            **_BASE,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "intermediate_size": 70,
            "block_ffn_dim_multiplier": 1.1,
            "block_multiple_of": 8,
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    Recipe(
        "lfm2-older",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "conv", "full_attention"],
            "intermediate_size": 40,
            "block_auto_adjust_ff_dim": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        dtype="bfloat16",
        shards=2,
        rewrite=_older_keys,
    ),
)
