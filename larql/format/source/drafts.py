"""Layers behind the last one that draft tokens: how many there may be, and how they are known."""

from __future__ import annotations

import re

from larql.format.source.builder import Builder

__all__ = ["gguf_layers", "leave_drafts", "stated_drafts"]

_KEY = "num_nextn_predict_layers"
_LAYER = re.compile(r"(?:model\.layers|blk)\.(0|[1-9][0-9]{0,5})\.(?:nextn\.)?(.+)")
_MARKS = ("eh_proj.weight", "enorm.weight", "hnorm.weight")
# Beside these, they hold what layers of the model hold.
_OWN = (
    *_MARKS,
    "embed_tokens.weight",
    "shared_head.head.weight",
    "shared_head.norm.weight",
    "shared_head_head.weight",
    "shared_head_norm.weight",
)


def stated_drafts(b: Builder) -> int:
    """Take how many layers draft; none where no key says."""
    return b.config.count(_KEY, 0, least=0)


def gguf_layers(b: Builder, counted: int) -> int:
    """Return how many layers a GGUF file's model has, and leave those that draft.

    Parameters
    ----------
    b : Builder
    counted : int
        ``block_count``, which counts layers that draft with the others.
    """
    key = "nextn_predict_layers"
    drafts = b.config.count(key, 0, least=0)
    if drafts >= counted:
        b.config.refuse(key, f"is {drafts}, of {counted} layers", "block_count")
        drafts = 0
    leave_drafts(b, counted - drafts, drafts, key)
    return counted - drafts


def leave_drafts(b: Builder, layers: int, drafts: int, key: str = _KEY) -> None:
    """Leave the layers that draft tokens, which are no part of the model.

    They follow its last layer without a gap, and each begins with two norms and a projection of
    what these yield. A checkpoint may hold fewer than it states, or none.

    Parameters
    ----------
    b : Builder
    layers : int
        Of the model.
    drafts : int
        At most so many behind them.
    key : str
        What states ``drafts``, for error texts.
    """
    inside: set[str] = set()
    behind: dict[int, dict[str, str]] = {}
    for name in b.tensors:
        match = _LAYER.fullmatch(name)
        if match is None:
            continue
        number, part = int(match[1]), match[2]
        if number < layers:
            inside.add(part)
        else:
            behind.setdefault(number, {})[part] = name
    for place, number in enumerate(sorted(behind)):
        parts = behind[number]
        first, last = next(iter(parts.values())), f"behind the model's last, {layers - 1}"
        lacking = next((mark for mark in _MARKS if mark not in parts), None)
        odd = next((name for part, name in parts.items() if part not in (*_OWN, *inside)), None)
        if number >= layers + drafts:
            allowed = f"`{key}` allows {drafts} layers there that draft tokens"
            b.refuse(first, f": layer {number} is {last}, and {allowed}")
        elif number != layers + place:
            before = f"layer {layers + place} before it is missing"
            b.refuse(first, f": layer {number} drafts tokens, but {before}")
        elif lacking is not None:
            lacks = f"has no {lacking} as layers that draft tokens do"
            b.refuse(first, f": layer {number} is {last}, but {lacks}")
        elif odd is not None:
            b.refuse(odd, ": neither layers of the model nor those that draft tokens have one")
    found = [name for parts in behind.values() for name in parts.values()]
    if found:
        b.leave(found, "a layer that drafts tokens")
        b.notes.append(f"{len(found)} tensors of layers that draft tokens were left behind")
