"""Qwen3.5: dense text models, alone or inside a model that also sees.

A delta layer's queries, keys and values are rows of one tensor. A checkpoint may carry a draft
head under ``mtp.``: one full-attention layer that reads the embedding of the next token beside
the model's normed hidden state, and borrows the model's embedding and head. GGUF files keep it as
a layer behind the last one, which is left.
"""

from __future__ import annotations

from dataclasses import replace

from larql.format.graph import Component, DraftInput, Linear
from larql.format.source.builder import Builder, Family
from larql.format.source.families import qwen_hybrid as hybrid
from larql.format.source.families.qwen_gguf import gguf_numbers
from larql.format.source.names import Naming, common_prefix, hugging_face_naming

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
_DRAFT = "mtp."
_DRAFT_PARTS = {
    "draft_input.embedding_norm": "mtp.pre_fc_norm_embedding",
    "draft_input.hidden_norm": "mtp.pre_fc_norm_hidden",
    "draft_input.projection": "mtp.fc",
}


def _hugging_face(b: Builder) -> Component:
    b.naming = hugging_face_naming(*common_prefix(b.tensors, PREFIXES), PARTS)
    n = hybrid.numbers(b, _DEFAULTS)
    b.config.neutral("mlp_only_layers", [])
    b.config.neutral("mtp_num_hidden_layers", *((1,) if _has_draft(b) else (0, 1)))
    b.config.neutral("mtp_use_dedicated_embeddings", False)
    return _component(b, n)


def _component(b: Builder, n: hybrid.Numbers) -> Component:
    return hybrid.component(
        b,
        n,
        hybrid.one_tensor(n.delta),
        lambda i: b.gated_ffn(i, n.hidden, n.ffn, n.activation, bias=False),
    )


def _gguf(b: Builder) -> Component:
    return _component(b, gguf_numbers(b, tiled=True))


def _has_draft(b: Builder) -> bool:
    return any(name.startswith(_DRAFT) for name in b.tensors)


def _drafts(target: Builder, component: Component) -> Component | None:
    """Describe the draft head, or leave its tensors where one is missing.

    Nothing of the model itself hangs on them.
    """
    if not _has_draft(target):
        return None
    naming = hugging_face_naming(_DRAFT, "", hybrid.PARTS)
    b = target.beside("mtp", Naming({**naming.parts, **_DRAFT_PARTS}))
    bound = set(b.bindings)
    draft = _draft(b, component)
    if not b.problems.found:
        return draft
    for operand in set(b.bindings) - bound:
        del b.bindings[operand]
    problem = b.problems.found[0].text.removeprefix(f"{b.where}: ")
    b.leave((name for name in b.tensors if name.startswith(_DRAFT)), problem)
    b.notes.append(f"warning: the draft head was left behind: {problem}")
    return None


def _draft(b: Builder, target: Component) -> Component:
    n = hybrid.numbers(b, _DEFAULTS)
    kind, part = "draft_input", "draft_input.projection"
    shape = (n.hidden, 2 * n.hidden)
    projection = b.bind(kind, "projection.weight", b.naming.tensor(part, None, ".weight"), shape)
    return Component(
        id=b.component,
        role="draft",
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        context_length=target.context_length,
        embed=target.embed,
        draft_input=DraftInput(
            first="embedding",
            embedding_norm=hybrid.norm(b, "draft_input.embedding_norm", None, n),
            hidden_norm=hybrid.norm(b, "draft_input.hidden_norm", None, n),
            projection=Linear(weight=projection, outputs=shape[0], inputs=shape[1]),
        ),
        # Its one layer is a full one, whatever the model's own layers are.
        layers=(
            hybrid.layer(
                b, 0, n, hybrid.attention(b, 0, n),
                b.gated_ffn(0, n.hidden, n.ffn, n.activation, bias=False),
            ),
        ),
        head=replace(target.head, norm=hybrid.norm(b, "output", None, n)),
    )  # fmt: skip


FAMILY = Family(
    name="qwen3_5",
    model_types=("qwen3_5", "qwen3_5_text"),
    architectures=("qwen35",),
    hugging_face=_hugging_face,
    gguf=_gguf,
    drafts=_drafts,
)
