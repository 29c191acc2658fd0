"""Tiny deterministic checkpoints: one set of weights, written as safetensors and as GGUF.

Weights are made under Hugging Face names with the rows in Hugging Face order. What llama.cpp's
converter does to them (names, row order of q and k, the 1 added to Gemma's norms) is done here,
from its description and not with the code under test, when a GGUF file is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from larql.format.codec import ENCODINGS, decode, encode
from tests.builders.gguf import Tensor, f32, u32, write_gguf
from tests.builders.safetensors import Stored, bf16, write_safetensors_dir
from tests.builders.tokenizer import gguf_tokenizer, write_tokenizer_files

Weights = dict[str, npt.NDArray[np.float32]]
Dtype = Literal["f32", "f16", "bf16"]
Type = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]


@dataclass(frozen=True)
class Scaling:
    """Rotary scaling; the last three numbers are Llama 3's."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 64


@dataclass(frozen=True)
class LlamaSpec:
    """T0 unless told otherwise: 2 layers, hidden 64, 4 heads that share 2, ffn 128, vocab 256.

    ``head_dim`` None is ``hidden / heads``. ``style`` is that of ``config.json``: ``old`` has
    ``rope_theta`` and ``rope_scaling``, ``new`` has ``rope_parameters``. ``gguf_type`` is how a
    GGUF file stores matrices; vectors are always f32 there.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int | None = None
    ffn: int = 128
    vocab: int = 256
    context: int = 512
    eps: float = 1e-5
    theta: float = 10000.0
    scaling: Scaling | None = None
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: Dtype = "f32"
    gguf_type: Type = "f32"
    style: Literal["old", "new"] = "old"
    shards: int = 1
    tokenizer: bool = False
    bos: bool = False
    seed: int = 0

    @property
    def dim(self) -> int:
        return self.head_dim or self.hidden // self.heads


@dataclass(frozen=True)
class GemmaSpec:
    """A Gemma 3 of 6 layers, the last of them full; the window is shorter than any real prompt.

    ``factor`` is the linear rotary scaling of the full layers. ``nested`` puts the numbers into
    ``text_config`` and adds tensors of a vision tower. A GGUF file carries neither a pattern nor a
    local rotary base, so ``pattern`` and ``local_theta`` are for safetensors only.
    """

    layers: int = 6
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 1
    head_dim: int = 32
    ffn: int = 128
    vocab: int = 256
    context: int = 512
    eps: float = 1e-6
    window: int = 4
    theta: float = 1_000_000.0
    local_theta: float = 10000.0
    factor: float | None = None
    query_pre_attn_scalar: float | None = None
    pattern: int = 6
    dtype: Dtype = "f32"
    gguf_type: Type = "f32"
    style: Literal["old", "new"] = "old"
    nested: bool = False
    shards: int = 1
    tokenizer: bool = False
    bos: bool = False
    seed: int = 0

    @property
    def full_layers(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.layers) if (i + 1) % self.pattern == 0)


# --- weights ---------------------------------------------------------------------------------


def llama_weights(spec: LlamaSpec) -> Weights:
    """Weights by Hugging Face name, already rounded to the spec's dtype."""
    make = _Maker(spec.seed, spec.dtype)
    hidden, q, kv = spec.hidden, spec.heads * spec.dim, spec.kv_heads * spec.dim
    weights = {"model.embed_tokens.weight": make.matrix(spec.vocab, hidden, 1.0)}
    for i in range(spec.layers):
        at = f"model.layers.{i}."
        weights[f"{at}input_layernorm.weight"] = make.norm(hidden)
        for name, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden)):
            weights[f"{at}self_attn.{name}_proj.weight"] = make.matrix(rows, columns, 2.0)
        weights[f"{at}self_attn.o_proj.weight"] = make.matrix(hidden, q, 1.0)
        weights[f"{at}post_attention_layernorm.weight"] = make.norm(hidden)
        weights[f"{at}mlp.gate_proj.weight"] = make.matrix(spec.ffn, hidden, 1.5)
        weights[f"{at}mlp.up_proj.weight"] = make.matrix(spec.ffn, hidden, 1.5)
        weights[f"{at}mlp.down_proj.weight"] = make.matrix(hidden, spec.ffn, 1.0)
        for wanted, block, names in (
            (spec.attention_bias, "self_attn", "qkvo"),
            (spec.mlp_bias, "mlp", ("gate", "up", "down")),
        ):
            for name in names if wanted else ():
                matrix = weights[f"{at}{block}.{name}_proj.weight"]
                weights[f"{at}{block}.{name}_proj.bias"] = make.vector(len(matrix), 0.5)
    weights["model.norm.weight"] = make.norm(hidden)
    if not spec.tied:
        weights["lm_head.weight"] = make.matrix(spec.vocab, hidden, 3.0)
    return weights


def gemma_weights(spec: GemmaSpec) -> Weights:
    """Weights by Hugging Face name; norm weights are stored as ``w`` and mean ``1 + w``."""
    make = _Maker(spec.seed, spec.dtype)
    hidden, dim = spec.hidden, spec.head_dim
    q, kv = spec.heads * dim, spec.kv_heads * dim
    weights = {"model.embed_tokens.weight": make.matrix(spec.vocab, hidden, 1.0)}
    for i in range(spec.layers):
        at = f"model.layers.{i}."
        weights[f"{at}input_layernorm.weight"] = make.offset_norm(hidden)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            weights[f"{at}self_attn.{name}_proj.weight"] = make.matrix(rows, hidden, 2.0)
        weights[f"{at}self_attn.o_proj.weight"] = make.matrix(hidden, q, 1.0)
        weights[f"{at}self_attn.q_norm.weight"] = make.offset_norm(dim)
        weights[f"{at}self_attn.k_norm.weight"] = make.offset_norm(dim)
        weights[f"{at}post_attention_layernorm.weight"] = make.offset_norm(hidden)
        weights[f"{at}pre_feedforward_layernorm.weight"] = make.offset_norm(hidden)
        weights[f"{at}mlp.gate_proj.weight"] = make.matrix(spec.ffn, hidden, 1.5)
        weights[f"{at}mlp.up_proj.weight"] = make.matrix(spec.ffn, hidden, 1.5)
        weights[f"{at}mlp.down_proj.weight"] = make.matrix(hidden, spec.ffn, 1.0)
        weights[f"{at}post_feedforward_layernorm.weight"] = make.offset_norm(hidden)
    weights["model.norm.weight"] = make.offset_norm(hidden)
    return weights


class _Maker:
    def __init__(self, seed: int, dtype: Dtype) -> None:
        self._generator = np.random.default_rng(seed)
        self._dtype = dtype

    def matrix(self, rows: int, columns: int, gain: float) -> npt.NDArray[np.float32]:
        values = self._generator.standard_normal((rows, columns)) * (gain / math.sqrt(columns))
        return rounded(values, self._dtype)

    def vector(self, count: int, spread: float, mean: float = 0.0) -> npt.NDArray[np.float32]:
        return rounded(mean + spread * self._generator.standard_normal(count), self._dtype)

    def norm(self, count: int) -> npt.NDArray[np.float32]:
        return self.vector(count, 0.3, 1.2)

    def offset_norm(self, count: int) -> npt.NDArray[np.float32]:
        """Away from 0 and 1, so that an offset left out or added twice shows."""
        return self.vector(count, 0.15, 0.45)


def rounded(values: npt.NDArray[np.float64], dtype: Dtype) -> npt.NDArray[np.float32]:
    """The nearest values that a dtype holds, as float32."""
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "f32":
        return values.astype(np.float32)
    bits = np.frombuffer(bf16(values.astype(np.float32)).data, "<u2").astype(np.uint32) << 16
    return bits.view(np.float32).reshape(values.shape)


# --- safetensors -----------------------------------------------------------------------------


def llama_config(spec: LlamaSpec) -> dict[str, object]:
    """``config.json`` as such checkpoints have it, bookkeeping keys included."""
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": spec.attention_bias,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": spec.hidden,
        "initializer_range": 0.02,
        "intermediate_size": spec.ffn,
        "max_position_embeddings": spec.context,
        "mlp_bias": spec.mlp_bias,
        "model_type": "llama",
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": spec.eps,
        "tie_word_embeddings": spec.tied,
        "transformers_version": "4.51.0",
        "use_cache": True,
        "vocab_size": spec.vocab,
    }
    if spec.head_dim is not None:
        config["head_dim"] = spec.head_dim
    scaling = None if spec.scaling is None else _scaling_json(spec.scaling)
    if spec.style == "old":
        config |= {
            "rope_theta": spec.theta,
            "rope_scaling": scaling,
            "torch_dtype": _TORCH[spec.dtype],
        }
    else:
        parameters = {"rope_theta": spec.theta, **(scaling or {"rope_type": "default"})}
        config |= {"rope_parameters": parameters, "dtype": _TORCH[spec.dtype]}
    return config


def gemma_config(spec: GemmaSpec) -> dict[str, object]:
    scalar = spec.query_pre_attn_scalar or spec.head_dim
    config: dict[str, object] = {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "final_logit_softcapping": None,
        "head_dim": spec.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "max_position_embeddings": spec.context,
        "model_type": "gemma3_text",
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
        "pad_token_id": 0,
        "query_pre_attn_scalar": scalar,
        "rms_norm_eps": spec.eps,
        "sliding_window": spec.window,
        "use_cache": True,
        "vocab_size": spec.vocab,
    }
    linear = None if spec.factor is None else {"rope_type": "linear", "factor": spec.factor}
    if spec.style == "old":
        config |= {
            "rope_theta": spec.theta,
            "rope_local_base_freq": spec.local_theta,
            "rope_scaling": linear,
            "sliding_window_pattern": spec.pattern,
            "torch_dtype": _TORCH[spec.dtype],
        }
    else:
        full, sliding = "full_attention", "sliding_attention"
        config |= {
            "dtype": _TORCH[spec.dtype],
            "layer_types": [full if i in spec.full_layers else sliding for i in range(spec.layers)],
            "rope_parameters": {
                full: {"rope_theta": spec.theta, **(linear or {"rope_type": "default"})},
                sliding: {"rope_theta": spec.local_theta, "rope_type": "default"},
            },
            "use_bidirectional_attention": False,
        }
    if not spec.nested:
        return config
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 3,
        "eoi_token_index": 4,
        "eos_token_id": [2, 3],
        "image_token_index": 5,
        "mm_tokens_per_image": 4,
        "model_type": "gemma3",
        "text_config": config,
        "transformers_version": "4.51.0",
        "vision_config": {"hidden_size": 8, "model_type": "siglip_vision_model"},
    }


_TORCH = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def _scaling_json(scaling: Scaling) -> dict[str, object]:
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context,
    }


def write_llama_safetensors(
    directory: Path,
    spec: LlamaSpec | None = None,
    *,
    config: Mapping[str, object] | None = None,
    without: Iterable[str] = (),
    extra: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> Path:
    """Write a checkpoint directory and return it.

    ``config`` adds and replaces keys of ``config.json``, ``without`` takes keys or tensors away,
    and ``extra`` adds or replaces tensors.
    """
    spec = spec or LlamaSpec()
    return _write_safetensors(
        directory, spec, llama_config(spec), llama_weights(spec), config, without, extra
    )


def write_gemma_safetensors(
    directory: Path,
    spec: GemmaSpec | None = None,
    *,
    config: Mapping[str, object] | None = None,
    without: Iterable[str] = (),
    extra: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> Path:
    """Write a checkpoint directory and return it; see :func:`write_llama_safetensors`."""
    spec = spec or GemmaSpec()
    weights = gemma_weights(spec)
    if spec.nested:
        weights = {f"language_model.{name}": values for name, values in weights.items()}
        generator = np.random.default_rng(99)
        for name in ("vision_tower.patch.weight", "multi_modal_projector.weight"):
            weights[name] = generator.standard_normal((4, 8)).astype(np.float32)
    return _write_safetensors(directory, spec, gemma_config(spec), weights, config, without, extra)


def _write_safetensors(
    directory: Path,
    spec: LlamaSpec | GemmaSpec,
    document: dict[str, object],
    weights: Weights,
    config: Mapping[str, object] | None,
    without: Iterable[str],
    extra: Mapping[str, npt.NDArray[np.float32]] | None,
) -> Path:
    document = {**document, **(config or {})}
    weights = {**weights, **(extra or {})}
    for name in without:
        if name in weights:
            del weights[name]
        else:
            del document[name]
    stored = {name: _stored(values, spec.dtype) for name, values in weights.items()}
    write_safetensors_dir(directory, document, stored, shards=spec.shards)
    if spec.tokenizer:
        write_tokenizer_files(directory, bos=spec.bos)
    return directory


def _stored(values: npt.NDArray[np.float32], dtype: Dtype) -> npt.NDArray[np.generic] | Stored:
    if dtype == "bf16":
        return bf16(values)
    return values.astype(np.float16 if dtype == "f16" else np.float32)


# --- GGUF ------------------------------------------------------------------------------------

_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_LAYER = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, *, gemma: bool) -> str:
    """Translate a Hugging Face tensor name."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _model, _layers, layer, rest = name.split(".", 3)
    part, suffix = rest.rsplit(".", 1)
    names = _GGUF_LAYER | (_GEMMA_LAYER if gemma else {})
    return f"blk.{layer}.{names[part]}.{suffix}"


def interleave(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Reorder each head's rows from halves to adjacent pairs, as llama.cpp's converter does."""
    per_head = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return per_head.swapaxes(1, 2).reshape(rows.shape)


def deinterleave(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo :func:`interleave`."""
    per_head = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return per_head.swapaxes(1, 2).reshape(rows.shape)


def _head_count(name: str, spec: LlamaSpec) -> int | None:
    if ".q_proj." in name:
        return spec.heads
    return spec.kv_heads if ".k_proj." in name else None


def llama_gguf_tensors(spec: LlamaSpec) -> list[Tensor]:
    """Tensors of the GGUF file, in file order."""
    tensors = []
    for name, values in llama_weights(spec).items():
        heads = _head_count(name, spec)
        ordered = values if heads is None else interleave(values, heads)
        tensors.append(_tensor(gguf_name(name, gemma=False), ordered, spec.gguf_type))
    if spec.scaling is not None and spec.scaling.kind == "llama3":
        factors = llama3_factors(spec).astype(np.float32)
        tensors.insert(1, _tensor("rope_freqs.weight", factors, "f32"))
    return tensors


def gemma_gguf_tensors(spec: GemmaSpec) -> list[Tensor]:
    """Tensors of the GGUF file, in file order; 1 is added to the norm weights."""
    tensors = []
    for name, values in gemma_weights(spec).items():
        added = values + np.float32(1) if name.endswith("norm.weight") else values
        tensors.append(_tensor(gguf_name(name, gemma=True), added, spec.gguf_type))
    return tensors


def llama3_factors(spec: LlamaSpec) -> npt.NDArray[np.float64]:
    """What llama.cpp's converter writes as ``rope_freqs``: each divides one pair's frequency."""
    scaling = spec.scaling
    assert scaling is not None
    low = scaling.original_context / scaling.low_freq_factor
    high = scaling.original_context / scaling.high_freq_factor
    factors = []
    for pair in range(spec.dim // 2):
        wavelength = 2 * math.pi * spec.theta ** (2 * pair / spec.dim)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(scaling.factor)
        else:
            smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return np.array(factors)


def _tensor(name: str, values: npt.NDArray[np.float32], kind: Type) -> Tensor:
    encoding = ENCODINGS[kind if values.ndim > 1 else "f32"]
    assert encoding.ggml_type is not None
    return name, values.shape, encoding.ggml_type, encode(encoding, values).tobytes()


def stored_weights(spec: LlamaSpec | GemmaSpec) -> Weights:
    """The weights that the GGUF file really holds, back under Hugging Face names and order.

    With block encodings these are the decoded values; Gemma's norms are ``w`` again.
    """
    gemma = isinstance(spec, GemmaSpec)
    if isinstance(spec, GemmaSpec):
        tensors, names = gemma_gguf_tensors(spec), gemma_weights(spec).keys()
    else:
        tensors, names = llama_gguf_tensors(spec), llama_weights(spec).keys()
    by_code = {enc.ggml_type: enc for enc in ENCODINGS.values()}
    decoded = {
        name: decode(
            by_code[code],
            np.frombuffer(data, np.uint8).reshape(*shape[:-1], -1),
            shape[-1],
        )
        for name, shape, code, data in tensors
    }
    weights = {}
    for name in names:
        values = decoded[gguf_name(name, gemma=gemma)]
        if isinstance(spec, LlamaSpec):
            heads = _head_count(name, spec)
            values = values if heads is None else deinterleave(values, heads)
        elif name.endswith("norm.weight"):
            values = values - np.float32(1)
        weights[name] = values
    return weights


def write_llama_gguf(
    path: Path,
    spec: LlamaSpec | None = None,
    *,
    metadata: Mapping[str, object] | None = None,
    without: Iterable[str] = (),
    extra: Iterable[Tensor] = (),
) -> Path:
    """Write a GGUF file (in ``spec.shards`` parts) and return the path of the (first) file.

    ``metadata`` adds and replaces keys, ``without`` takes keys or tensors away.
    """
    spec = spec or LlamaSpec()
    keys: dict[str, object] = {
        **_general("llama", "Tiny Llama"),
        "llama.block_count": u32(spec.layers),
        "llama.context_length": u32(spec.context),
        "llama.embedding_length": u32(spec.hidden),
        "llama.feed_forward_length": u32(spec.ffn),
        "llama.attention.head_count": u32(spec.heads),
        "llama.attention.head_count_kv": u32(spec.kv_heads),
        "llama.rope.freq_base": f32(spec.theta),
        "llama.attention.layer_norm_rms_epsilon": f32(spec.eps),
        "llama.vocab_size": u32(spec.vocab),
        "llama.rope.dimension_count": u32(spec.dim),
    }
    if spec.head_dim is not None:
        keys["llama.attention.key_length"] = u32(spec.head_dim)
        keys["llama.attention.value_length"] = u32(spec.head_dim)
    if spec.scaling is not None and spec.scaling.kind == "linear":
        keys["llama.rope.scaling.type"] = "linear"
        keys["llama.rope.scaling.factor"] = f32(spec.scaling.factor)
    return _write_gguf(path, spec, keys, llama_gguf_tensors(spec), metadata, without, extra)


def write_gemma_gguf(
    path: Path,
    spec: GemmaSpec | None = None,
    *,
    metadata: Mapping[str, object] | None = None,
    without: Iterable[str] = (),
    extra: Iterable[Tensor] = (),
) -> Path:
    """Write a GGUF file and return its path; see :func:`write_llama_gguf`."""
    spec = spec or GemmaSpec()
    keys: dict[str, object] = {
        **_general("gemma3", "Tiny Gemma"),
        "gemma3.context_length": u32(spec.context),
        "gemma3.embedding_length": u32(spec.hidden),
        "gemma3.block_count": u32(spec.layers),
        "gemma3.feed_forward_length": u32(spec.ffn),
        "gemma3.attention.head_count": u32(spec.heads),
        "gemma3.attention.layer_norm_rms_epsilon": f32(spec.eps),
        "gemma3.attention.key_length": u32(spec.head_dim),
        "gemma3.attention.value_length": u32(spec.head_dim),
        "gemma3.rope.freq_base": f32(spec.theta),
        "gemma3.attention.sliding_window": u32(spec.window),
        "gemma3.attention.head_count_kv": u32(spec.kv_heads),
    }
    if spec.factor is not None:
        keys["gemma3.rope.scaling.type"] = "linear"
        keys["gemma3.rope.scaling.factor"] = f32(spec.factor)
    return _write_gguf(path, spec, keys, gemma_gguf_tensors(spec), metadata, without, extra)


def _general(architecture: str, name: str) -> dict[str, object]:
    return {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": name,
        "general.license": "apache-2.0",
        "general.file_type": u32(0),
        "general.quantization_version": u32(2),
    }


def _write_gguf(
    path: Path,
    spec: LlamaSpec | GemmaSpec,
    keys: dict[str, object],
    tensors: list[Tensor],
    metadata: Mapping[str, object] | None,
    without: Iterable[str],
    extra: Iterable[Tensor],
) -> Path:
    if spec.tokenizer:
        keys |= gguf_tokenizer(spec.vocab, bos=spec.bos)
    keys |= metadata or {}
    replaced = {name for name, *_ in extra}
    dropped = set(without)
    unknown = dropped - set(keys) - {name for name, *_ in tensors}
    assert not unknown, f"nothing to leave out is called {sorted(unknown)}"
    kept = [t for t in tensors if t[0] not in replaced | dropped] + list(extra)
    keys = {key: value for key, value in keys.items() if key not in dropped}
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_gguf(path, keys, kept, parts=spec.shards)[0]


def config_of(directory: Path) -> dict[str, object]:
    """``config.json`` of a written checkpoint."""
    document: dict[str, object] = json.loads((directory / "config.json").read_text())
    return document
