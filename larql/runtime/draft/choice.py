"""Drafters by the names that commands take."""

from __future__ import annotations

from larql.errors import UsageError
from larql.runtime.draft.drafter import Drafter
from larql.runtime.draft.head import HeadDrafter
from larql.runtime.draft.model_drafter import depth_drafter, other_model
from larql.runtime.draft.ngram import NgramDrafter
from larql.runtime.run import Run

__all__ = ["DRAFTERS", "check_drafter", "make_drafter"]

DRAFTERS = ("depth:N", "mtp", "container:NAME", "ngram")


def check_drafter(text: str) -> None:
    """Refuse what names no drafter, before a model is opened.

    Raises
    ------
    UsageError
        Saying what does.
    """
    kind, _, value = text.partition(":")
    known = (
        (kind == "depth" and value.isascii() and value.isdigit() and len(value) < 10)
        or (kind == "container" and bool(value))
        or text in ("mtp", "ngram")
    )
    if not known:
        raise UsageError(f"--speculate {text!r:.60}: expected one of {', '.join(DRAFTERS)}")


def make_drafter(text: str, run: Run, context: int) -> Drafter:
    """Return the drafter of a name, for streams of at most ``context`` positions.

    Raises
    ------
    LarqlError
        If there is no such drafter, or it does not fit the model.
    """
    check_drafter(text)
    kind, _, value = text.partition(":")
    if kind == "depth":
        return depth_drafter(run.prepared, int(value), context, run.options.chunk)
    if kind == "container":
        return other_model(run.prepared, value, context, run.options.chunk)
    if kind == "mtp":
        return HeadDrafter(run.prepared, context, run.options.chunk)
    return NgramDrafter()
