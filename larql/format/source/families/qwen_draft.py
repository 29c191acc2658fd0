"""The draft head of Qwen3.5 and Qwen3-Next, whose tensors stand under ``mtp.``.

One full-attention layer reads the embedding of the next token beside the model's normed hidden
state, and borrows the model's embedding and head. Its feed-forward network is the family's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from larql.format.graph import Component, DraftInput, Linear, Mixer
from larql.format.source.builder import Builder
from larql.format.source.families import qwen_hybrid as hybrid
from larql.format.source.names import Naming, hugging_face_naming

__all__ = ["drafts", "keys"]

_DRAFT = "mtp."
_PARTS = {
    "draft_input.embedding_norm": "mtp.pre_fc_norm_embedding",
    "draft_input.hidden_norm": "mtp.pre_fc_norm_hidden",
    "draft_input.projection": "mtp.fc",
}


def keys(b: Builder) -> None:
    """Judge the keys of the draft head: it has one layer, and no embedding of its own."""
    held = any(name.startswith(_DRAFT) for name in b.tensors)
    b.config.neutral("mtp_num_hidden_layers", *((1,) if held else (0, 1)))
    b.config.neutral("mtp_use_dedicated_embeddings", False)


def drafts(
    target: Builder,
    component: Component,
    parts: Mapping[str, str],
    defaults: Mapping[str, int],
    ffn: Callable[[Builder, hybrid.Numbers], Mixer],
) -> Component | None:
    """Describe the draft head, or leave its tensors where one is missing.

    Nothing of the model itself hangs on them.

    Parameters
    ----------
    target : Builder
    component : Component
        The model.
    parts : mapping
        What the family calls the parts of a layer.
    defaults : mapping
        As of :func:`~larql.format.source.families.qwen_hybrid.numbers`.
    ffn : callable
        Describes the feed-forward network of its layer, number 0.

    Returns
    -------
    Component or None
        None where the checkpoint has none, or none that is whole.
    """
    own = {name: t for name, t in target.tensors.items() if name.startswith(_DRAFT)}
    if not own:
        return None
    naming = hugging_face_naming(_DRAFT, "", parts)
    b = target.beside("mtp", Naming({**naming.parts, **_PARTS}), own)
    draft = _draft(b, component, hybrid.numbers(target, defaults), ffn)
    if not b.problems.found:
        return draft
    for bound in (b.bindings, b.banks):
        for operand in [name for name in bound if name.startswith(f"{b.component}.")]:
            del bound[operand]
    problem = b.problems.found[0].text.removeprefix(f"{b.where}: ")
    b.leave(own, problem)
    b.notes.append(f"warning: the draft head was left behind: {problem}")
    return None


def _draft(
    b: Builder,
    target: Component,
    n: hybrid.Numbers,
    ffn: Callable[[Builder, hybrid.Numbers], Mixer],
) -> Component:
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
        layers=(hybrid.layer(b, 0, n, hybrid.attention(b, 0, n), ffn(b, n)),),
        head=replace(target.head, norm=hybrid.norm(b, "output", None, n)),
    )
