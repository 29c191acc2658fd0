"""Qwen3.5 with routed experts in every layer, alone or inside a model that also sees."""

from __future__ import annotations

from larql.format.graph import Component, Mixer
from larql.format.source.builder import Builder, Family
from larql.format.source.families import qwen_draft, qwen_routed
from larql.format.source.families import qwen_hybrid as hybrid
from larql.format.source.families.qwen3_5 import PARTS, PREFIXES
from larql.format.source.families.qwen_gguf import gguf_numbers
from larql.format.source.gguf_experts import gguf_experts
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
    qwen_draft.keys(b)
    return hybrid.component(
        b, n, hybrid.one_tensor(n.delta), lambda i: qwen_routed.routed_ffn(b, i, n, experts)
    )


def _gguf(b: Builder) -> Component:
    n = gguf_numbers(b, tiled=True)
    experts = gguf_experts(b, 1, renormalises=True)
    return hybrid.component(
        b,
        n,
        hybrid.one_tensor(n.delta),
        lambda i: experts.routed_ffn(b, i, n.hidden, n.activation),
    )


def _draft_ffn(b: Builder, n: hybrid.Numbers) -> Mixer:
    return qwen_routed.routed_ffn(b, 0, n, qwen_routed.numbers(b, _EXPERTS, renormalises=None))


def _drafts(b: Builder, component: Component) -> Component | None:
    return qwen_draft.drafts(b, component, {**PARTS, **qwen_routed.PARTS}, _DEFAULTS, _draft_ffn)


FAMILY = Family(
    name="qwen3_5_moe",
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    architectures=("qwen35moe",),
    hugging_face=_hugging_face,
    gguf=_gguf,
    drafts=_drafts,
)
