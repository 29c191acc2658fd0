"""Checkpoints of recorded oracles with another configuration, or other tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from tests.builders.safetensors import write_safetensors_dir
from tests.oracles.recorded import OWN

Tensors = dict[str, npt.NDArray[np.float32]]
REMOVED = object()


def recorded(name: str) -> tuple[dict[str, Any], Tensors]:
    """Return the configuration and the tensors of a float32 checkpoint in one file."""
    directory = OWN / name / "checkpoint"
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    with safe_open(directory / "model.safetensors", framework="np") as file:
        return config, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def changed(config: dict[str, Any], keys: Mapping[str, object]) -> dict[str, Any]:
    """Return a configuration with some keys set, or ``REMOVED``."""
    return {k: v for k, v in {**config, **keys}.items() if v is not REMOVED}


def write_changed(path: Path, name: str, /, **keys: object) -> Path:
    """Write a recorded checkpoint with some keys set, or ``REMOVED``."""
    config, tensors = recorded(name)
    return write_safetensors_dir(path, changed(config, keys), tensors)


def draft_tensors(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Return the 15 tensors of a draft head for a configuration of delta layers."""
    generator = np.random.default_rng(seed)
    hidden, dim = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        "layers.0.input_layernorm.weight": (hidden,),
        "layers.0.mlp.down_proj.weight": (hidden, config["intermediate_size"]),
        "layers.0.mlp.gate_proj.weight": (config["intermediate_size"], hidden),
        "layers.0.mlp.up_proj.weight": (config["intermediate_size"], hidden),
        "layers.0.post_attention_layernorm.weight": (hidden,),
        "layers.0.self_attn.k_norm.weight": (dim,),
        "layers.0.self_attn.k_proj.weight": (kv, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, q),
        "layers.0.self_attn.q_norm.weight": (dim,),
        "layers.0.self_attn.q_proj.weight": (2 * q, hidden),
        "layers.0.self_attn.v_proj.weight": (kv, hidden),
        "norm.weight": (hidden,),
        "pre_fc_norm_embedding.weight": (hidden,),
        "pre_fc_norm_hidden.weight": (hidden,),
    }
    return {
        f"mtp.{name}": generator.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def nested(config: Mapping[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    """Return a text model as part of one that also sees, as it is published."""
    outer = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {**config, "model_type": "qwen3_5_text"},
        "vision_config": {"depth": 1, "model_type": "qwen3_5"},
        "image_token_id": 90,
        "video_token_id": 91,
        "vision_start_token_id": 92,
        "vision_end_token_id": 93,
        "tie_word_embeddings": config["tie_word_embeddings"],
    }
    inside: Tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in tensors.items()
    }
    inside["model.visual.patch_embed.proj.weight"] = np.ones((4, 3), np.float32)
    return outer, inside
