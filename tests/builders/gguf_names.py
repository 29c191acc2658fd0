"""A Hugging Face checkpoint of safetensors as a GGUF file: names, row order, norms, metadata.

What llama.cpp's converter does is done here from its description, not with the code under test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.builders.gguf import GGML_BF16, GGML_F32, Tensor, f32, u32, write_gguf

Array = npt.NDArray[Any]

_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.sinks": "attn_sinks",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps",
}
_EXPERT = re.compile(r"(.+\.experts)\.([0-9]+)\.(.+)")
# Where files name the norm before the feed-forward block as others name one after attention.
NEXT_NORM = {"post_attention_layernorm": "post_attention_norm"}
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True)
class Conversion:
    """How a family's files differ from the usual.

    Attributes
    ----------
    architecture : str
    adjacent : bool
        Rows of q and k are reordered so that neighbours turn together.
    offset_norms : bool
        1 is added to every norm weight.
    names : mapping
        Names inside a layer that differ.
    keys : callable
        From ``config.json`` to metadata, without the architecture's prefix.
    tensors : callable
        From ``config.json`` to tensors that only a GGUF file has.
    outside : mapping
        Names outside the layers that differ.
    prepare : callable or None
        What is done to the tensors, all of them in float32, before they are named.
    """

    architecture: str
    adjacent: bool = False
    offset_norms: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    keys: Callable[[Mapping[str, Any]], dict[str, object]] = lambda config: {}
    tensors: Callable[[Mapping[str, Any]], dict[str, list[float]]] = lambda config: {}
    outside: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[dict[str, Array], Mapping[str, Any]], None] | None = None


def write_as_gguf(checkpoint: Path, path: Path, conversion: Conversion) -> Path:
    """Write a checkpoint directory as a GGUF file, matrices as they are stored."""
    metadata, tensors = as_gguf(checkpoint, conversion)
    return write_gguf(path, metadata, tensors)[0]


def as_gguf(checkpoint: Path, conversion: Conversion) -> tuple[dict[str, object], list[Tensor]]:
    """Return metadata and tensors of a checkpoint directory as of a GGUF file."""
    config = json.loads((checkpoint / "config.json").read_text())
    prefix = conversion.architecture
    metadata: dict[str, object] = {"general.architecture": prefix, "general.name": "oracle"}
    keys = {**_usual_keys(config), **conversion.keys(config)}
    metadata |= {f"{prefix}.{key}": value for key, value in keys.items()}
    tensors: list[Tensor] = []
    stored = _stored(checkpoint)
    if conversion.prepare is not None:
        whole = {name: _floats(*tensor) for name, tensor in stored.items()}
        conversion.prepare(whole, config)
        stored = {name: ("F32", np.ascontiguousarray(rows, "<f4")) for name, rows in whole.items()}
    for name, rows in _packed(stored).items():
        tensors.append(_converted(name, rows, config, conversion))
    for name, values in conversion.tensors(config).items():
        data = np.array(values, "<f4")
        tensors.append((name, data.shape, GGML_F32, data.tobytes()))
    return metadata, tensors


def _usual_keys(config: Mapping[str, Any]) -> dict[str, object]:
    keys = {
        "block_count": u32(config["num_hidden_layers"]),
        "embedding_length": u32(config["hidden_size"]),
        "attention.head_count": u32(config["num_attention_heads"]),
    }
    stated: tuple[tuple[str, str, Callable[[Any], object]], ...] = (
        ("max_position_embeddings", "context_length", u32),
        ("intermediate_size", "feed_forward_length", u32),
        ("num_key_value_heads", "attention.head_count_kv", u32),
        ("rms_norm_eps", "attention.layer_norm_rms_epsilon", f32),
        ("norm_eps", "attention.layer_norm_rms_epsilon", f32),
    )
    keys |= {new: kind(config[old]) for old, new, kind in stated if old in config}
    if "rope_theta" in rope_of(config):
        keys["rope.freq_base"] = f32(rope_of(config)["rope_theta"])
    if config.get("head_dim"):
        keys["attention.key_length"] = u32(config["head_dim"])
        keys["attention.value_length"] = u32(config["head_dim"])
    return keys


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings of a configuration of either style."""
    if "rope_parameters" in config:
        return dict(config["rope_parameters"])
    theta = {key: config[key] for key in ("rope_theta",) if key in config}
    return {**theta, **(config.get("rope_scaling") or {})}


def yarn_keys(config: Mapping[str, Any]) -> dict[str, object]:
    """Metadata of yarn."""
    rope = rope_of(config)
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": f32(rope["factor"]),
        "rope.scaling.original_context_length": u32(rope["original_max_position_embeddings"]),
        "rope.scaling.yarn_beta_fast": f32(rope["beta_fast"]),
        "rope.scaling.yarn_beta_slow": f32(rope["beta_slow"]),
    }


def _stored(checkpoint: Path) -> dict[str, tuple[str, Array]]:
    """Each tensor's dtype and elements; bfloat16 as uint16."""
    found = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        data = file.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:begin]).items():
            if name != "__metadata__":
                first, last = (begin + offset for offset in entry["data_offsets"])
                dtype = "<f4" if entry["dtype"] == "F32" else "<u2"
                rows = np.frombuffer(data[first:last], dtype).reshape(entry["shape"])
                found[name] = (entry["dtype"], rows)
    return found


def _floats(dtype: str, rows: Array) -> Array:
    return rows if dtype == "F32" else (rows.astype("<u4") << 16).view("<f4")


def _apart(tensors: dict[str, tuple[str, Array]]) -> dict[str, tuple[str, Array]]:
    """The same with clamped experts' gate and up apart, rows of outputs, and names that end."""
    found: dict[str, tuple[str, Array]] = {}
    for name, (dtype, rows) in tensors.items():
        place, _, part = name.partition(".experts.")
        if part.removesuffix("_bias") in ("gate_up_proj", "down_proj"):
            suffix = "bias" if part.endswith("_bias") else "weight"
            turned = rows if suffix == "bias" else np.ascontiguousarray(rows.swapaxes(1, 2))
            if part.startswith("down"):
                found[f"{place}.experts.down_proj.{suffix}"] = (dtype, turned)
                continue
            for first, half in enumerate(("gate_proj", "up_proj")):
                each = np.ascontiguousarray(turned[:, first::2])
                found[f"{place}.experts.{half}.{suffix}"] = (dtype, each)
        else:
            found[f"{name}.weight" if name.endswith(".sinks") else name] = (dtype, rows)
    return found


def _packed(tensors: dict[str, tuple[str, Array]]) -> dict[str, tuple[str, Array]]:
    """The same with one tensor for all experts of a layer, and biases that end like others."""
    found: dict[str, tuple[str, Array]] = {}
    experts: dict[str, dict[int, Array]] = {}
    for name, (dtype, rows) in _apart(tensors).items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            found[name.replace("correction_bias", "correction.bias")] = (dtype, rows)
            continue
        whole = f"{match[1]}.{match[3]}"
        found.setdefault(whole, (dtype, rows))
        experts.setdefault(whole, {})[int(match[2])] = rows
    for name, each in experts.items():
        found[name] = (found[name][0], np.stack([each[number] for number in range(len(each))]))
    return found


def expert_keys(config: Mapping[str, Any]) -> dict[str, object]:
    """Metadata of layers that route."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next(config[name] for name in names if name in config)
    keys = {"expert_count": u32(count), "expert_used_count": u32(config["num_experts_per_tok"])}
    if "moe_intermediate_size" in config:
        keys["expert_feed_forward_length"] = u32(config["moe_intermediate_size"])
    return keys


def _converted(
    name: str, stored: tuple[str, Array], config: Mapping[str, Any], conversion: Conversion
) -> Tensor:
    dtype, rows = stored
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if conversion.adjacent and part in heads:
        halves = rows.reshape(heads[part], 2, len(rows) // heads[part] // 2, *rows.shape[1:])
        rows = halves.swapaxes(1, 2).reshape(rows.shape)
    outside = {**_WHOLE, **conversion.outside}
    if name in outside:
        new = outside[name]
    else:
        _model, _layers, layer, rest = name.split(".", 3)
        names = {**_LAYER, **conversion.names}
        inside, _dot, suffix = rest.rpartition(".")
        new = f"blk.{layer}.{names.get(rest) or f'{names[inside]}.{suffix}'}"
    if rows.ndim > 1:
        return new, rows.shape, GGML_F32 if dtype == "F32" else GGML_BF16, rows.tobytes()
    values = _floats(dtype, rows)
    if conversion.offset_norms and "norm" in name:
        values = values + np.float32(1)
    return new, values.shape, GGML_F32, np.ascontiguousarray(values, "<f4").tobytes()
