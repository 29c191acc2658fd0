"""Qwen3-Next and Qwen3.5 in GGUF files.

Norms are stored as they are used, rates negated, convolutions without their axis of one element.
Files of Qwen3.5 have value heads tiled over the key heads, those of Qwen3-Next side by side.
"""

from __future__ import annotations

from larql.format.source.builder import Builder, HeadGeometry
from larql.format.source.drafts import gguf_layers
from larql.format.source.families import qwen_hybrid as hybrid
from larql.format.source.gguf_recurrent import recurrent_keys
from larql.format.source.names import Naming
from larql.format.source.rope import gguf_rope

__all__ = ["gguf_numbers"]

_PARTS = {
    "ffn.norm": "post_attention_norm",
    "attention.gate": "attn_q",
    "delta.q": "attn_qkv",
    "delta.k": "attn_qkv",
    "delta.v": "attn_qkv",
    "delta.gate": "attn_gate",
    "delta.beta": "ssm_beta",
    "delta.decay": "ssm_alpha",
    "delta.q_conv": "ssm_conv1d",
    "delta.k_conv": "ssm_conv1d",
    "delta.v_conv": "ssm_conv1d",
    "delta.decay_rate": "ssm_a",
    "delta.decay_bias": "ssm_dt.bias",
    "delta.norm": "ssm_norm",
    "delta.o": "ssm_out",
}
_EVERY = 4


def gguf_numbers(b: Builder, *, tiled: bool) -> hybrid.Numbers:
    """Read the metadata that the architectures share, and name their tensors.

    Parameters
    ----------
    b : Builder
    tiled : bool
        How value heads lie where several share a key head.

    Raises
    ------
    CompileError
        Naming the key, if a number is missing or does not fit another.
    """
    config = b.config
    b.naming = Naming(
        {**b.naming.parts, **{part: f"blk.{{i}}.{name}" for part, name in _PARTS.items()}}
    )
    counted = b.layer_count("block_count")
    recurrent = config.flags_by_layer("attention.recurrent_layers", counted)
    every = config.count("full_attention_interval", _EVERY)
    layers = gguf_layers(b, counted)
    if recurrent is None:
        recurrent = tuple((i + 1) % every != 0 for i in range(layers))
    hidden, heads = config.count("embedding_length"), config.count("attention.head_count")
    head_dim = config.count("attention.key_length", hidden // heads)
    config.neutral("attention.value_length", head_dim)
    # They deal the turned pairs out to the axes of an image; text has one axis.
    config.irrelevant("rope.dimension_sections")
    dims = config.count("rope.dimension_count", head_dim // 4)
    s = recurrent_keys(config)
    return hybrid.Numbers(
        hidden=hidden,
        kinds=tuple(hybrid.DELTA if found else hybrid.FULL for found in recurrent[:layers]),
        geometry=HeadGeometry(heads, config.count("attention.head_count_kv", heads), head_dim),
        delta=hybrid.DeltaGeometry(s.groups, s.heads, s.state, s.head_dim, s.taps),
        ffn=config.count("feed_forward_length", 1, least=0),
        context=config.count("context_length"),
        eps=config.number("attention.layer_norm_rms_epsilon"),
        activation="silu",
        rope=gguf_rope(config, 10000.0).rope(dims, key="rope.dimension_count"),
        attention_bias=None,
        tied=None,
        stored=hybrid.Stored(
            offset=0.0,
            squeezed=True,
            rates="negated",
            value_order="tiled" if tiled and s.heads != s.groups else None,
        ),
    )
