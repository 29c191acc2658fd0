"""Gemma 4: full and windowed layers of two geometries, keys shared by the last layers.

Norm weights are stored as they are used. Full layers turn the first part of a head's pairs alone,
by frequencies that are counted over the whole head, and may have no values but their raw keys. The
last layers attend to the keys and values of the last layer of their kind that has its own. Each
layer multiplies the whole carrier by a number at its end, and may first add an embedding of its
own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from larql.format.graph import (
    Activation,
    Block,
    Component,
    Layer,
    Norm,
    PerLayerEmbedding,
    PerLayerTable,
    Rope,
    RopeScaling,
    RoutedFfn,
    Router,
    SharedExperts,
    SoftmaxAttention,
)
from larql.format.rows import RowSelection
from larql.format.source.builder import Builder, Family, Part
from larql.format.source.config import ConfigReader
from larql.format.source.experts import Experts, gated_experts
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.names import Naming, common_prefix, hugging_face_naming
from larql.format.source.rope import hugging_face_rope_by_layer_type
from larql.format.source.stretching import rope_type

__all__ = ["FAMILY"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_PATTERN = 6
_FULL_HEAD_DIM = 512
_FULL_SHARE = 0.25
_THETA = {_FULL: 1000000.0, _SLIDING: 10000.0}
_PARTS = {
    "attention.post_norm": "post_attention_layernorm",
    "ffn.norm": "pre_feedforward_layernorm",
    "ffn.post_norm": "post_feedforward_layernorm",
    "ffn.shared.post_norm": "post_feedforward_layernorm_1",
    "ffn.experts.norm": "pre_feedforward_layernorm_2",
    "ffn.experts.post_norm": "post_feedforward_layernorm_2",
    "ffn.experts": "experts",
    "ffn.router": "router.proj",
    "ffn.router.scale": "router.scale",
    "ffn.router.expert_scale": "router.per_expert_scale",
    "per_layer.gate": "per_layer_input_gate",
    "per_layer.up": "per_layer_projection",
    "per_layer.post_norm": "post_per_layer_input_norm",
    "layer_scale": "layer_scalar",
}
_OUTSIDE = {
    "per_layer.table": "embed_tokens_per_layer",
    "per_layer.context": "per_layer_model_projection",
    "per_layer.context_norm": "per_layer_projection_norm",
}
_PREFIXES = (
    ("model.", "lm_head"),
    ("model.language_model.", "lm_head"),
    ("language_model.model.", "language_model.lm_head"),
)
_OTHER_TOWERS = ("embed_vision.", "audio_tower.", "embed_audio.")


@dataclass(frozen=True)
class _Kind:
    """What layers of one kind have in common."""

    window: int | None
    rope: Rope
    raw_values: bool


@dataclass(frozen=True)
class _Numbers:
    hidden: int
    heads: int
    kinds: tuple[str, ...]
    geometry: tuple[tuple[int, int], ...]
    shared_from: int
    ffn: int
    wide_ffn: int
    eps: float
    activation: Activation
    attention_bias: bool
    embedding: int
    experts: tuple[int, int, int] | None


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    config.neutral("use_bidirectional_attention", "vision", False)
    config.refuse_null("sliding_window", "which would leave windowed layers without a window")
    b.naming = _naming(b)
    for tower in _OTHER_TOWERS:
        towers = (tower, f"model.{tower}")
        b.leave((n for n in b.tensors if n.startswith(towers)), "not the text model")
    layers = b.layer_count("num_hidden_layers", 30)
    kinds = _layer_kinds(b, layers)
    ffn = config.count("intermediate_size", 9216)
    n = _Numbers(
        hidden=config.count("hidden_size", 2304),
        heads=config.count("num_attention_heads", 8),
        kinds=kinds,
        geometry=_geometry(config, kinds),
        shared_from=_shared_from(config, kinds),
        ffn=ffn,
        wide_ffn=2 * ffn if config.flag("use_double_wide_mlp", False) else ffn,
        eps=config.number("rms_norm_eps", 1e-6),
        activation=activation(config, "hidden_activation", "gelu_pytorch_tanh", "hidden_act"),
        attention_bias=config.flag("attention_bias", False),
        embedding=config.count("hidden_size_per_layer_input", 256, least=0),
        experts=_experts(config),
    )
    return _component(b, n)


def _experts(config: ConfigReader) -> tuple[int, int, int] | None:
    """Return number of experts, how many are chosen, and their width; None without any."""
    keys = ("num_experts", "top_k_experts", "moe_intermediate_size")
    if not config.flag("enable_moe_block", False):
        config.irrelevant(*keys)
        return None
    count, top, width = (config.count(key) for key in keys)
    if top > count:
        config.refuse("top_k_experts", f"is {top}, of {count} experts", "num_experts")
    return count, top, width


def _naming(b: Builder) -> Naming:
    prefix, head = common_prefix(b.tensors, _PREFIXES)
    names = hugging_face_naming(prefix, head, _PARTS)
    outside = {part: f"{prefix}{name}" for part, name in _OUTSIDE.items()}
    return Naming({**names.parts, **outside})


def _layer_kinds(b: Builder, layers: int) -> tuple[str, ...]:
    """Return the kind of each layer; the last one is always full."""
    known = {_FULL: _FULL, _SLIDING: _SLIDING}
    kinds = layer_kinds(b.config, "layer_types", layers, known)
    if kinds is None:
        kinds = tuple(_SLIDING if (i + 1) % _PATTERN else _FULL for i in range(layers))
    if kinds[-1] != _FULL:
        b.notes.append("warning: the last layer is declared to have a window, but is always full")
    return (*kinds[:-1], _FULL)


def _geometry(config: ConfigReader, kinds: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return key/value heads and width of a head of each layer.

    They are stated for each kind, or in newer files for each layer that differs.
    """
    dim = config.count("head_dim", 256)
    kv_heads = config.count("num_key_value_heads", 4)
    raw_values = config.flag("attention_k_eq_v", False)
    full_dim = config.count("global_head_dim", _FULL_HEAD_DIM)
    full_heads = config.count("num_global_key_value_heads", kv_heads)
    if not raw_values:
        full_heads = kv_heads
    stated = config.child("per_layer_config")
    found = []
    for i, kind in enumerate(kinds):
        if stated is None:
            found.append((full_heads, full_dim) if kind == _FULL else (kv_heads, dim))
            continue
        own = stated.child(str(i))
        layer = (kv_heads, dim)
        if own is not None:
            layer = (own.count("num_key_value_heads", kv_heads), own.count("head_dim", dim))
        if kind == _FULL:
            _same(config, i, "global_head_dim", full_dim, layer[1])
            if raw_values:
                _same(config, i, "num_global_key_value_heads", full_heads, layer[0])
        found.append(layer)
    return tuple(found)


def _same(config: ConfigReader, layer: int, key: str, a: int, b: int) -> None:
    if config.has(key) and a != b:
        config.contradiction(key, f"per_layer_config.{layer}", a, b)


def _shared_from(config: ConfigReader, kinds: tuple[str, ...]) -> int:
    """Return the first layer that attends to keys and values of an earlier one."""
    count = config.count("num_kv_shared_layers", 0, least=0)
    first = len(kinds) - count
    if count and (first <= 0 or set(kinds[first:]) - set(kinds[:first])):
        config.refuse(
            "num_kv_shared_layers",
            f"is {count}, which leaves a kind of layer without keys and values of its own",
            "num_hidden_layers",
            "layer_types",
        )
        return len(kinds)
    return first


def _rope(config: ConfigReader, kind: str, dim: int) -> Rope:
    stated = config.child("rope_parameters")
    reader = None if stated is None else stated.child(kind)
    if stated is None:
        turning = int(_FULL_SHARE * dim // 2) if kind == _FULL else None
        return Rope(layout="half", dims=dim, theta=_THETA[kind], turning=turning)
    if reader is None or rope_type(reader) != "proportional":
        settings = (hugging_face_rope_by_layer_type(config, (kind,)) or {})[kind]
        return settings.rope(dim)
    share = reader.number("partial_rotary_factor", 1.0)
    if share > 1.0:
        reader.refuse("partial_rotary_factor", f"is {share!r}, expected at most 1")
    factor = reader.number("factor", 1.0)
    return Rope(
        layout="half",
        dims=dim,
        theta=reader.number("rope_theta"),
        scaling=None if factor == 1.0 else RopeScaling(kind="linear", factor=factor),
        turning=int(share * dim // 2),
    )


def _component(b: Builder, n: _Numbers) -> Component:
    config = b.config
    embed = b.embed(n.hidden, scale=math.sqrt(n.hidden))
    dims = {kind: dim for kind, (_, dim) in zip(n.kinds, n.geometry, strict=True)}
    window = config.count("sliding_window", 512)
    raw_values = config.flag("attention_k_eq_v", False)
    kinds = {
        kind: _Kind(
            window=window if kind == _SLIDING else None,
            rope=_rope(config, kind, dim),
            raw_values=raw_values and kind == _FULL,
        )
        for kind, dim in dims.items()
    }
    stated = config.child("rope_parameters")
    if stated is not None:
        stated.irrelevant(*({_FULL, _SLIDING} - set(dims)))
    layers = len(n.kinds)
    table, context_norm = None, None
    table_rows = config.count("vocab_size_per_layer_input", 262144)
    if n.embedding:
        name = b.naming.tensor("per_layer.table", None, ".weight")
        shape = (table_rows, layers * n.embedding)
        weight = b.bind("embedding_per_layer", "weight", name, shape)
        scale = math.sqrt(n.embedding)
        table = PerLayerTable(weight, table_rows, layers, n.embedding, scale)
        context_norm = b.norm("per_layer.context_norm", None, n.embedding, n.eps, 0.0)
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=n.hidden,
        vocab_size=embed.vocab,
        context_length=config.count("max_position_embeddings", 131072),
        embed=embed,
        layers=tuple(_layer(b, n, i, kinds[kind], context_norm) for i, kind in enumerate(n.kinds)),
        head=b.head(
            embed,
            b.norm("output", None, n.hidden, n.eps, 0.0),
            tied=config.flag("tie_word_embeddings", True),
            softcap=config.optional_number("final_logit_softcapping"),
        ),
        per_layer=table,
    )


def _layer(b: Builder, n: _Numbers, i: int, kind: _Kind, context_norm: Norm | None) -> Layer:
    def norm(part: str) -> Norm:
        return b.norm(part, i, n.hidden, n.eps, 0.0)

    width = n.wide_ffn if i >= n.shared_from else n.ffn
    blocks = [
        Block(
            site="attention",
            norm=norm("attention.norm"),
            mixer=_attention(b, n, i, kind),
            post_norm=norm("attention.post_norm"),
        ),
        _feed_forward(b, n, i, width),
    ]
    if context_norm is not None:
        blocks.append(
            Block(
                site="per_layer",
                mixer=_embedding(b, n, i, context_norm),
                post_norm=norm("per_layer.post_norm"),
            )
        )
    scale = b.vector("layer_scale", i, 1, stored=(1,))
    return Layer(index=i, blocks=(*blocks[:-1], replace(blocks[-1], carrier_scale=scale)))


def _feed_forward(b: Builder, n: _Numbers, i: int, width: int) -> Block:
    """Describe the feed-forward block; experts read and route the carrier beside the dense FFN."""

    def norm(part: str) -> Norm:
        return b.norm(part, i, n.hidden, n.eps, 0.0)

    before, after = norm("ffn.norm"), norm("ffn.post_norm")
    dense = b.gated_ffn(i, n.hidden, width, n.activation, bias=False)
    if n.experts is None:
        return Block(site="ffn", norm=before, mixer=dense, post_norm=after)
    count, top, expert_width = n.experts
    router = Router(
        scores=b.linear("ffn.router", i, count, n.hidden, bias=False),
        score="softmax",
        top=top,
        renormalise=True,
        expert_scale=b.vector("ffn.router.expert_scale", i, count, stored=(count,)),
        norm=Norm(
            kind="rms",
            width=n.hidden,
            eps=n.eps,
            weight=b.vector("ffn.router.scale", i, n.hidden, stored=(n.hidden,)),
        ),
        factor=1.0 / math.sqrt(n.hidden),
    )
    place = b.naming.tensor("ffn.experts", i, "")
    bank = gated_experts(b, Experts(i, place, count, n.hidden, expert_width), n.activation)
    mixer = RoutedFfn(
        router=router,
        bank=bank,
        shared=SharedExperts(dense, norm=before, post_norm=norm("ffn.shared.post_norm")),
        norm=norm("ffn.experts.norm"),
        post_norm=norm("ffn.experts.post_norm"),
    )
    return Block(site="ffn", mixer=mixer, post_norm=after)


def _attention(b: Builder, n: _Numbers, i: int, kind: _Kind) -> SoftmaxAttention:
    kv_heads, dim = n.geometry[i]
    heads, hidden, bias = n.heads, n.hidden, n.attention_bias
    shared = None
    if i >= n.shared_from:
        shared = max(j for j in range(n.shared_from) if n.kinds[j] == n.kinds[i])
        parts = [b.naming.tensor(f"attention.{part}", i, "") for part in ("k", "v", "k_norm")]
        parts.append(parts[1].replace("v_proj", "v_norm"))
        ignored = [f"{name}.{suffix}" for name in parts for suffix in ("weight", "bias")]
        b.leave((name for name in ignored if name in b.tensors), "keys and values are shared")
    mixer = SoftmaxAttention(
        heads=heads,
        kv_heads=kv_heads,
        key_dim=dim,
        value_dim=dim,
        scale=1.0,
        q=b.linear("attention.q", i, heads * dim, hidden, bias=bias),
        o=b.linear("attention.o", i, hidden, heads * dim, bias=bias),
        window=kind.window,
        shared=shared,
        q_norm=b.norm("attention.q_norm", i, dim, n.eps, 0.0),
        rope=kind.rope,
    )
    if shared is not None:
        return mixer
    v = None
    if not kind.raw_values:
        v = b.linear("attention.v", i, kv_heads * dim, hidden, bias=bias)
    return replace(
        mixer,
        k=b.linear("attention.k", i, kv_heads * dim, hidden, bias=bias),
        v=v,
        k_norm=b.norm("attention.k_norm", i, dim, n.eps, 0.0),
        v_norm=Norm(kind="rms", width=dim, eps=n.eps),
    )


def _embedding(b: Builder, n: _Numbers, i: int, norm: Norm) -> PerLayerEmbedding:
    width = n.embedding
    rows = Part(RowSelection.span(i * width, width), len(n.kinds) * width)
    return PerLayerEmbedding(
        width=width,
        activation=n.activation,
        context=b.linear("per_layer.context", i, width, n.hidden, bias=False, rows=rows),
        norm=norm,
        gate=b.linear("per_layer.gate", i, width, n.hidden, bias=False),
        up=b.linear("per_layer.up", i, n.hidden, width, bias=False),
        context_scale=1.0 / math.sqrt(n.hidden),
        combined=math.sqrt(0.5),
    )


FAMILY = Family(
    name="gemma4",
    model_types=("gemma4_text", "gemma4"),
    architectures=(),
    hugging_face=_hugging_face,
)
