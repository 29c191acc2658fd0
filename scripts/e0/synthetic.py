"""Two small checkpoints, the same bytes on every machine and under every version of NumPy.

Weights are made of a hash of their name, by integer arithmetic and one exact scaling: no generator
of random numbers whose stream a library may change.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.builders.safetensors import write_safetensors_dir
from tests.builders.tokenizer import write_tokenizer_files

__all__ = ["dense", "experts"]

Tensors = dict[str, npt.NDArray[np.float32]]
_VOCAB = 256


def dense(directory: Path) -> None:
    """Write a Llama of two layers with a tokenizer."""
    hidden, heads, kv_heads, dim, ffn, layers = 64, 4, 2, 16, 128, 2
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "head_dim": dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "max_position_embeddings": 256,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": _VOCAB,
    }
    tensors = _outside(hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors |= _attention(at, hidden, heads * dim, kv_heads * dim)
        tensors |= _ffn(f"{at}.mlp", hidden, ffn)
    _write(directory, config, tensors)


def experts(directory: Path) -> None:
    """Write a Qwen 3 with a dense layer and two that choose 2 of 5 experts, with a tokenizer."""
    hidden, heads, kv_heads, dim, ffn, width, count = 32, 4, 2, 8, 48, 16, 5
    layers = 3
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "eos_token_id": 2,
        "head_dim": dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "max_position_embeddings": 256,
        "mlp_only_layers": [0],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": width,
        "norm_topk_prob": True,
        "num_attention_heads": heads,
        "num_experts": count,
        "num_experts_per_tok": 2,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": _VOCAB,
    }
    tensors = _outside(hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors |= _attention(at, hidden, heads * dim, kv_heads * dim)
        for part in ("q_norm", "k_norm"):
            tensors |= _scale(f"{at}.self_attn.{part}.weight", dim)
        if layer == 0:
            tensors |= _ffn(f"{at}.mlp", hidden, ffn)
            continue
        tensors |= _matrix(f"{at}.mlp.gate.weight", count, hidden, 4)
        for expert in range(count):
            tensors |= _ffn(f"{at}.mlp.experts.{expert}", hidden, width)
    _write(directory, config, tensors)


def _write(directory: Path, config: dict[str, object], tensors: Tensors) -> None:
    write_safetensors_dir(directory, config, tensors)
    write_tokenizer_files(directory)


def _outside(hidden: int) -> Tensors:
    return {
        **_matrix("model.embed_tokens.weight", _VOCAB, hidden, 1),
        **_scale("model.norm.weight", hidden),
        **_matrix("lm_head.weight", _VOCAB, hidden, 4),
    }


def _attention(at: str, hidden: int, queries: int, keys: int) -> Tensors:
    return {
        **_scale(f"{at}.input_layernorm.weight", hidden),
        **_matrix(f"{at}.self_attn.q_proj.weight", queries, hidden, 2),
        **_matrix(f"{at}.self_attn.k_proj.weight", keys, hidden, 2),
        **_matrix(f"{at}.self_attn.v_proj.weight", keys, hidden, 2),
        **_matrix(f"{at}.self_attn.o_proj.weight", hidden, queries, 1),
        **_scale(f"{at}.post_attention_layernorm.weight", hidden),
    }


def _ffn(at: str, hidden: int, width: int) -> Tensors:
    return {
        **_matrix(f"{at}.gate_proj.weight", width, hidden, 2),
        **_matrix(f"{at}.up_proj.weight", width, hidden, 2),
        **_matrix(f"{at}.down_proj.weight", hidden, width, 1),
    }


def _units(name: str, count: int) -> npt.NDArray[np.float32]:
    """Return numbers in [-1, 1) that depend on the name alone: 16 bits each, exact in float32."""
    blocks = -(-count * 2 // 32)
    data = b"".join(hashlib.sha256(f"{name} {block}".encode()).digest() for block in range(blocks))
    words = np.frombuffer(data[: 2 * count], "<i2")
    return words.astype(np.float32) / np.float32(32768)


def _matrix(name: str, rows: int, columns: int, gain: int) -> Tensors:
    # A power of two near 1 / sqrt(columns), which scales exactly.
    scale = np.float32(gain) / np.float32(1 << (columns.bit_length() // 2))
    return {name: (_units(name, rows * columns) * scale).reshape(rows, columns)}


def _scale(name: str, count: int) -> Tensors:
    return {name: np.float32(1) + _units(name, count) / np.float32(4)}
