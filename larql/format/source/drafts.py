"""Layers behind the last one that draft tokens: how many there may be, and how they are known."""

from __future__ import annotations

import re

from larql.errors import CompileError
from larql.format.source.builder import Builder

__all__ = ["gguf_layers", "leave_drafts", "stated_drafts"]

_KEYS = ("num_nextn_predict_layers", "num_mtp_layers")
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
    """Take how many layers draft, which goes by two names; none where no key says.

    Raises
    ------
    CompileError
        If a number is no count, or the two contradict each other.
    """
    first, second = (b.config.count(key, 0, least=0) for key in _KEYS)
    if all(b.config.has(key) for key in _KEYS) and first != second:
        raise b.config.contradiction(*_KEYS, first, second)
    return first or second


def gguf_layers(b: Builder, counted: int) -> int:
    """Return how many layers a GGUF file's model has, and leave those that draft.

    Parameters
    ----------
    b : Builder
    counted : int
        ``block_count``, which counts layers that draft with the others.

    Raises
    ------
    CompileError
        As :func:`leave_drafts`, or if no other layers are left.
    """
    key = "nextn_predict_layers"
    drafts = b.config.count(key, 0, least=0)
    if drafts >= counted:
        raise b.config.failure(key, f"is {drafts}, of {counted} layers")
    leave_drafts(b, counted - drafts, drafts, key)
    return counted - drafts


def leave_drafts(b: Builder, layers: int, drafts: int, key: str = _KEYS[0]) -> None:
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

    Raises
    ------
    CompileError
        Naming the tensor, if one behind the last layer is of no layer that drafts.
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
        first = f"{b.where}: tensor {next(iter(parts.values()))}: layer {number}"
        if number >= layers + drafts:
            raise CompileError(
                f"{first} is behind the model's last, {layers - 1}, and `{key}` allows {drafts} "
                f"layers there that draft tokens"
            )
        if number != layers + place:
            raise CompileError(
                f"{first} drafts tokens, but layer {layers + place} before it is missing"
            )
        lacking = next((mark for mark in _MARKS if mark not in parts), None)
        if lacking is not None:
            raise CompileError(
                f"{first} is behind the model's last, {layers - 1}, but has no {lacking} as layers "
                f"that draft tokens do"
            )
        odd = next((name for part, name in parts.items() if part not in (*_OWN, *inside)), None)
        if odd is not None:
            raise CompileError(
                f"{b.where}: tensor {odd}: neither layers of the model nor those that draft tokens "
                f"have one"
            )
    found = [name for parts in behind.values() for name in parts.values()]
    if found:
        b.leave(found, "a layer that drafts tokens")
        b.notes.append(f"{len(found)} tensors of layers that draft tokens were left behind")
