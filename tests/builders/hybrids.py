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


def draft_tensors(config: Mapping[str, Any], seed: int = 0, *, packed: bool = False) -> Tensors:
    """Return the tensors of a draft head for a configuration of delta layers.

    They are 15 where its network is dense. With experts each has tensors of its own, or all have
    two that are ``packed``.
    """
    generator = np.random.default_rng(seed)
    hidden, dim = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        "layers.0.input_layernorm.weight": (hidden,),
        **_draft_ffn(config, packed),
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


def with_experts(kind: str) -> tuple[dict[str, Any], Tensors, Tensors]:
    """Return a configuration, the trunk's tensors, and those of a draft head that routes.

    Parameters
    ----------
    kind : str
        ``dense trunk`` or ``routed trunk`` of Qwen3-Next, the latter without renormalisation;
        ``apart`` or ``packed`` experts of a head of Qwen3.5, whose trunk has them apart.
    """
    config, tensors = recorded("qwen3_next" if "trunk" in kind else "qwen3_5_moe")
    if kind == "routed trunk":
        config = changed(config, {"mlp_only_layers": [1, 2, 3], "norm_topk_prob": False})
        tensors = {k: v for k, v in tensors.items() if "layers.0.mlp." not in k}
        other = draft_tensors(config, seed=1)
        tensors |= {k.replace("mtp.", "model.", 1): v for k, v in other.items() if ".mlp." in k}
    return config, tensors, draft_tensors(config, packed=kind == "packed")


def _draft_ffn(config: Mapping[str, Any], packed: bool) -> dict[str, tuple[int, ...]]:
    hidden, at = config["hidden_size"], "layers.0.mlp."
    if "num_experts" not in config:
        return _gated(f"{at}", config["intermediate_size"], hidden)
    count, width = config["num_experts"], config["moe_intermediate_size"]
    found = {
        f"{at}gate.weight": (count, hidden),
        f"{at}shared_expert_gate.weight": (1, hidden),
        **_gated(f"{at}shared_expert.", config["shared_expert_intermediate_size"], hidden),
    }
    if packed:
        found[f"{at}experts.gate_up_proj"] = (count, 2 * width, hidden)
        found[f"{at}experts.down_proj"] = (count, hidden, width)
        return found
    for expert in range(count):
        found |= _gated(f"{at}experts.{expert}.", width, hidden)
    return found


def _gated(at: str, width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{at}down_proj.weight": (hidden, width),
        f"{at}gate_proj.weight": (width, hidden),
        f"{at}up_proj.weight": (width, hidden),
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
