"""Speculation on the command line: made of the options, and told of afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from larql.cli import render
from larql.cli.output import Output
from larql.errors import UsageError

if TYPE_CHECKING:
    from larql.runtime.draft.drafter import Speculation
    from larql.runtime.run import Run

__all__ = ["check_speculate", "speculation_of", "speculation_text", "tell_speculation"]


def check_speculate(drafter: str | None, count: int) -> None:
    """Refuse what cannot be meant, before a model is opened.

    Raises
    ------
    UsageError
        If there is no such drafter, or nothing that it could draft for.
    """
    if drafter is None:
        return
    from larql.runtime.draft.choice import check_drafter

    check_drafter(drafter)
    if not count:
        raise UsageError("--speculate drafts tokens to generate; give --generate with it")


def speculation_of(drafter: str | None, most: int, run: Run, room: int) -> Speculation | None:
    """Return the speculation that was asked for.

    Raises
    ------
    LarqlError
        If the drafter does not fit the model.
    """
    if drafter is None:
        return None
    from larql.runtime.draft.choice import make_drafter
    from larql.runtime.draft.drafter import Speculation

    return Speculation(make_drafter(drafter, run, room), most)


def tell_speculation(output: Output, speculation: Speculation | None) -> None:
    """Write what came of it to standard error."""
    if speculation is not None:
        render.notice(output, f"speculation: {speculation_text(speculation)}")


def speculation_text(speculation: Speculation) -> str:
    """Return what came of speculation in a line."""
    tally, speedup = speculation.tally, speculation.speedup
    blocks = len(tally.accepted)
    if not tally.judged:
        return f"{speculation.drafter.name} drafted nothing for {blocks} steps"
    counts = ", ".join(f"{n}: {times}" for n, times in tally.histogram.items())
    gain = "" if speedup is None else f"; {speedup:.2f} × as fast as single steps"
    return (
        f"{speculation.drafter.name} drafted {sum(tally.proposed)} tokens for {blocks} blocks, "
        f"{sum(tally.accepted)} of {tally.judged} judged ones accepted ({tally.acceptance:.3f}); "
        f"blocks by accepted tokens {counts}{gain}"
    )
