"""``larql vindex3 ladder``: every depth of a model as a draft of the whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.bank_input import Prompts, read_entries
from larql.cli.inputs import TextSource
from larql.cli.models import open_model, start_run
from larql.cli.options import (
    ActivationKind,
    Activations,
    Backend,
    BackendOption,
    Chunk,
    Force,
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
    half_open_range,
)
from larql.cli.output import Output, output_of
from larql.cli.run_options import run_options
from larql.errors import UsageError

if TYPE_CHECKING:
    from larql.runtime.draft.bank import Entry
    from larql.runtime.draft.ladder import Rung
    from larql.runtime.draft.measure import LadderRun
    from larql.runtime.run import Run

__all__ = ["command"]

Depths = Annotated[
    str | None,
    typer.Option(
        "--depths",
        metavar="a:b|LIST",
        help="The depths to score, as a half-open range or a list.",
        show_default="all",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Write the ladder as JSON, scores of every position included.",
        show_default=False,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with an interrupted measurement of the same prompts into the same --out.",
        show_default=False,
    ),
]


def command(
    ctx: typer.Context,
    model: Model,
    tokens: TokenIds = None,
    tokens_file: TokensFile = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    prompts: Prompts = None,
    no_bos: NoBos = False,
    depths: Depths = None,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
    backend: BackendOption = Backend.PRODUCTION,
    activations: Activations = ActivationKind.F32,
    kv: Kv = KvKind.F32,
    threads: Threads = None,
    chunk: Chunk = None,
    prefault: Prefault = False,
    profile: Profile = None,
) -> None:
    """Score every depth of a model as a draft of the whole.

    The layers are traversed once, and what each depth leaves goes through the head: so depth d is
    scored as `larql vindex3 score` scores a dump of --draft-depth d, bit for bit. For each depth
    are told how near it is, what it reads, how long a step takes, and what drafting 1, 2, 4 or 8
    tokens a block with it would give on a text like this. Prompts of a bank run one after the
    other, each from a fresh state.

    Examples
    --------
    larql vindex3 ladder model.vindex3 --prompt-file text.txt -o ladder.json

    larql vindex3 ladder model.vindex3 --prompts bank.jsonl --depths 4:13 -o ladder.json
    """
    output = output_of(ctx)
    if resume and out is None:
        raise UsageError("--resume belongs to --out; give the file with it")
    if out is not None:
        from larql.format.atomic import check_output_file

        check_output_file(out, force=force)
    container = open_model(model, output)
    source = TextSource(tokens, tokens_file, prompt, prompt_file)
    entries = read_entries(container, "target", source, prompts, add_bos=not no_bos)
    from larql.runtime.draft.bank import RefusedEntry
    from larql.runtime.draft.ladder import check_depths
    from larql.runtime.plan import make_plan
    from larql.runtime.slices import Full

    good: list[Entry] = []
    for entry in entries:
        if isinstance(entry, RefusedEntry):
            raise UsageError(f"--prompts: {entry.why}")
        good.append(entry)
    layers = len(make_plan(container, "target", Full()).layers)
    wanted = _depths(depths, layers)
    check_depths(wanted, layers)
    options = run_options(backend, activations, kv, threads, chunk, profile, prefault=prefault)
    run = start_run(container, options, output)
    from larql.runtime.draft.measure import climb

    with render.progress(output) as progress:
        found = climb(run, good, wanted, out, resume=resume, progress=progress)
    document = _document(run, good, wanted, found)
    if out is not None:
        _write(out, document)
        if found.journal is not None:
            found.journal.remove()
    if output.json:
        render.document(output, document)
    else:
        _print(found, good, out, output)


def _depths(text: str | None, layers: int) -> list[int]:
    if text is None:
        return list(range(1, layers + 1))
    if ":" in text:
        return list(range(*half_open_range(text, "--depths")))
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text, re.ASCII):
        raise UsageError(
            f"--depths: {text!r:.60} is neither a range a:b nor numbers with commas between"
        )
    return [int(depth) for depth in text.split(",")]


def _write(path: Path, document: dict[str, object]) -> None:
    import json

    from larql.format.atomic import write_file

    text = json.dumps(render.plain(document), allow_nan=False, ensure_ascii=False)
    with write_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _document(
    run: Run, entries: Sequence[Entry], depths: Sequence[int], found: LadderRun
) -> dict[str, object]:
    per = {
        entry.id: {
            str(depth): scores.document()
            for depth, scores in zip(depths, found.scores[entry.id], strict=True)
        }
        for entry in entries
    }
    tokens = [token for entry in entries for token in entry.tokens]
    return {
        "kind": "ladder",
        "layers": found.times.layers,
        "entries": [{"id": entry.id, "tokens": entry.tokens} for entry in entries],
        "rungs": found.rungs,
        "step_seconds": {
            "one_layer": found.times.shallow,
            "whole": found.times.whole,
            "blocks": found.times.blocks,
        },
        "seconds": found.seconds,
        "per_position": per,
        "provenance": run.provenance(tokens, max(len(entry.tokens) for entry in entries)),
    }


def _print(found: LadderRun, entries: Sequence[Entry], out: Path | None, output: Output) -> None:
    columns = [
        "depth", "KL", "same top", "in top 5", "nats more", "step ms", "read", "accepted of 4",
        "best K", "speed-up",
    ]  # fmt: skip
    render.table(columns, map(_row, found.rungs), right=columns)
    positions = sum(len(entry.tokens) for entry in entries)
    seconds = ", ".join(f"{name} {value:.2f}" for name, value in found.seconds.items())
    render.notice(output, f"{positions} positions of {len(entries)} prompts; seconds: {seconds}")
    if out is not None:
        render.notice(output, f"written to {out}")


def _row(rung: Rung) -> list[object]:
    summary, following = rung.summary, rung.summary.next_token
    best = max(rung.gains, key=lambda k: rung.gains[k].speedup, default=None)
    gain = None if best is None else rung.gains[best]
    return [
        rung.depth,
        f"{summary.divergence.value:.4f}",
        f"{summary.same_top.value:.3f}",
        f"{summary.contained['5'].value:.3f}",
        None if following is None else f"{following.nll_difference.value:.3f}",
        f"{rung.step_ms:.2f}",
        render.bytes_text(rung.cost.step_bytes),
        f"{rung.gains['4'].accepted:.2f}" if "4" in rung.gains else None,
        best,
        None if gain is None else f"{gain.speedup:.2f}",
    ]
