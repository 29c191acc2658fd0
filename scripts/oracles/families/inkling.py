"""Inkling: heads of two shapes, distances beyond the extent, scaled positions, shared sinks."""

from __future__ import annotations

import math

import numpy as np
from recipe import Config, Recipe, Values, usual

_BASE = {
    "model_type": "inkling_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "swa_num_attention_heads": 6,
    "swa_num_key_value_heads": 3,
    "swa_head_dim": 8,
    "sliding_window_size": 6,
    "d_rel": 5,
    "rel_extent": 9,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "route_scale": 1.7,
    "logits_mup_width_multiplier": 3.0,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}


def _draw(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> Values:
    """Draw as usual; profiles that change scores by about 1, and factors above 0."""
    values = usual(name, shape, generator)
    if name.endswith("global_scale"):
        return (1.3 + 0.1 * values).astype(np.float32)
    if name.endswith("rel_logits_proj.proj"):
        return (values * math.sqrt(shape[-1] / shape[0])).astype(np.float32)
    return values


def _published(config: Config) -> Config:
    """Rewrite to the keys that published checkpoints have."""
    text = dict(config["text_config"])
    text["sconv_kernel_size"] = text.pop("conv_kernel_size")
    text["model_max_length"] = text.pop("max_position_embeddings")
    text["dense_intermediate_size"] = text["intermediate_size"]
    text["intermediate_size"] = text.pop("moe_intermediate_size")
    text["dense_mlp_idx"] = text.pop("mlp_layer_types").index("sparse")
    for key in ("layer_types", "num_mtp_layers", "chain_hidden_post_norm", "mtp_local_layer_ids"):
        text.pop(key)
    draft = {"num_nextn_predict_layers": 1, "chain_hidden_post_norm": True, "local_layer_ids": [0]}
    rest = {key: value for key, value in config.items() if key not in ("dtype", "text_config")}
    return {**rest, "torch_dtype": config["dtype"], "text_config": text, "mtp_config": draft}


RECIPES = (
    Recipe(
        "inkling",
        {
            **_BASE,
            "num_hidden_layers": 3,
            "layer_types": ["hybrid_sliding", "hybrid", "hybrid"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "log_scaling_n_floor": 4,
            "log_scaling_alpha": 0.6,
            "unpadded_vocab_size": 90,
        },
        draw=_draw,
    ),
    Recipe(
        "inkling-dense",
        {
            **_BASE,
            "num_hidden_layers": 2,
            "layer_types": ["hybrid", "hybrid_sliding"],
            "mlp_layer_types": ["dense", "dense"],
            "log_scaling_n_floor": 3,
            "conv_kernel_size": 3,
            "hidden_act": "gelu_pytorch_tanh",
        },
        draw=_draw,
    ),
    Recipe(
        "inkling-published",
        {
            "model_type": "inkling_mm_model",
            "text_config": {
                **_BASE,
                "num_hidden_layers": 3,
                "local_layer_ids": [0, 2],
                "mlp_layer_types": ["dense", "sparse", "sparse"],
                "n_shared_experts": 1,
                "unpadded_vocab_size": 93,
            },
            "vision_config": {"patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2},
            "audio_config": {"n_mel_bins": 4, "mel_vocab_size": 8},
        },
        dtype="bfloat16",
        shards=2,
        rewrite=_published,
        draw=_draw,
    ),
)
