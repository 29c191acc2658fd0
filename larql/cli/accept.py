"""``larql vindex3 accept``: how often a drafter would be right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.bank_input import Prompts, read_entries
from larql.cli.draft_cost import DraftOption, cost_document
from larql.cli.inputs import TextSource
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
    NoBos,
    Prefault,
    Profile,
    Prompt,
    PromptFile,
    Threads,
    TokenIds,
    TokensFile,
)
from larql.cli.output import output_of
from larql.cli.run_options import run_options
from larql.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from larql.runtime.draft.acceptance import Outcome

__all__ = ["command"]

Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        metavar="X",
        help="Expected speed-up from which it is a go; below it the exit status is 1.",
        show_default="1, without an exit status",
    ),
]


def command(
    ctx: typer.Context,
    model: Model,
    draft: DraftOption,
    tokens: TokenIds = None,
    tokens_file: TokensFile = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    prompts: Prompts = None,
    no_bos: NoBos = False,
    draft_tokens: DraftTokens = DRAFT_TOKENS,
    threshold: Threshold = None,
    backend: BackendOption = Backend.PRODUCTION,
    activations: Activations = ActivationKind.F32,
    kv: Kv = KvKind.F32,
    threads: Threads = None,
    chunk: Chunk = None,
    prefault: Prefault = False,
    profile: Profile = None,
) -> None:
    """Tell how often a drafter would be right on given texts.

    Behind every position of a text the drafter guesses, a block of the model says what it would
    have chosen, and everything goes back: the text is never continued. Told are acceptance by
    place in a draft, the mean accepted length, and with costs that are measured apart the
    expected speed-up. A line of a bank that is no prompt, a drafter that cannot be bound, and a
    run that dies are told apart, and none counts as disagreement.

    Examples
    --------
    larql vindex3 accept model.vindex3 --draft ngram --prompt-file text.txt

    larql vindex3 accept model.vindex3 --draft depth:24 --prompts chats.jsonl --threshold 1.2
    """
    output = output_of(ctx)
    if threshold is not None and not 0 < threshold < float("inf"):
        raise UsageError(f"--threshold {threshold}: expected a number above 0")
    from larql.runtime.draft.choice import check_drafter

    check_drafter(draft)
    container = open_model(model, output)
    source = TextSource(tokens, tokens_file, prompt, prompt_file)
    entries = read_entries(container, "target", source, prompts, add_bos=not no_bos)
    options = run_options(backend, activations, kv, threads, chunk, profile, prefault=prefault)
    run = start_run(container, options, output)
    from larql.runtime.draft.acceptance import expected_speedup, observe_acceptance, places
    from larql.runtime.draft.drafter import Tally
    from larql.runtime.draft.probe import probe

    with render.progress(output) as progress:
        outcomes = observe_acceptance(run, entries, draft, draft_tokens, progress)
    _refuse_without_any(outcomes)
    whole = Tally()
    for outcome in outcomes:
        for proposed, accepted in zip(outcome.tally.proposed, outcome.tally.accepted, strict=True):
            whole.add(proposed, accepted, 0.0)
    cost = probe(run, draft, draft_tokens)
    room = draft_tokens + max(len(outcome.tally.accepted) for outcome in outcomes)
    speedup = expected_speedup(whole, cost)
    goes = whole.judged > 0 and speedup >= (1.0 if threshold is None else threshold)
    blocks = len(whole.accepted)
    counts = {
        kind: sum(outcome.kind == kind for outcome in outcomes)
        for kind in ("scored", "refused", "defective", "dead")
    }
    found = places(whole, draft_tokens)
    if output.json:
        render.document(
            output,
            {
                "drafter": draft,
                "draft_tokens": draft_tokens,
                "entries": counts,
                "outcomes": [
                    {"id": o.id, "kind": o.kind, "why": o.why, "positions": len(o.tally.accepted),
                     "acceptance": o.tally.acceptance}
                    for o in outcomes
                ],
                "positions": blocks,
                "drafted": sum(whole.proposed),
                "judged": whole.judged,
                "accepted": sum(whole.accepted),
                "acceptance": whole.acceptance,
                "mean_accepted": sum(whole.accepted) / blocks,
                "histogram": whole.histogram,
                "places": [
                    {"place": p.place, "drafted": p.drafted, "judged": p.judged,
                     "accepted": p.accepted, "rate": p.rate}
                    for p in found
                ],
                "cost": cost_document(cost, draft_tokens),
                "expected_speedup": speedup,
                "threshold": threshold,
                "go": goes,
                "provenance": run.provenance((), room),
            },
        )  # fmt: skip
    else:
        columns = ["place", "drafted", "judged", "accepted", "rate"]
        rows = [
            (p.place, p.drafted, p.judged, p.accepted, None if p.rate is None else f"{p.rate:.3f}")
            for p in found
        ]
        render.table(columns, rows, right=columns)
        render.line()
        rate = "nothing was drafted" if whole.acceptance is None else f"{whole.acceptance:.3f}"
        counted = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
        histogram = ", ".join(f"{n}: {times}" for n, times in whole.histogram.items())
        render.key_values(
            [
                ("entries", counted),
                ("acceptance", f"{rate}, {sum(whole.accepted)} of {whole.judged} judged"),
                ("mean accepted", f"{sum(whole.accepted) / blocks:.3f} in {blocks} positions"),
                ("positions by accepted", histogram),
                ("draft step to step", f"time {cost.time_ratio:.3f}, bytes {cost.bytes_ratio:.3f}"),
                ("expected speed-up", f"{speedup:.3f}"),
                ("verdict", "go" if goes else "no-go"),
            ]
        )  # fmt: skip
    for outcome in outcomes:
        if outcome.why is not None:
            render.warning(output, f"entry {outcome.id}: {outcome.kind}: {outcome.why}")
    if threshold is not None and not whole.judged:
        raise CheckFailed(f"{draft}: nothing was drafted, so nothing speaks for it")
    if threshold is not None and not goes:
        raise CheckFailed(
            f"{draft}: an expected speed-up of {speedup:.3f} is below the threshold {threshold:g}"
        )


def _refuse_without_any(outcomes: Sequence[Outcome]) -> None:
    """Refuse where nothing was scored, with what kept the first entry from it.

    A refusal keeps its kind.
    """
    if not any(outcome.kind == "scored" for outcome in outcomes):
        first = outcomes[0]
        if first.cause is not None:
            raise first.cause
        raise UsageError(f"no entry could be scored; {first.id} is {first.kind}: {first.why}")
