"""A tiny model whose experts have biases, and whose numbers come in two forms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.builders.safetensors import Stored, write_safetensors_dir

Tensors = dict[str, np.ndarray | Stored]

CLAMPED = {
    "model_type": "gpt_oss",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "sliding_window": 4,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}


def clamped(to: Path, form: str, scale: int = 120) -> Path:
    """Write the same model with native MXFP4 experts, or with the floats that they stand for."""
    generator = np.random.default_rng(8)

    def normal(*shape: int) -> npt.NDArray[np.float32]:
        return generator.standard_normal(shape).astype(np.float32)

    made: Tensors = {
        "model.embed_tokens.weight": normal(64, 32),
        "model.norm.weight": normal(32),
        "lm_head.weight": normal(64, 32),
    }
    for i in range(2):
        at = f"model.layers.{i}"
        made[f"{at}.input_layernorm.weight"] = normal(32)
        made[f"{at}.post_attention_layernorm.weight"] = normal(32)
        made[f"{at}.self_attn.sinks"] = normal(2)
        for part, rows, columns in (("q", 16, 32), ("k", 8, 32), ("v", 8, 32), ("o", 32, 16)):
            made[f"{at}.self_attn.{part}_proj.weight"] = normal(rows, columns)
            made[f"{at}.self_attn.{part}_proj.bias"] = normal(rows)
        made[f"{at}.mlp.router.weight"] = normal(3, 32)
        made[f"{at}.mlp.router.bias"] = normal(3)
        for part, rows in (("gate_up", 64), ("down", 32)):
            blocks = generator.integers(0, 256, (3, rows, 1, 16), np.uint8)
            scales = generator.integers(scale, scale + 6, (3, rows, 1), np.uint8)
            name = f"{at}.mlp.experts.{part}_proj"
            made[f"{name}_bias"] = normal(3, rows)
            if form == "mxfp4":
                made[f"{name}_blocks"], made[f"{name}_scales"] = blocks, scales
            else:
                made[name] = np.ascontiguousarray(meant(blocks, scales).swapaxes(1, 2))
    config: Mapping[str, object] = CLAMPED
    if form == "mxfp4":
        config = {**CLAMPED, "quantization_config": {"quant_method": "mxfp4"}}
    return write_safetensors_dir(to, config, made)


def meant(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Decode MXFP4 in the order of checkpoints, element by element."""
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = np.empty((*blocks.shape[:2], 32), np.float32)
    for place in np.ndindex(*values.shape):
        byte = int(blocks[place[0], place[1], 0, place[2] // 2])
        code = byte >> 4 if place[2] % 2 else byte & 15
        sign = -1.0 if code >= 8 and code != 8 else 1.0
        power = 2.0 ** (int(scales[place[0], place[1], 0]) - 127)
        values[place] = sign * table[code % 8] * power
    return values


def mixture(to: Path, layers: int = 5, experts: int = 8) -> Path:
    """Write a tiny model whose every layer chooses two of its experts."""
    generator = np.random.default_rng(11)

    def normal(*shape: int) -> npt.NDArray[np.float32]:
        return (generator.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    made: Tensors = {
        "model.embed_tokens.weight": normal(64, 32) * 32**0.5,
        "model.norm.weight": np.ones(32, np.float32),
        "lm_head.weight": normal(64, 32),
    }
    for i in range(layers):
        at = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"{at}.{norm}.weight"] = np.ones(32, np.float32)
        for part, rows, columns in (("q", 32, 32), ("k", 16, 32), ("v", 16, 32), ("o", 32, 32)):
            made[f"{at}.self_attn.{part}_proj.weight"] = normal(rows, columns)
        made[f"{at}.block_sparse_moe.gate.weight"] = normal(experts, 32)
        for expert in range(experts):
            for name, rows, columns in (("w1", 16, 32), ("w2", 32, 16), ("w3", 16, 32)):
                key = f"{at}.block_sparse_moe.experts.{expert}.{name}.weight"
                made[key] = normal(rows, columns)
    config = {
        "model_type": "mixtral",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    return write_safetensors_dir(to, config, made)
