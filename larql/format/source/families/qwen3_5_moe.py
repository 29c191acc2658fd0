"""Qwen3.5 with routed experts in every layer, alone or inside a model that also sees."""

from __future__ import annotations

from larql.format.graph import Component
from larql.format.rows import RowSelection
from larql.format.source.builder import Builder, Family, Part
from larql.format.source.families import qwen_hybrid as hybrid
from larql.format.source.families import qwen_routed
from larql.format.source.families.qwen3_5 import PARTS, PREFIXES
from larql.format.source.names import common_prefix, hugging_face_naming

__all__ = ["FAMILY"]

_DEFAULTS = {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "intermediate_size": 1,
}
_EXPERTS = qwen_routed.Defaults(count=256, width=512, shared=512, top=8)


def _hugging_face(b: Builder) -> Component:
    b.naming = hugging_face_naming(
        *common_prefix(b.tensors, PREFIXES), {**PARTS, **qwen_routed.PARTS}
    )
    n = hybrid.numbers(b, _DEFAULTS)
    b.config.neutral("mlp_only_layers", [])
    experts = qwen_routed.numbers(b, _EXPERTS, renormalises=None)
    b.config.irrelevant("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    drafts = [name for name in b.tensors if name.startswith("mtp.")]
    if drafts:
        b.leave(drafts, "a draft head with experts of its own")
        b.notes.append(f"{len(drafts)} tensors of the draft head were left behind")
    d = n.delta
    spans = (("q", 0, d.keys), ("k", d.keys, d.keys), ("v", 2 * d.keys, d.values))
    packing = {
        part: Part(RowSelection.span(first, size), 2 * d.keys + d.values)
        for part, first, size in spans
    }
    return hybrid.component(b, n, packing, lambda i: qwen_routed.routed_ffn(b, i, n, experts))


FAMILY = Family(
    name="qwen3_5_moe",
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    architectures=(),
    hugging_face=_hugging_face,
)
