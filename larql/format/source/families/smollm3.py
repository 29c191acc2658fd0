"""SmolLM3: Llama's layers, every fourth without positions.

A 1 in ``no_rope_layers`` means that the layer does turn. GGUF files store the rows of q and k so
that neighbours turn together, and say nothing of which layers turn: every fourth does not.
"""

from __future__ import annotations

import math

from larql.format.graph import Component, Rope
from larql.format.source.builder import Builder, Family
from larql.format.source.config import ConfigReader
from larql.format.source.decoder import (
    Attention,
    Decoder,
    Defaults,
    gguf_basics,
    hugging_face_basics,
)
from larql.format.source.keys import activation, common_hugging_face_keys, layer_kinds
from larql.format.source.rope import gguf_rope, hugging_face_rope

__all__ = ["FAMILY"]

_DEFAULTS = Defaults(hidden=2048, layers=36, heads=16, kv_heads=4, ffn=11008, context=32768)
_THETA = 2000000.0
_INTERVAL = 4
_FULL, _SLIDING = "full_attention", "sliding_attention"


def _turning(layers: int, interval: int) -> tuple[bool, ...]:
    return tuple((i + 1) % interval != 0 for i in range(layers))


def _attention(config: ConfigReader, layers: int, rope: Rope) -> tuple[Attention, ...]:
    interval = config.count("no_rope_layer_interval", _INTERVAL)
    stated = config.counts("no_rope_layers")
    by_interval = _turning(layers, interval)
    turning = by_interval if stated is None else tuple(map(bool, stated))
    if len(turning) != layers:
        config.contradiction(
            "no_rope_layers", "num_hidden_layers", f"{len(turning)} entries", layers
        )
        turning = by_interval
    # The interval is written beside any list, with its default; then the list decides.
    if interval != _INTERVAL and turning != by_interval:
        still = [i for i, turns in enumerate(turning) if not turns]
        config.contradiction(
            "no_rope_layers", "no_rope_layer_interval", f"0 at {still[:8]}", interval
        )
    wanted = config.flag("use_sliding_window", False)
    window = config.optional_count("sliding_window") if wanted else None
    config.irrelevant("sliding_window")
    kinds = layer_kinds(config, "layer_types", layers, {_FULL: _FULL, _SLIDING: _SLIDING})
    if kinds is None:
        kinds = tuple(_SLIDING if window and not turns else _FULL for turns in turning)
    if window is None and _SLIDING in kinds:
        config.contradiction("layer_types", "use_sliding_window", _SLIDING, wanted)
    return tuple(
        Attention(window if kind == _SLIDING else None, rope if turns else None)
        for kind, turns in zip(kinds, turning, strict=True)
    )


def _hugging_face(b: Builder) -> Component:
    config = b.config
    common_hugging_face_keys(config)
    # Published files carry both; which layers have windows is said by `layer_types` alone.
    config.irrelevant("pretraining_tp", "max_window_layers")
    basics = hugging_face_basics(b, _DEFAULTS)
    head_dim = basics.geometry.head_dim
    bias = config.flag("attention_bias", False)
    rope = hugging_face_rope(config, _THETA).rope(head_dim)
    return Decoder(
        basics=basics,
        layers=_attention(config, basics.layers, rope),
        scale=1.0 / math.sqrt(head_dim),
        activation=activation(config, "hidden_act", "silu"),
        bias=bias,
        output_bias=bias,
        ffn_bias=config.flag("mlp_bias", False),
        tied=config.flag("tie_word_embeddings", True),
    ).component(b)


def _gguf(b: Builder) -> Component:
    basics = gguf_basics(b)
    head_dim = basics.geometry.head_dim
    b.config.neutral("rope.dimension_count", head_dim)
    rope = gguf_rope(b.config, _THETA).rope(head_dim, "adjacent")
    return Decoder(
        basics=basics,
        layers=tuple(
            Attention(None, rope if turns else None) for turns in _turning(basics.layers, _INTERVAL)
        ),
        scale=1.0 / math.sqrt(head_dim),
    ).component(b)


FAMILY = Family(
    name="smollm3",
    model_types=("smollm3",),
    architectures=("smollm3",),
    hugging_face=_hugging_face,
    gguf=_gguf,
)
