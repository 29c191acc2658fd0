"""Qwen3.5: dense text models, alone or inside a model that also sees.

A delta layer's queries, keys and values are rows of one tensor. A checkpoint may carry a draft
head; GGUF files keep it as a layer behind the last one, which is left.
"""

from __future__ import annotations

from larql.format.graph import Component, Mixer
from larql.format.source.builder import Builder, Family
from larql.format.source.families import qwen_draft
from larql.format.source.families import qwen_hybrid as hybrid
from larql.format.source.families.qwen_gguf import gguf_numbers
from larql.format.source.names import common_prefix, hugging_face_naming

__all__ = ["FAMILY", "PARTS", "PREFIXES"]

PARTS = {
    **hybrid.PARTS,
    "delta.q": "linear_attn.in_proj_qkv",
    "delta.k": "linear_attn.in_proj_qkv",
    "delta.v": "linear_attn.in_proj_qkv",
    "delta.gate": "linear_attn.in_proj_z",
    "delta.beta": "linear_attn.in_proj_b",
    "delta.decay": "linear_attn.in_proj_a",
}
PREFIXES = (
    ("model.", "lm_head"),
    ("model.language_model.", "lm_head"),
    ("language_model.model.", "language_model.lm_head"),
)
_DEFAULTS = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 12288,
}


def _hugging_face(b: Builder) -> Component:
    b.naming = hugging_face_naming(*common_prefix(b.tensors, PREFIXES), PARTS)
    n = hybrid.numbers(b, _DEFAULTS)
    b.config.neutral("mlp_only_layers", [])
    qwen_draft.keys(b)
    return _component(b, n)


def _component(b: Builder, n: hybrid.Numbers) -> Component:
    return hybrid.component(b, n, hybrid.one_tensor(n.delta), lambda i: _ffn(b, i, n))


def _gguf(b: Builder) -> Component:
    return _component(b, gguf_numbers(b, tiled=True))


def _ffn(b: Builder, i: int, n: hybrid.Numbers) -> Mixer:
    return b.gated_ffn(i, n.hidden, n.ffn, n.activation, bias=False)


def _drafts(b: Builder, component: Component) -> Component | None:
    return qwen_draft.drafts(b, component, hybrid.PARTS, _DEFAULTS, lambda b, n: _ffn(b, 0, n))


FAMILY = Family(
    name="qwen3_5",
    model_types=("qwen3_5", "qwen3_5_text"),
    architectures=("qwen35",),
    hugging_face=_hugging_face,
    gguf=_gguf,
    drafts=_drafts,
)
