"""Inkling: short convolutions around attention and FFN, scores that lean on the distance.

No rotation: each head adds a bias of the key's distance to its scores. Keys and values pass a
convolution before the norms, and so does what each block writes. Experts share their weights with
those that every position passes through. The text model stands alone, or inside of one that sees
and hears, whose published tensors have names of their own and rows of gate and up in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from larql.format.graph import (
    Activation,
    Block,
    Component,
    DenseFfn,
    DistanceBias,
    Embed,
    Layer,
    Linear,
    PositionScale,
    RoutedFfn,
    Router,
    SoftmaxAttention,
)
from larql.format.rows import RowSelection
from larql.format.source import routed
from larql.format.source.binder import Part
from larql.format.source.builder import Builder, Family, HeadGeometry
from larql.format.source.config import ConfigReader
from larql.format.source.experts import Experts, fused_experts
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.names import Naming, common_prefix, hugging_face_naming

__all__ = ["FAMILY"]

_USUAL = {
    "attention.distance": "self_attn.r_proj",
    "attention.profiles": "self_attn.rel_logits_proj.proj",
    "attention.k_conv": "self_attn.k_sconv.conv1d",
    "attention.v_conv": "self_attn.v_sconv.conv1d",
    "attention.conv": "attn_sconv.conv1d",
    "ffn.conv": "mlp_sconv.conv1d",
    "ffn.scale": "mlp.global_scale",
    "ffn.router": "mlp.gate",
    "ffn.router.correction": "mlp.gate.e_score_correction_bias",
    "ffn.router.global_scale": "mlp.gate.global_scale",
    "ffn.shared.gate": "mlp.shared_experts.gate_proj",
    "ffn.shared.up": "mlp.shared_experts.up_proj",
    "ffn.shared.down": "mlp.shared_experts.down_proj",
}
_PUBLISHED = {
    **_USUAL,
    "attention.norm": "attn_norm",
    "attention.q": "attn.wq_du",
    "attention.k": "attn.wk_dv",
    "attention.v": "attn.wv_dv",
    "attention.o": "attn.wo_ud",
    "attention.q_norm": "attn.q_norm",
    "attention.k_norm": "attn.k_norm",
    "attention.distance": "attn.wr_du",
    "attention.profiles": "attn.rel_logits_proj.proj",
    "attention.k_conv": "attn.k_sconv",
    "attention.v_conv": "attn.v_sconv",
    "attention.conv": "attn_sconv",
    "ffn.norm": "mlp_norm",
    "ffn.conv": "mlp_sconv",
    "ffn.gate": "mlp.w13_dn",
    "ffn.up": "mlp.w13_dn",
    "ffn.down": "mlp.w2_md",
    "ffn.router.correction": "mlp.gate.bias",
    "ffn.shared.gate": "mlp.shared_experts.shared_w13_weight",
    "ffn.shared.up": "mlp.shared_experts.shared_w13_weight",
    "ffn.shared.down": "mlp.shared_experts.shared_w2_weight",
}
_PREFIXES = (
    ("model.", "lm_head"),
    ("model.language_model.", "lm_head"),
    ("model.llm.", "model.llm.unembed"),
)
_KINDS = {"hybrid": "full", "hybrid_sliding": "sliding"}
_FFN_KINDS = {"dense": "dense", "sparse": "sparse"}


@dataclass(frozen=True)
class _Numbers:
    hidden: int
    eps: float
    taps: int
    full: HeadGeometry
    sliding: HeadGeometry
    window: int
    profiles: int
    extent: int
    growth: PositionScale | None
    act: Activation
    ffn: int
    width: int
    experts: int
    top: int
    shared: int
    scale: float
    published: bool


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    config.same("max_position_embeddings", "model_max_length")
    config.same("sliding_window_size", "sliding_window")
    config.same("conv_kernel_size", "sconv_kernel_size")
    config.same("logits_mup_width_multiplier", "embedding_multiplier")
    config.neutral("shared_expert_sink", True)
    config.irrelevant(
        "number_of_conv_states", "rms_norm_eps_moe_gate", "num_mtp_layers",
        "chain_hidden_post_norm", "mtp_hidden_states_first", "mtp_local_layer_ids",
    )  # fmt: skip
    prefix, _ = common_prefix(b.tensors, _PREFIXES)
    published = prefix == _PREFIXES[-1][0]
    b.naming = _naming(prefix)
    drafts = [name for name in b.tensors if name.startswith("model.mtp.")]
    if drafts:
        b.leave(drafts, "a layer that drafts tokens")
        b.notes.append(f"{len(drafts)} tensors of layers that draft tokens were left behind")
    layers = b.layer_count("num_hidden_layers", 66)
    n = _numbers(config, published)
    kinds, ffns = _layer_kinds(config, layers), _ffn_kinds(config, layers)
    embed = _embed(b, n)
    stated = config.optional_count("unpadded_vocab_size")
    vocab = embed.vocab if stated is None else min(stated, embed.vocab)
    pairs = zip(kinds, ffns, strict=True)
    return Component(
        id=b.component,
        role="decoder",
        hidden_size=n.hidden,
        vocab_size=vocab,
        context_length=config.count("max_position_embeddings", 131072),
        embed=embed,
        layers=tuple(_layer(b, i, kind, ffn, n) for i, (kind, ffn) in enumerate(pairs)),
        head=b.head(
            embed,
            b.norm("output", None, n.hidden, n.eps, 0.0),
            tied=config.flag("tie_word_embeddings", False),
            multiplier=1.0 / config.number("logits_mup_width_multiplier", 24.0),
            vocab=vocab,
        ),
    )


def _naming(prefix: str) -> Naming:
    head = dict(_PREFIXES)[prefix]
    if prefix == _PREFIXES[-1][0]:
        names = hugging_face_naming(prefix, head, _PUBLISHED)
        own = {"embedding": "model.llm.embed", "embedding_norm": "model.llm.embed_norm"}
        return Naming({**names.parts, **own})
    names = hugging_face_naming(prefix, head, _USUAL)
    return Naming({**names.parts, "embedding_norm": f"{prefix}embed_tokens.embed_norm"})


def _numbers(config: ConfigReader, published: bool) -> _Numbers:
    floor = config.optional_count("log_scaling_n_floor")
    still = config.states("log_scaling_alpha", 0.0) or config.states("log_scaling_alpha", 0)
    rate = 0.0 if still else config.number("log_scaling_alpha", 0.1)
    ffn, width = _widths(config)
    experts = routed.expert_count(config, 256)
    return _Numbers(
        hidden=config.count("hidden_size", 6144),
        eps=config.number("rms_norm_eps", 1e-6),
        taps=config.count("conv_kernel_size", 4),
        full=HeadGeometry(
            config.count("num_attention_heads", 64),
            config.count("num_key_value_heads", 8),
            config.count("head_dim", 128),
        ),
        sliding=HeadGeometry(
            config.count("swa_num_attention_heads", 64),
            config.count("swa_num_key_value_heads", 16),
            config.count("swa_head_dim", 128),
        ),
        window=config.count("sliding_window_size", 512),
        profiles=config.count("d_rel", 16),
        extent=config.count("rel_extent", 1024),
        growth=None if floor is None or rate == 0.0 else PositionScale(floor, rate),
        act=activation(config, "hidden_act", "silu"),
        ffn=ffn,
        width=width,
        experts=experts,
        top=routed.top_of(config, experts, 6),
        shared=config.count("n_shared_experts", 2),
        scale=config.number("route_scale", 8.0),
        published=published,
    )


def _widths(config: ConfigReader) -> tuple[int, int]:
    """Return the width of a dense FFN, and of an expert; one key may mean either."""
    dense = config.optional_count("dense_intermediate_size")
    if dense is None:
        return config.count("intermediate_size", 24576), config.count("moe_intermediate_size", 3072)
    width = config.count("intermediate_size", 24576)
    config.agree("moe_intermediate_size", "intermediate_size", width)
    return dense, width


def _layer_kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    kinds = layer_kinds(config, "layer_types", layers, _KINDS)
    if config.has("local_layer_ids"):
        local = config.counts("local_layer_ids") or ()
        listed = tuple("sliding" if i in local else "full" for i in range(layers))
        if kinds is not None and kinds != listed:
            config.contradiction("layer_types", "local_layer_ids", list(kinds), list(local))
        return listed
    config.irrelevant("local_layer_ids")
    return kinds or tuple("sliding" if (i + 1) % 6 else "full" for i in range(layers))


def _ffn_kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    kinds = layer_kinds(config, "mlp_layer_types", layers, _FFN_KINDS)
    stated = config.has("dense_mlp_idx")
    first = config.count("dense_mlp_idx", 0, least=0)
    listed = tuple("dense" if i < first else "sparse" for i in range(layers))
    if kinds is not None and stated and kinds != listed:
        config.contradiction("mlp_layer_types", "dense_mlp_idx", list(kinds), first)
    return kinds or listed


def _embed(b: Builder, n: _Numbers) -> Embed:
    embed = b.embed(n.hidden, scale=1.0)
    norm = b.norm("embedding_norm", None, n.hidden, n.eps, 0.0)
    return Embed(embed.weight, embed.vocab, embed.width, embed.scale, norm)


def _layer(b: Builder, i: int, kind: str, ffn: str, n: _Numbers) -> Layer:
    return Layer(
        index=i,
        blocks=(
            Block(
                site="attention",
                norm=b.norm("attention.norm", i, n.hidden, n.eps, 0.0),
                mixer=_attention(b, i, kind, n),
                conv=b.convolution("attention.conv", i, n.hidden, n.taps, None, residual=True),
            ),
            Block(
                site="ffn",
                norm=b.norm("ffn.norm", i, n.hidden, n.eps, 0.0),
                mixer=_dense(b, i, n) if ffn == "dense" else _routed(b, i, n),
                conv=b.convolution("ffn.conv", i, n.hidden, n.taps, None, residual=True),
            ),
        ),
    )


def _attention(b: Builder, i: int, kind: str, n: _Numbers) -> SoftmaxAttention:
    sliding = kind == "sliding"
    heads = n.sliding if sliding else n.full
    dim, kept = heads.head_dim, heads.kv_heads * heads.head_dim
    extent = n.window if sliding else n.extent
    profiles = b.bind(
        f"layer.{i:03d}",
        "attention.profiles",
        b.naming.tensor("attention.profiles", i, ""),
        (n.profiles, extent),
    )
    mix = b.linear("attention.distance", i, heads.heads * n.profiles, n.hidden, bias=False)
    return SoftmaxAttention(
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        key_dim=dim,
        value_dim=dim,
        scale=1.0 / dim,
        q=b.linear("attention.q", i, heads.heads * dim, n.hidden, bias=False),
        k=b.linear("attention.k", i, kept, n.hidden, bias=False),
        v=b.linear("attention.v", i, kept, n.hidden, bias=False),
        o=b.linear("attention.o", i, n.hidden, heads.heads * dim, bias=False),
        window=n.window if sliding else None,
        q_norm=b.norm("attention.q_norm", i, dim, n.eps, 0.0),
        k_norm=b.norm("attention.k_norm", i, dim, n.eps, 0.0),
        k_conv=b.convolution("attention.k_conv", i, kept, n.taps, None, residual=True),
        v_conv=b.convolution("attention.v_conv", i, kept, n.taps, None, residual=True),
        distance=DistanceBias(mix, profiles, n.profiles, extent),
        position_scale=None if sliding else n.growth,
    )


def _in_turn(first: int, count: int) -> RowSelection:
    """Return every other row of ``2 count`` rows from ``first`` on."""
    return RowSelection(first, 1, 2, count)


def _dense(b: Builder, i: int, n: _Numbers) -> DenseFfn:
    gate, up = (
        Part(_in_turn(first, n.ffn), 2 * n.ffn) if n.published else None for first in (0, 1)
    )
    return DenseFfn(
        activation=n.act,
        gate=b.linear("ffn.gate", i, n.ffn, n.hidden, bias=False, rows=gate),
        up=b.linear("ffn.up", i, n.ffn, n.hidden, bias=False, rows=up),
        down=b.linear("ffn.down", i, n.hidden, n.ffn, bias=False),
        scale=b.vector("ffn.scale", i, 1, stored=(1,)),
    )


def _routed(b: Builder, i: int, n: _Numbers) -> RoutedFfn:
    place = b.naming.tensor("ffn.router", i, "").removesuffix(".gate")
    experts = Experts(i, f"{place}.experts", n.experts, n.hidden, n.width)
    names = ("w13_weight", "w2_weight") if n.published else ("gate_up_proj", "down_proj")
    return RoutedFfn(
        Router(
            scores=b.linear("ffn.router", i, n.experts + n.shared, n.hidden, bias=False),
            score="sigmoid",
            top=n.top,
            renormalise=True,
            correction=b.vector("ffn.router.correction", i, n.experts, stored=(n.experts,)),
            scale=n.scale,
            sinks=n.shared,
            global_scale=b.vector("ffn.router.global_scale", i, 1, stored=(1,)),
        ),
        fused_experts(
            b,
            experts,
            n.act,
            *names,
            rows="interleaved" if n.published else "contiguous_halves",
        ),
        weighted=tuple(_shared(b, i, number, n) for number in range(n.shared)),
    )


def _shared(b: Builder, i: int, number: int, n: _Numbers) -> DenseFfn:
    """Describe one of the experts that every position passes through, all in one tensor."""

    def linear(name: str, rows: RowSelection, stored: int, outputs: int, inputs: int) -> Linear:
        weight = b.bind(
            f"layer.{i:03d}",
            f"ffn.shared.{number}.{name}.weight",
            b.naming.tensor(f"ffn.shared.{name}", i, ""),
            (outputs, inputs),
            part=Part(rows, n.shared),
            stored=(1, stored, inputs),
        )
        return Linear(weight, outputs, inputs)

    hidden, width = n.hidden, n.width
    if n.published:
        first = number * 2 * width
        gate, up, stored = _in_turn(first, width), _in_turn(first + 1, width), 2 * width
    else:
        gate = up = RowSelection.span(number * width, width)
        stored = width
    down = RowSelection.span(number * hidden, hidden)
    return DenseFfn(
        activation=n.act,
        gate=linear("gate", gate, stored, width, hidden),
        up=linear("up", up, stored, width, hidden),
        down=linear("down", down, hidden, hidden, width),
    )


FAMILY = Family(
    name="inkling",
    model_types=("inkling_text", "inkling_mm_model"),
    architectures=(),
    hugging_face=_hugging_face,
)
