"""Granite 3 and 4 beyond Llama's layers: state spaces beside attention, a dense or routed FFN.

``in_proj`` of a state-space layer holds the rows of gate, x, B, C and step one after the other, its
convolution the channels of x, B and C. ``input_linear`` of the dense FFN holds gate, then up.

GGUF files have gate and up apart, rates negated, and rows of q and k so that neighbours turn
together, if any do: whether there is a rope is said by a key of its scaling. A layer without
key/value heads is a state space; the models before, all of attention, are ``granitemoe``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from larql.format.graph import (
    Activation,
    Block,
    Component,
    Layer,
    Mixer,
    Rope,
    RoutedFfn,
    SharedExperts,
    Ssm,
)
from larql.format.rows import RowSelection
from larql.format.source import routed
from larql.format.source.binder import Part
from larql.format.source.builder import Builder, Family, HeadGeometry
from larql.format.source.config import ConfigReader
from larql.format.source.experts import Experts, fused_experts
from larql.format.source.gguf_experts import gguf_experts
from larql.format.source.gguf_recurrent import no_recurrent_layers, one_count, recurrent_keys
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.names import Naming, hugging_face_naming
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_SSM, _FULL = "linear_attention", "full_attention"
_KINDS = {_SSM: _SSM, _FULL: _FULL, "mamba": _SSM, "attention": _FULL}
_PARTS = {
    "ssm.gate": "mamba.in_proj",
    "ssm.x": "mamba.in_proj",
    "ssm.b": "mamba.in_proj",
    "ssm.c": "mamba.in_proj",
    "ssm.step": "mamba.in_proj",
    "ssm.x_conv": "mamba.conv1d",
    "ssm.b_conv": "mamba.conv1d",
    "ssm.c_conv": "mamba.conv1d",
    "ssm.decay_rate": "mamba.A_log",
    "ssm.step_bias": "mamba.dt_bias",
    "ssm.skip": "mamba.D",
    "ssm.norm": "mamba.norm",
    "ssm.o": "mamba.out_proj",
    "ffn.gate": "shared_mlp.input_linear",
    "ffn.up": "shared_mlp.input_linear",
    "ffn.down": "shared_mlp.output_linear",
    "ffn.router": "block_sparse_moe.router.layer",
}
_GGUF_PARTS = {
    f"ssm.{part}": f"blk.{{i}}.{name}"
    for name, parts in {
        "ssm_in": ("gate", "x", "b", "c", "step"),
        "ssm_conv1d": ("x_conv", "b_conv", "c_conv"),
        "ssm_a": ("decay_rate",),
        "ssm_dt.bias": ("step_bias",),
        "ssm_d": ("skip",),
        "ssm_norm": ("norm",),
        "ssm_out": ("o",),
    }.items()
    for part in parts
}
# Two ways to spell the router and the experts.
_ROUTERS = (r"\.router\.layer\.weight$", r"\.router\.weight$")
_EXPERTS = (r"\.block_sparse_moe\.experts\.", r"\.block_sparse_moe\.(in|out)put_linear")
_ROUTED = ("num_experts_per_tok", "output_router_logits", "router_aux_loss_coef")


@dataclass(frozen=True)
class _SsmNumbers:
    heads: int
    head_dim: int
    groups: int
    state_dim: int
    taps: int
    conv_bias: bool | None
    bias: bool | None
    limits: tuple[float, float | None]
    rates: Literal["negated"] | None = None

    @property
    def converted(self) -> bool:
        """Whether tensors have the shapes of a GGUF file."""
        return self.rates == "negated"


@dataclass(frozen=True)
class _ExpertNumbers:
    count: int
    width: int
    top: int


@dataclass(frozen=True)
class _Numbers:
    hidden: int
    eps: float
    activation: Activation
    ffn: int
    residual_scale: float
    geometry: HeadGeometry
    scale: float
    attention_bias: bool | None
    rope: Rope | None
    ssm: _SsmNumbers | None


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    config.irrelevant("mamba_chunk_size", "init_method")
    config.neutral("normalization_function", "rmsnorm")
    b.naming = hugging_face_naming("model.", "lm_head", _PARTS)
    if b.spelling(*_ROUTERS) == _ROUTERS[1]:
        parts = {**_PARTS, "ffn.router": "block_sparse_moe.router"}
        b.naming = hugging_face_naming("model.", "lm_head", parts)
    hidden = config.count("hidden_size", 4096)
    kinds = _layer_kinds(config, b.layer_count("num_hidden_layers", 32))
    heads = config.count("num_attention_heads", 32)
    head_dim = config.count("head_dim", hidden // heads)
    config.refuse_null("attention_multiplier", "which is no scale; a number is expected, or no key")
    n = _Numbers(
        hidden=hidden,
        eps=config.number("rms_norm_eps", 1e-6),
        activation=activation(config, "hidden_act", "silu"),
        ffn=config.count("shared_intermediate_size", 1024),
        residual_scale=config.number("residual_multiplier", 1.0),
        geometry=HeadGeometry(heads, config.count("num_key_value_heads", heads), head_dim),
        scale=config.number("attention_multiplier", 1.0),
        attention_bias=config.flag("attention_bias", False),
        rope=_rope(config, head_dim),
        ssm=_ssm_numbers(config, hidden),
    )
    experts = _experts(config)
    embed = b.embed(hidden, scale=config.number("embedding_multiplier", 1.0))
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=hidden,
        vocab_size=embed.vocab,
        context_length=config.count("max_position_embeddings", 2048),
        embed=embed,
        layers=tuple(
            _layer(b, i, kind, n, lambda i: _ffn(b, i, n, experts)) for i, kind in enumerate(kinds)
        ),
        head=b.head(
            embed,
            b.norm("output", None, hidden, n.eps, 0.0),
            tied=config.flag("tie_word_embeddings", False),
            multiplier=1.0 / config.number("logits_scaling", 1.0),
        ),
    )


def _layer_kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    kinds = layer_kinds(config, "layer_types", layers, _KINDS)
    older = layer_kinds(config, "layers_block_type", layers, _KINDS)
    if kinds is not None and older is not None and kinds != older:
        at = next(i for i in range(layers) if kinds[i] != older[i])
        config.contradiction(f"layer_types[{at}]", f"layers_block_type[{at}]", kinds[at], older[at])
    return kinds or older or (_SSM,) * layers


def _rope(config: ConfigReader, head_dim: int) -> Rope | None:
    kind = config.choice("position_embedding_type", {"rope": "rope", "nope": "nope"}, "nope")
    found = hugging_face_rope(config, 10000.0)
    return None if kind == "nope" else found.rope(head_dim)


def _ssm_numbers(config: ConfigReader, hidden: int) -> _SsmNumbers:
    inner = config.count("mamba_expand", 2) * hidden
    heads = config.count("mamba_n_heads", 128)
    if config.states("mamba_d_head", "auto"):
        head_dim = max(1, inner // heads)
    else:
        head_dim = config.count("mamba_d_head", inner // heads)
    if heads * head_dim != inner:
        config.contradiction(
            "mamba_n_heads", "mamba_expand", f"{heads} heads of {head_dim}", f"a width of {inner}"
        )
    return _SsmNumbers(
        heads=heads,
        head_dim=head_dim,
        groups=config.count("mamba_n_groups", 1),
        state_dim=config.count("mamba_d_state", 256),
        taps=config.count("mamba_d_conv", 4),
        conv_bias=config.flag("mamba_conv_bias", True),
        bias=config.flag("mamba_proj_bias", False),
        limits=config.limits("time_step_limit"),
    )


def _experts(config: ConfigReader) -> _ExpertNumbers | None:
    """Judge the keys of routed experts, of which there may be none."""
    count = config.count("num_experts", 8, least=0)
    if not count:
        config.irrelevant("intermediate_size", *_ROUTED)
        return None
    routed.router_keys(config)
    width = config.count("intermediate_size", 11008)
    return _ExpertNumbers(count, width, routed.top_of(config, count, 2))


def _ffn(b: Builder, i: int, n: _Numbers, e: _ExpertNumbers | None) -> Mixer:
    """Describe what every position passes through, and the experts beside it."""
    dense = b.gated_ffn(i, n.hidden, n.ffn, n.activation, bias=False, stacked=True)
    if e is None:
        return dense
    prefix = f"model.layers.{i}.block_sparse_moe"
    stored = b.spelling(*_EXPERTS) != _EXPERTS[0]
    names = ("input_linear", "output_linear") if stored else ("gate_up_proj", "down_proj")
    place = Experts(i, prefix if stored else f"{prefix}.experts", e.count, n.hidden, e.width)
    return RoutedFfn(
        # Only the logits of the chosen go through the softmax, which renormalises them.
        routed.router(b, i, n.hidden, e.count, score="softmax", top=e.top, renormalise=True),
        fused_experts(b, place, n.activation, *names),
        SharedExperts(dense),
    )


def _layer(b: Builder, i: int, kind: str, n: _Numbers, ffn: Callable[[int], Mixer]) -> Layer:
    mixer: Mixer
    if kind == _SSM and n.ssm is not None:
        mixer = _ssm(b, i, n, n.ssm)
    else:
        mixer = b.attention(
            i, n.hidden, n.geometry, scale=n.scale, bias=n.attention_bias, rope=n.rope
        )
    return Layer(
        index=i,
        blocks=(
            Block(
                site="attention",
                norm=b.norm("attention.norm", i, n.hidden, n.eps, 0.0),
                mixer=mixer,
                residual_scale=n.residual_scale,
            ),
            Block(
                site="ffn",
                norm=b.norm("ffn.norm", i, n.hidden, n.eps, 0.0),
                mixer=ffn(i),
                residual_scale=n.residual_scale,
            ),
        ),
    )


def _ssm(b: Builder, i: int, n: _Numbers, s: _SsmNumbers) -> Ssm:
    inner, states = s.heads * s.head_dim, s.groups * s.state_dim
    sizes = {"gate": inner, "x": inner, "b": states, "c": states, "step": s.heads}
    linears = {
        part: b.linear(f"ssm.{part}", i, sizes[part], n.hidden, bias=s.bias, rows=rows)
        for part, rows in _spans(sizes).items()
    }
    channels = {"x": inner, "b": states, "c": states}
    convolutions = {
        part: b.convolution(
            f"ssm.{part}_conv",
            i,
            channels[part],
            s.taps,
            n.activation,
            bias=s.conv_bias,
            rows=rows,
            squeezed=s.converted,
        )
        for part, rows in _spans(channels).items()
    }
    heads, column = (s.heads,), (s.heads, 1) if s.converted else (s.heads,)
    runs = (s.groups, inner // s.groups) if s.converted else (inner,)
    return Ssm(
        heads=s.heads,
        head_dim=s.head_dim,
        groups=s.groups,
        state_dim=s.state_dim,
        gate=linears["gate"],
        x=linears["x"],
        b=linears["b"],
        c=linears["c"],
        step=linears["step"],
        x_conv=convolutions["x"],
        b_conv=convolutions["b"],
        c_conv=convolutions["c"],
        decay_rate=b.vector("ssm.decay_rate", i, s.heads, stored=column),
        step_bias=b.vector("ssm.step_bias", i, s.heads, stored=heads),
        skip=b.vector("ssm.skip", i, s.heads, stored=column),
        norm=b.norm("ssm.norm", i, inner, n.eps, 0.0, stored=runs),
        gate_activation="silu",
        o=b.linear("ssm.o", i, n.hidden, inner, bias=s.bias),
        step_least=s.limits[0],
        step_most=s.limits[1],
        rates=s.rates,
    )


def _spans(sizes: dict[str, int]) -> dict[str, Part]:
    """Return the rows of parts that stand one after the other."""
    total, first, found = sum(sizes.values()), 0, {}
    for part, size in sizes.items():
        found[part] = Part(RowSelection.span(first, size), total)
        first += size
    return found


def _gguf(b: Builder) -> Component:
    config = b.config
    b.naming = Naming({**b.naming.parts, **_GGUF_PARTS})
    hidden, heads = config.count("embedding_length"), config.count("attention.head_count")
    layers = b.layer_count("block_count")
    kv_heads = config.counts_by_layer("attention.head_count_kv", layers)
    one = one_count(config, "attention.head_count_kv", kv_heads, heads)
    head_dim = config.count("attention.key_length", hidden // heads)
    config.neutral("attention.value_length", head_dim)
    config.neutral("rope.dimension_count", head_dim)
    turns = config.flag("rope.scaling.finetuned", True)
    rope = gguf_rope(config, 10000.0)
    hybrid = 0 in kv_heads
    if not hybrid:
        no_recurrent_layers(config)
    width = config.count("feed_forward_length")
    n = _Numbers(
        hidden=hidden,
        eps=config.number("attention.layer_norm_rms_epsilon"),
        activation="silu",
        ffn=width,
        residual_scale=config.number("residual_scale", 1.0),
        geometry=HeadGeometry(heads, one, head_dim),
        scale=config.number("attention.scale"),
        attention_bias=None,
        rope=rope.rope(head_dim, "adjacent") if turns else None,
        ssm=_gguf_ssm_numbers(config) if hybrid else None,
    )
    embed = b.embed(hidden, scale=config.number("embedding_scale", 1.0))
    ffn = _gguf_ffn(b, n)
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=hidden,
        vocab_size=embed.vocab,
        context_length=config.count("context_length"),
        embed=embed,
        layers=tuple(
            _layer(b, i, _FULL if count else _SSM, n, ffn) for i, count in enumerate(kv_heads)
        ),
        head=b.head(
            embed,
            b.norm("output", None, hidden, n.eps, 0.0),
            tied=None,
            multiplier=1.0 / config.number("logit_scale", 1.0),
        ),
    )


def _gguf_ssm_numbers(config: ConfigReader) -> _SsmNumbers:
    s = recurrent_keys(config)
    return _SsmNumbers(
        heads=s.heads,
        head_dim=s.head_dim,
        groups=s.groups,
        state_dim=s.state,
        taps=s.taps,
        conv_bias=None,
        bias=None,
        limits=(0.0, None),
        rates="negated",
    )


def _gguf_ffn(b: Builder, n: _Numbers) -> Callable[[int], Mixer]:
    """Return what describes the FFN of a layer, which routes if there are experts."""
    config = b.config
    if config.count("expert_count", 0, least=0):
        experts = gguf_experts(b, n.ffn, renormalises=True)
        return lambda i: experts.routed_ffn(b, i, n.hidden, n.activation)
    config.irrelevant("expert_used_count")
    # Without experts, what stands beside them is all there is.
    width = config.count("expert_shared_feed_forward_length", n.ffn)
    return lambda i: b.gated_ffn(i, n.hidden, width, n.activation, bias=False)


FAMILY = Family(
    name="granitemoehybrid",
    model_types=("granitemoehybrid",),
    architectures=("granitehybrid", "granitemoe"),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
