"""Kimi Linear: delta attention with a decay for each channel, latent attention in between.

Layers are numbered from 1 in ``linear_attn_config``. Decays and output gates pass a low rank, as
wide as a head. Dense feed-forward layers stand under ``mlp``, or under ``block_sparse_moe`` as the
routed ones do. In GGUF files a layer without key/value heads is one of delta attention, whose
number of heads only its tensors tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from larql.format.graph import Activation, Block, Component, Kda, Layer, Mixer
from larql.format.source import routed
from larql.format.source.builder import Builder, Family
from larql.format.source.config import ConfigReader
from larql.format.source.gguf_experts import gguf_experts
from larql.format.source.gguf_recurrent import one_count
from larql.format.source.grouped import (
    GROUPED_PARTS,
    LEAST_SUM,
    Grouped,
    expert_groups,
    grouped_ffn,
)
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.latent import (
    LatentGeometry,
    gguf_latent_geometry,
    latent_attention,
)
from larql.format.source.names import Naming, hugging_face_naming
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_DELTA, _FULL = "linear_attention", "full_attention"
_DENSE, _SPARSE = "dense", "sparse"
_UNIT_EPS = 1e-6  # of the unit vectors; no key names it
_LATENT_EPS = 1e-6  # of the norms of latents and narrow queries; no key names it either
_PARTS = {
    "kda.q": "self_attn.q_proj",
    "kda.k": "self_attn.k_proj",
    "kda.v": "self_attn.v_proj",
    "kda.beta": "self_attn.b_proj",
    "kda.decay_down": "self_attn.f_a_proj",
    "kda.decay_up": "self_attn.f_b_proj",
    "kda.gate_down": "self_attn.g_a_proj",
    "kda.gate_up": "self_attn.g_b_proj",
    "kda.q_conv": "self_attn.q_conv1d",
    "kda.k_conv": "self_attn.k_conv1d",
    "kda.v_conv": "self_attn.v_conv1d",
    "kda.decay_rate": "self_attn.A_log",
    "kda.decay_bias": "self_attn.dt_bias",
    "kda.norm": "self_attn.o_norm",
    "kda.o": "self_attn.o_proj",
}
_GGUF_PARTS = {
    "kda.q": "blk.{i}.attn_q",
    "kda.k": "blk.{i}.attn_k",
    "kda.v": "blk.{i}.attn_v",
    "kda.beta": "blk.{i}.ssm_beta",
    "kda.decay_down": "blk.{i}.ssm_f_a",
    "kda.decay_up": "blk.{i}.ssm_f_b",
    "kda.gate_down": "blk.{i}.ssm_g_a",
    "kda.gate_up": "blk.{i}.ssm_g_b",
    "kda.q_conv": "blk.{i}.ssm_conv1d_q",
    "kda.k_conv": "blk.{i}.ssm_conv1d_k",
    "kda.v_conv": "blk.{i}.ssm_conv1d_v",
    "kda.decay_rate": "blk.{i}.ssm_a",
    "kda.decay_bias": "blk.{i}.ssm_dt.bias",
    "kda.norm": "blk.{i}.ssm_norm",
    "kda.o": "blk.{i}.attn_output",
}
_NAMES = (
    ("max_position_embeddings", "model_max_length"),
    ("moe_router_activation_func", "scoring_func"),
    ("n_group", "num_expert_group"),
    ("norm_topk_prob", "moe_renormalize"),
    ("num_experts_per_tok", "num_experts_per_token"),
)
_LINEAR = "linear_attn_config"
_ROUTED_PART = "block_sparse_moe"
_FFN_PARTS = {f"ffn.{part}": f"{_ROUTED_PART}.{part}_proj" for part in ("gate", "up", "down")}
_ROUTED_PARTS = {
    part: name.replace("mlp.", f"{_ROUTED_PART}.") for part, name in GROUPED_PARTS.items()
}


_ROUTED = (
    "moe_intermediate_size",
    "moe_renormalize",
    "moe_router_activation_func",
    "n_group",
    "n_shared_experts",
    "norm_topk_prob",
    "num_expert_group",
    "num_experts",
    "num_experts_per_tok",
    "num_experts_per_token",
    "num_local_experts",
    "num_shared_experts",
    "output_router_logits",
    "routed_scaling_factor",
    "topk_group",
    "topk_method",
    "use_grouped_topk",
)


@dataclass(frozen=True)
class _Numbers:
    hidden: int
    eps: float
    activation: Activation
    ffn: int
    heads: int
    head_dim: int
    taps: int
    latent: LatentGeometry
    attention_bias: bool | None
    apart: bool = False
    rates: Literal["negated"] | None = None


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    for names in _NAMES:
        config.same(*names)
    stacked = any(f".{part}." in name for name in b.tensors for part in _FFN_PARTS.values())
    parts = {**_PARTS, **_ROUTED_PARTS, **(_FFN_PARTS if stacked else {})}
    b.naming = hugging_face_naming("model.", "lm_head", parts)
    config.neutral("pretraining_tp", 1)
    config.neutral("num_nextn_predict_layers", 0)
    layers = b.layer_count("num_hidden_layers", 27)
    linear = config.child(_LINEAR)
    kinds, ffns = _kinds(config, linear, layers), _ffn_kinds(config, layers)
    n = _Numbers(
        hidden=config.count("hidden_size", 2304),
        eps=config.number("rms_norm_eps", 1e-5),
        activation=activation(config, "hidden_act", "silu"),
        ffn=config.count("intermediate_size", 9216),
        heads=_either(config, "linear_num_heads", linear, "num_heads", 32),
        head_dim=_either(config, "linear_head_dim", linear, "head_dim", 128),
        taps=_either(config, "linear_conv_kernel_dim", linear, "short_conv_kernel_size", 4),
        latent=_latent_geometry(config),
        attention_bias=config.flag("attention_bias", False),
    )
    b.naming = Naming({**b.naming.parts, **_layer_names(n.latent.parts())})
    grouped = _grouped(config) if _SPARSE in ffns else None
    if grouped is None:
        config.irrelevant(*_ROUTED)

    def ffn(i: int) -> Mixer:
        if ffns[i] != _SPARSE or grouped is None:
            return b.gated_ffn(i, n.hidden, n.ffn, n.activation, bias=False)
        names = ("w1", "w3", "w2")
        return grouped_ffn(b, i, n.hidden, grouped, n.activation, module=_ROUTED_PART, names=names)

    context = _either(config, "model_max_length", config, "max_position_embeddings", 1048576)
    return _component(b, n, kinds, ffn, context, config.flag("tie_word_embeddings", False))


def _component(
    b: Builder,
    n: _Numbers,
    kinds: tuple[str, ...],
    ffn: Callable[[int], Mixer],
    context: int,
    tied: bool | None,
) -> Component:
    embed = b.embed(n.hidden, scale=1.0)
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=n.hidden,
        vocab_size=embed.vocab,
        context_length=context,
        embed=embed,
        layers=tuple(_layer(b, i, kind, n, ffn(i)) for i, kind in enumerate(kinds)),
        head=b.head(embed, b.norm("output", None, n.hidden, n.eps, 0.0), tied=tied),
    )


def _gguf(b: Builder) -> Component:
    config = b.config
    b.naming = Naming({**b.naming.parts, **_GGUF_PARTS})
    layers = b.layer_count("block_count")
    counts = config.counts_by_layer("attention.head_count_kv", layers)
    heads = config.count("attention.head_count")
    geometry, apart = gguf_latent_geometry(b, heads)
    key = "attention.head_count_kv"
    if one_count(config, key, counts, 1) != (1 if apart else heads):
        config.contradiction(key, "attention.head_count", sorted(set(counts)), heads)
    b.naming = Naming({**b.naming.parts, **geometry.gguf_parts(apart=apart)})
    # No position turns anything here; still, settings that nobody knows are refused.
    gguf_rope(config, 10000.0)
    kinds = tuple(_FULL if count else _DELTA for count in counts)
    n = _Numbers(
        hidden=config.count("embedding_length"),
        eps=config.number("attention.layer_norm_rms_epsilon"),
        activation="silu",
        ffn=config.count("feed_forward_length"),
        heads=_gguf_heads(b, kinds),
        head_dim=config.count("kda.head_dim"),
        taps=config.count("ssm.conv_kernel"),
        latent=geometry,
        attention_bias=None,
        apart=apart,
        rates="negated",
    )
    experts = gguf_experts(b, 1, renormalises=True, score=2, eps=LEAST_SUM, grouped=True)

    def ffn(i: int) -> Mixer:
        if experts.routes(b, i):
            return experts.routed_ffn(b, i, n.hidden, n.activation)
        return b.gated_ffn(i, n.hidden, n.ffn, n.activation, bias=False)

    return _component(b, n, kinds, ffn, config.count("context_length"), None)


def _gguf_heads(b: Builder, kinds: tuple[str, ...]) -> int:
    """Return how many heads delta layers have: one rate for each."""
    if _DELTA not in kinds:
        return 1
    rates = b.tensors.get(b.naming.tensor("kda.decay_rate", kinds.index(_DELTA), ""))
    return 1 if rates is None else math.prod(rates.shape)


def _either(
    first: ConfigReader, key: str, second: ConfigReader | None, other: str, default: int
) -> int:
    """Take a count that may stand outside, or inside under another name."""
    a = first.optional_count(key)
    b = None if second is None else second.optional_count(other)
    if a is not None and b is not None and a != b:
        first.contradiction(key, f"{_LINEAR}.{other}", a, b)
    return a or b or default


def _kinds(config: ConfigReader, linear: ConfigReader | None, layers: int) -> tuple[str, ...]:
    stated = layer_kinds(config, "layer_types", layers, {_DELTA: _DELTA, _FULL: _FULL})
    listed = None if linear is None else _listed(linear, layers)
    if stated is not None and listed is not None and stated != listed:
        at = next(i for i in range(layers) if stated[i] != listed[i])
        config.contradiction("layer_types", _LINEAR, f"{stated[at]} at {at}", listed[at])
    usual = tuple(_FULL if i and i % 4 == 0 else _DELTA for i in range(layers))
    return stated or listed or usual


def _listed(linear: ConfigReader, layers: int) -> tuple[str, ...] | None:
    """Return the kinds that two lists of layer numbers, beginning with 1, give to the layers."""
    full = linear.counts("full_attn_layers", least=1)
    delta = linear.counts("kda_layers", least=1)
    if full is None or delta is None:
        return None
    if sorted((*full, *delta)) != list(range(1, layers + 1)):
        linear.refuse(
            "kda_layers", f"and full_attn_layers do not name each of layers 1 to {layers} once"
        )
        return None
    return tuple(_FULL if i + 1 in full else _DELTA for i in range(layers))


def _ffn_kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    stated = layer_kinds(config, "mlp_layer_types", layers, {_DENSE: _DENSE, _SPARSE: _SPARSE})
    config.neutral("moe_layer_freq", 1)
    has_first = config.has("first_k_dense_replace")
    first = config.count("first_k_dense_replace", 1, least=0)
    usual = tuple(_DENSE if i < first else _SPARSE for i in range(layers))
    if stated is not None and has_first and stated != usual:
        config.contradiction("mlp_layer_types", "first_k_dense_replace", stated, first)
    return stated or usual


def _latent_geometry(config: ConfigReader) -> LatentGeometry:
    # No position turns anything here: what is called rope is a part of the keys like the other.
    config.neutral("mla_use_nope", True)
    config.irrelevant("head_dim", "num_key_value_heads", "qk_head_dim")
    hugging_face_rope(config, 10000.0)  # still, settings that nobody knows are refused
    config.irrelevant("rope_interleave")
    return LatentGeometry(
        heads=config.count("num_attention_heads", 32),
        nope_dim=config.count("qk_nope_head_dim", 128),
        rope_dim=config.count("qk_rope_head_dim", 64),
        value_dim=config.count("v_head_dim", 128),
        latent_dim=config.count("kv_lora_rank", 512),
        q_rank=config.optional_count("q_lora_rank"),
    )


def _layer_names(parts: Mapping[str, str]) -> dict[str, str]:
    return {part: f"model.layers.{{i}}.{name}" for part, name in parts.items()}


def _grouped(config: ConfigReader) -> Grouped:
    """Judge the keys of routed layers, many of which have two names."""
    routed.router_keys(config)
    config.neutral("moe_router_activation_func", "sigmoid")
    config.neutral("topk_method", "noaux_tc")
    count, top = routed.expert_count(config, 256), config.count("num_experts_per_tok", 8)
    groups = config.count("n_group", 1)
    kept = config.count("topk_group", 1)
    # With one group there is nothing that groups could choose.
    config.neutral("use_grouped_topk", *((True, False) if groups == 1 else (True,)))
    return Grouped(
        count=count,
        width=config.count("moe_intermediate_size", 1024),
        top=top,
        shared=config.count("num_shared_experts", 1),
        groups=expert_groups(config, count, top, groups, kept),
        scale=config.number("routed_scaling_factor", 2.446),
        renormalise=config.flag("norm_topk_prob", True),
    )


def _layer(b: Builder, i: int, kind: str, n: _Numbers, ffn: Mixer) -> Layer:
    mixer: Mixer
    if kind == _DELTA:
        mixer = _kda(b, i, n)
    else:
        mixer = latent_attention(
            b,
            i,
            n.hidden,
            n.latent,
            scale=1.0 / math.sqrt(n.latent.nope_dim + n.latent.rope_dim),
            eps=_LATENT_EPS,
            bias=n.attention_bias,
            rope=None,
            apart=n.apart,
        )
    return Layer(
        index=i,
        blocks=(
            Block(
                site="attention",
                norm=b.norm("attention.norm", i, n.hidden, n.eps, 0.0),
                mixer=mixer,
            ),
            Block(
                site="ffn",
                norm=b.norm("ffn.norm", i, n.hidden, n.eps, 0.0),
                mixer=ffn,
            ),
        ),
    )


def _kda(b: Builder, i: int, n: _Numbers) -> Kda:
    width = n.heads * n.head_dim
    q, k, v = (b.linear(f"kda.{part}", i, width, n.hidden, bias=False) for part in "qkv")
    convolutions = [
        b.convolution(f"kda.{part}_conv", i, width, n.taps, n.activation) for part in "qkv"
    ]
    return Kda(
        heads=n.heads,
        key_dim=n.head_dim,
        value_dim=n.head_dim,
        scale=1.0 / math.sqrt(n.head_dim),
        unit_eps=_UNIT_EPS,
        q=q,
        k=k,
        v=v,
        beta=b.linear("kda.beta", i, n.heads, n.hidden, bias=False),
        decay_down=b.linear("kda.decay_down", i, n.head_dim, n.hidden, bias=False),
        decay_up=b.linear("kda.decay_up", i, width, n.head_dim, bias=False),
        gate_down=b.linear("kda.gate_down", i, n.head_dim, n.hidden, bias=False),
        gate_up=b.linear("kda.gate_up", i, width, n.head_dim, bias=False),
        q_conv=convolutions[0],
        k_conv=convolutions[1],
        v_conv=convolutions[2],
        decay_rate=b.vector("kda.decay_rate", i, n.heads, stored=(1, 1, n.heads, 1)),
        decay_bias=b.vector("kda.decay_bias", i, width, stored=(width,)),
        norm=b.norm("kda.norm", i, n.head_dim, n.eps, 0.0),
        gate_activation="sigmoid",
        o=b.linear("kda.o", i, n.hidden, width, bias=False),
        rates=n.rates,
    )


FAMILY = Family(
    name="kimi_linear",
    model_types=("kimi_linear",),
    architectures=("kimi-linear",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
