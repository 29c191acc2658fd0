"""Gemma 4: full and windowed layers of two geometries, keys shared by the last layers.

Norm weights are stored as they are used. Full layers turn the first part of a head's pairs alone,
by frequencies that are counted over the whole head, and may have no values but their raw keys. The
last layers attend to the keys and values of the last layer of their kind that has its own. Each
layer multiplies the whole carrier by a number at its end, and may first add an embedding of its
own.

GGUF files state by a tensor of factors which pairs of full layers turn: 1e30 stills one.
"""

from __future__ import annotations

from dataclasses import replace

from larql.format.graph import Component, ExpertBank, Rope, RopeScaling
from larql.format.source.builder import Builder, Family
from larql.format.source.config import ConfigReader
from larql.format.source.experts import Experts, gated_experts
from larql.format.source.families.gemma4_layers import Numbers, component
from larql.format.source.gguf_experts import ExpertCounts, expert_counts, gguf_bank, no_groups
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.names import Naming, common_prefix, hugging_face_naming
from larql.format.source.rope import gguf_rope, hugging_face_rope_by_layer_type
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
_GGUF_PARTS = {
    "per_layer.table": "per_layer_token_embd",
    "per_layer.context": "per_layer_model_proj",
    "per_layer.context_norm": "per_layer_proj_norm",
    "per_layer.gate": "blk.{i}.inp_gate",
    "per_layer.up": "blk.{i}.proj",
    "per_layer.post_norm": "blk.{i}.post_norm",
    "layer_scale": "blk.{i}.layer_output_scale.weight",
    "ffn.router.scale": "blk.{i}.ffn_gate_inp.scale",
    "ffn.router.expert_scale": "blk.{i}.ffn_down_exps.scale",
    "ffn.shared.post_norm": "blk.{i}.post_ffw_norm_1",
    "ffn.experts.norm": "blk.{i}.pre_ffw_norm_2",
    "ffn.experts.post_norm": "blk.{i}.post_ffw_norm_2",
}
_PREFIXES = (
    ("model.", "lm_head"),
    ("model.language_model.", "lm_head"),
    ("language_model.model.", "language_model.lm_head"),
)
_OTHER_TOWERS = ("embed_vision.", "audio_tower.", "embed_audio.")


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
    geometry = _geometry(config, kinds)
    shared_from = _shared_from(config, "num_kv_shared_layers", kinds)
    ffn = config.count("intermediate_size", 9216)
    wide = 2 * ffn if config.flag("use_double_wide_mlp", False) else ffn
    hidden = config.count("hidden_size", 2304)
    act = activation(config, "hidden_activation", "gelu_pytorch_tanh", "hidden_act")
    experts = _experts(config)
    raw_values = config.flag("attention_k_eq_v", False)

    def bank(i: int) -> ExpertBank:
        count, _, width = experts or (0, 0, 0)
        place = b.naming.tensor("ffn.experts", i, "")
        return gated_experts(b, Experts(i, place, count, hidden, width), act)

    return component(
        b,
        Numbers(
            hidden=hidden,
            heads=config.count("num_attention_heads", 8),
            kinds=kinds,
            turning=_turning(config, kinds, geometry),
            geometry=geometry,
            shared_from=shared_from,
            has_values=lambda i: not raw_values or kinds[i] != _FULL,
            widths=tuple(wide if i >= shared_from else ffn for i in range(layers)),
            eps=config.number("rms_norm_eps", 1e-6),
            activation=act,
            attention_bias=config.flag("attention_bias", False),
            embedding=config.count("hidden_size_per_layer_input", 256, least=0),
            table_rows=config.count("vocab_size_per_layer_input", 262144),
            experts=None if experts is None else experts[:2],
            bank=bank,
            context=config.count("max_position_embeddings", 131072),
            tied=config.flag("tie_word_embeddings", True),
            logit_softcap=config.optional_number("final_logit_softcapping"),
        ),
    )


def _turning(
    config: ConfigReader, kinds: tuple[str, ...], geometry: tuple[tuple[int, int], ...]
) -> dict[str, tuple[int | None, Rope]]:
    """Return window and rope of each kind of layer."""
    dims = {kind: dim for kind, (_, dim) in zip(kinds, geometry, strict=True)}
    window = config.count("sliding_window", 512)
    stated = config.child("rope_parameters")
    if stated is not None:
        stated.irrelevant(*({_FULL, _SLIDING} - set(dims)))
    return {
        kind: (window if kind == _SLIDING else None, _rope(config, kind, dim))
        for kind, dim in dims.items()
    }


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


def _shared_from(config: ConfigReader, key: str, kinds: tuple[str, ...]) -> int:
    """Return the first layer that attends to keys and values of an earlier one."""
    count = config.count(key, 0, least=0)
    first = len(kinds) - count
    if count and (first <= 0 or set(kinds[first:]) - set(kinds[:first])):
        config.refuse(
            key,
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


def _gguf(b: Builder) -> Component:
    config = b.config
    b.naming = Naming({**b.naming.parts, **_GGUF_PARTS})
    layers = b.layer_count("block_count")
    pattern = config.flags_by_layer("attention.sliding_window_pattern", layers)
    if pattern is None:
        config.refuse("attention.sliding_window_pattern", "is missing; layers differ by it")
        pattern = (False,) * layers
    kinds = tuple(_SLIDING if windowed else _FULL for windowed in pattern)
    heads = config.count("attention.head_count")
    dims = {_FULL: _gguf_dim(config, ""), _SLIDING: _gguf_dim(config, "_swa")}
    kv_heads = config.counts_by_layer("attention.head_count_kv", layers)
    hidden = config.count("embedding_length")
    config.neutral("attention.scale", 1.0)
    embedding = config.count("embedding_length_per_layer_input", 0, least=0)
    table = b.naming.tensor("per_layer.table", None, ".weight")
    routes = config.count("expert_count", 0, least=0) > 0
    if not routes:
        config.irrelevant("expert_used_count", "expert_feed_forward_length")
    counts = expert_counts(b, 1) if routes else ExpertCounts(0, 0, 0)
    no_groups(config)

    def bank(i: int) -> ExpertBank:
        return gguf_bank(b, i, hidden, counts, "gelu_tanh")

    return component(
        b,
        Numbers(
            hidden=hidden,
            heads=heads,
            kinds=kinds,
            turning=_gguf_turning(b, dims, kinds),
            geometry=tuple(
                (count, dims[kind]) for count, kind in zip(kv_heads, kinds, strict=True)
            ),
            shared_from=_shared_from(config, "attention.shared_kv_layers", kinds),
            has_values=lambda i: (
                kinds[i] != _FULL
                or b.optional.holds("attention.v", i, b.naming.tensor("attention.v", i, ".weight"))
            ),
            widths=config.counts_by_layer("feed_forward_length", layers),
            eps=config.number("attention.layer_norm_rms_epsilon"),
            activation="gelu_tanh",
            attention_bias=None,
            embedding=embedding,
            table_rows=b.tensors[table].shape[0] if table in b.tensors else 1,
            experts=(counts.count, counts.top) if routes else None,
            bank=bank,
            context=config.count("context_length"),
            tied=None,
            logit_softcap=config.optional_number("final_logit_softcapping"),
        ),
    )


def _gguf_dim(config: ConfigReader, suffix: str) -> int:
    """Take the width of a head of layers of one kind."""
    dim = config.count(f"attention.key_length{suffix}")
    config.neutral(f"attention.value_length{suffix}", dim)
    config.neutral(f"rope.dimension_count{suffix}", dim)
    return dim


def _gguf_turning(
    b: Builder, dims: dict[str, int], kinds: tuple[str, ...]
) -> dict[str, tuple[int | None, Rope]]:
    """Return window and rope of each kind of layer."""
    config = b.config
    full = gguf_rope(config, _THETA[_FULL])
    theta = config.number("rope.freq_base_swa", _THETA[_SLIDING])
    windowed = replace(full, theta=theta, scaling=None).rope(dims[_SLIDING])
    turning = full.rope(dims[_FULL])
    if _FULL in kinds:
        name = b.naming.tensor("rope.factors", None, ".weight")
        factors = b.bind("rope", "factors", name, (dims[_FULL] // 2,))
        turning = replace(turning, factors=factors)
    window = config.count("attention.sliding_window")
    return {_FULL: (None, turning), _SLIDING: (window, windowed)}


FAMILY = Family(
    name="gemma4",
    model_types=("gemma4_text", "gemma4"),
    architectures=("gemma4",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
