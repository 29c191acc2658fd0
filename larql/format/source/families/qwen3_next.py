"""Qwen3-Next: the delta layers' projections packed head by head, and routed experts in most layers.

``in_proj_qkvz`` holds for each key head its query rows, its key rows, and the value and gate rows
of the value heads that share it; ``in_proj_ba`` likewise the rows of the two small projections.
GGUF files take the first apart, but for the oldest, and keep the second. A draft head, where there
is one, routes as the other layers do; GGUF files have none.
"""

from __future__ import annotations

from larql.format.graph import Component, Mixer
from larql.format.rows import RowSelection
from larql.format.source import routed
from larql.format.source.binder import Part
from larql.format.source.builder import Builder, Family
from larql.format.source.families import qwen_draft, qwen_routed
from larql.format.source.families import qwen_hybrid as hybrid
from larql.format.source.families.qwen_gguf import gguf_numbers
from larql.format.source.gguf_experts import gguf_experts
from larql.format.source.names import Naming, hugging_face_naming

__all__ = ["FAMILY"]

_PARTS = {
    **hybrid.PARTS,
    **qwen_routed.PARTS,
    "delta.q": "linear_attn.in_proj_qkvz",
    "delta.k": "linear_attn.in_proj_qkvz",
    "delta.v": "linear_attn.in_proj_qkvz",
    "delta.gate": "linear_attn.in_proj_qkvz",
    "delta.beta": "linear_attn.in_proj_ba",
    "delta.decay": "linear_attn.in_proj_ba",
}
_DEFAULTS = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "intermediate_size": 5632,
}
_EXPERTS = qwen_routed.Defaults(count=512, width=512, shared=512, top=10)


def _hugging_face(b: Builder) -> Component:
    b.naming = hugging_face_naming("model.", "lm_head", _PARTS)
    n = hybrid.numbers(b, _DEFAULTS)
    sparse = _sparse_layers(b, len(n.kinds))
    experts = qwen_routed.numbers(b, _EXPERTS, renormalises=True) if sparse else None
    qwen_draft.keys(b)

    def ffn(i: int) -> Mixer:
        if i in sparse and experts is not None:
            return qwen_routed.routed_ffn(b, i, n, experts)
        return b.gated_ffn(i, n.hidden, n.ffn, n.activation, bias=False)

    return hybrid.component(b, n, _packing(n.delta), ffn)


def _gguf(b: Builder) -> Component:
    n = gguf_numbers(b, tiled=False)
    packing = _packing(n.delta)
    if all(f"blk.{i}.ssm_in.weight" not in b.tensors for i in range(len(n.kinds))):
        packing = {**packing, **hybrid.one_tensor(n.delta)}
        del packing["gate"]
    else:
        whole = dict.fromkeys(("delta.q", "delta.k", "delta.v", "delta.gate"), "blk.{i}.ssm_in")
        b.naming = Naming({**b.naming.parts, **whole})
    small = dict.fromkeys(("delta.beta", "delta.decay"), "blk.{i}.ssm_ba")
    b.naming = Naming({**b.naming.parts, **small})
    experts = gguf_experts(b, 1, renormalises=True)

    def ffn(i: int) -> Mixer:
        if experts.routes(b, i):
            return experts.routed_ffn(b, i, n.hidden, n.activation)
        return b.gated_ffn(i, n.hidden, n.ffn, n.activation, bias=False)

    return hybrid.component(b, n, packing, ffn)


def _draft_ffn(b: Builder, n: hybrid.Numbers) -> Mixer:
    if b.naming.tensor("ffn.gate", 0, ".weight") in b.tensors:
        return b.gated_ffn(0, n.hidden, n.ffn, n.activation, bias=False)
    return qwen_routed.routed_ffn(b, 0, n, qwen_routed.numbers(b, _EXPERTS, renormalises=True))


def _drafts(b: Builder, component: Component) -> Component | None:
    return qwen_draft.drafts(b, component, _PARTS, _DEFAULTS, _draft_ffn)


def _sparse_layers(b: Builder, layers: int) -> frozenset[int]:
    """Return the layers with routed experts."""
    config = b.config
    dense = routed.layer_list(config, "mlp_only_layers", layers)
    step = config.count("decoder_sparse_step", 1)
    experts = config.count("num_experts", _EXPERTS.count, least=0)
    found = frozenset(
        i for i in range(layers) if experts and i not in dense and (i + 1) % step == 0
    )
    if not found:
        config.irrelevant(*qwen_routed.KEYS)
    return found


def _packing(d: hybrid.DeltaGeometry) -> dict[str, Part]:
    """Return which rows of the two packed tensors each projection has."""
    group = d.value_heads // d.key_heads
    wide = (
        ("q", d.key_dim),
        ("k", d.key_dim),
        ("v", group * d.value_dim),
        ("gate", group * d.value_dim),
    )
    small = (("beta", group), ("decay", group))
    packing = {}
    for parts in (wide, small):
        stride = sum(rows for _, rows in parts)
        first = 0
        for name, rows in parts:
            packing[name] = Part(
                RowSelection(first, rows, stride, d.key_heads), stride * d.key_heads
            )
            first += rows
    return packing


FAMILY = Family(
    name="qwen3_next",
    model_types=("qwen3_next",),
    architectures=("qwen3next",),
    hugging_face=_hugging_face,
    gguf=_gguf,
    drafts=_drafts,
)
