"""``larql vindex3 draft-cost``: what a drafter's step costs beside the model's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.models import open_model, start_run
from larql.cli.options import (
    DRAFT_TOKENS,
    ActivationKind,
    Activations,
    Backend,
    BackendOption,
    Chunk,
    DraftTokens,
    Kv,
    KvKind,
    Model,
    Prefault,
    Profile,
    Threads,
)
from larql.cli.output import output_of
from larql.cli.run_options import run_options

if TYPE_CHECKING:
    from larql.runtime.draft.costs import StepCost
    from larql.runtime.draft.probe import DraftCost

__all__ = ["DraftOption", "command", "cost_document"]

DraftOption = Annotated[
    str,
    typer.Option(
        "--draft",
        metavar="DRAFTER",
        help="depth:N, mtp, container:NAME or ngram, as for --speculate.",
        show_default=False,
    ),
]


def command(
    ctx: typer.Context,
    model: Model,
    draft: DraftOption,
    draft_tokens: DraftTokens = DRAFT_TOKENS,
    backend: BackendOption = Backend.PRODUCTION,
    activations: Activations = ActivationKind.F32,
    kv: Kv = KvKind.F32,
    threads: Threads = None,
    chunk: Chunk = None,
    prefault: Prefault = False,
    profile: Profile = None,
) -> None:
    """Measure a drafter's step beside the model's own.

    Told are the bytes of weights that a step touches and its time, how much of both is the head,
    what blocks that verify drafts take, and how many tokens of a block must be accepted for
    speculation to lose nothing.

    Examples
    --------
    larql vindex3 draft-cost model.vindex3 --draft depth:8
    """
    output = output_of(ctx)
    from larql.runtime.draft.choice import check_drafter

    check_drafter(draft)
    container = open_model(model, output)
    options = run_options(backend, activations, kv, threads, chunk, profile, prefault=prefault)
    run = start_run(container, options, output)
    from larql.runtime.draft.probe import probe

    found = probe(run, draft, draft_tokens)
    if output.json:
        said = run.provenance((), 1)
        render.document(output, {**cost_document(found, draft_tokens), "provenance": said})
        return
    columns = ["", "reads", "bytes a step", "head", "ms a step"]
    rows = [
        _row("target", found.target, found.target_seconds),
        _row(found.drafter, found.draft, found.draft_seconds),
    ]
    render.table(columns, rows, right=columns[1:])
    render.line()
    blocks = ", ".join(f"{n}: {s * 1e3:.2f}" for n, s in sorted(found.block_seconds.items()))
    render.key_values(
        [
            ("draft to target, bytes", f"{found.bytes_ratio:.3f}"),
            ("draft to target, time", f"{found.time_ratio:.3f}"),
            ("the head alone, ms", f"{found.head_seconds * 1e3:.2f}"),
            ("blocks by positions, ms", blocks),
            (
                f"to lose nothing with {draft_tokens}",
                f"{found.break_even(draft_tokens):.2f} accepted in the mean",
            ),
        ]
    )


def cost_document(found: DraftCost, most: int) -> dict[str, object]:
    """Return a cost as JSON."""
    return {
        "drafter": found.drafter,
        "draft": found.draft,
        "target": found.target,
        "seconds": {
            "draft_step": found.draft_seconds,
            "target_step": found.target_seconds,
            "head": found.head_seconds,
            "blocks": found.block_seconds,
        },
        "bytes_ratio": found.bytes_ratio,
        "time_ratio": found.time_ratio,
        "head_share": {
            "draft_bytes": None if found.draft is None else found.draft.head_share,
            "target_bytes": found.target.head_share,
            "target_time": found.head_seconds / found.target_seconds,
        },
        "break_even": {str(k): found.break_even(k) for k in range(1, most + 1)},
    }


def _row(name: str, cost: StepCost | None, seconds: float) -> list[object]:
    shown: list[object] = [None, None, None]
    if cost is not None:
        share = f"{cost.head_share:.1%}"
        shown = [cost.reads, render.bytes_text(cost.step_bytes), share]
    return [name, *shown, f"{seconds * 1e3:.2f}"]
