"""``larql perplexity``: how surprised a model is by a text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.expert_options import (
    Experts,
    RefusalPolicy,
    Refusals,
    Route,
    RouteKind,
    Shard,
    expert_access,
    tell_left_out,
)
from larql.cli.inputs import read_text, room_for, tokenizer_of
from larql.cli.models import open_model, start_run
from larql.cli.options import (
    ActivationKind,
    Activations,
    Backend,
    BackendOption,
    Chunk,
    DraftDepth,
    Kv,
    KvKind,
    Model,
    NoBos,
    Prefault,
    Profile,
    Threads,
)
from larql.cli.output import output_of
from larql.cli.run_options import run_options

__all__ = ["command"]

WINDOW = 512

TextFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="A UTF-8 text file, or - for standard input.", show_default=False
    ),
]
WindowOption = Annotated[
    int | None,
    typer.Option(
        "--window",
        metavar="N",
        min=2,
        help="Positions that are run at once from a fresh state.",
        show_default="512, or the model's context where that is shorter",
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        "--stride",
        metavar="N",
        min=1,
        help="How far each window begins after the one before it.",
        show_default="half of the window",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        metavar="N",
        min=2,
        help="Use only the first N tokens of the text.",
        show_default="all",
    ),
]
NllDump = Annotated[
    Path | None,
    typer.Option(
        "--nll-dump",
        metavar="FILE",
        help=(
            "Write the negative log-likelihood of each scored token in nats, float32 [tokens, 1]; "
            "the suffix names the format: .npy, .f32 or .safetensors. A sidecar FILE.json says "
            "where they came from."
        ),
        show_default=False,
    ),
]


def command(
    ctx: typer.Context,
    model: Model,
    file: TextFile,
    window: WindowOption = None,
    stride: Stride = None,
    max_tokens: MaxTokens = None,
    nll_dump: NllDump = None,
    draft_depth: DraftDepth = None,
    no_bos: NoBos = False,
    backend: BackendOption = Backend.PRODUCTION,
    activations: Activations = ActivationKind.F32,
    kv: Kv = KvKind.F32,
    threads: Threads = None,
    chunk: Chunk = None,
    prefault: Prefault = False,
    profile: Profile = None,
    shard: Shard = None,
    experts: Experts = None,
    route: Route = RouteKind.BOUND,
    refusals: Refusals = RefusalPolicy.STRICT,
) -> None:
    """Measure a model on a text file.

    The text is cut into overlapping windows, each run from a fresh state and begun as the model
    was trained to begin; every token is scored exactly once, with at least window minus stride
    tokens of context after the first window. Perplexity is exp of the mean negative
    log-likelihood per token.

    Examples
    --------
    larql perplexity model.vindex3 book.txt --window 512 --stride 256
    """
    output = output_of(ctx)
    if nll_dump is not None:
        from larql.runtime.dump import check_dump_path

        check_dump_path(nll_dump)
    container = open_model(model, output)
    text = read_text(file, "FILE")
    from larql.runtime.plan import check_tokens, make_plan
    from larql.runtime.slices import slice_of

    tokenizer = tokenizer_of(container)
    tokens = tokenizer.encode(text, add_bos=False)[:max_tokens]
    bos_ids = () if no_bos else tokenizer.bos_ids
    component = make_plan(container, "target", slice_of(draft_depth)).component
    check_tokens(tokens, component.vocab_size)
    room = room_for(component, window or min(WINDOW, component.context_length), 0, None, output)
    from larql.runtime.perplexity import perplexity, windows

    step = stride or max(1, room // 2)
    # Refused before the kernels are loaded.
    next(windows(len(tokens), room, step, len(bos_ids)), None)
    options = run_options(
        backend, activations, kv, threads, chunk, profile, prefault=prefault,
        draft_depth=draft_depth, experts=expert_access(shard, experts, route), refusals=refusals,
    )  # fmt: skip
    run = start_run(container, options, output)
    with render.progress(output) as progress:
        found = perplexity(
            run,
            tokens,
            bos_ids=bos_ids,
            window=room,
            stride=step,
            progress=progress,
        )
    tell_left_out(run, output)
    report: dict[str, object] = {
        "perplexity": found.perplexity,
        "mean_nll": found.mean_nll,
        "standard_error": found.standard_error,
        "scored": len(found.nll),
        "tokens": len(tokens),
        "windows": found.windows,
        "window": room,
        "stride": step,
        "bos_ids": list(bos_ids),
    }
    provenance = run.provenance(tokens, room)
    if nll_dump is not None:
        report |= _dump(nll_dump, found.nll, report, provenance)
    if output.json:
        render.document(output, {**report, "provenance": provenance})
        return
    error = found.standard_error
    spread = "" if error is None else f" ± {error:.4f}"
    render.key_values(
        [
            ("perplexity", f"{found.perplexity:.4f}"),
            ("nats per token", f"{found.mean_nll:.4f}{spread}"),
            ("scored", f"{len(found.nll)} of {len(tokens)} tokens in {found.windows} windows"),
            ("window", f"{room}, stride {step}"),
            ("container", container.fingerprint),
            ("profile", run.prepared.selection.profile),
            ("payload sha256", report.get("payload_sha256")),
        ]
    )


def _dump(
    path: Path, nll: object, report: dict[str, object], provenance: dict[str, object]
) -> dict[str, object]:
    import numpy as np

    from larql.provenance import write_sidecar
    from larql.runtime.dump import write_dump

    column = np.asarray(nll, dtype=np.float32)[:, None]
    hashes = dataclasses.asdict(write_dump(path, (len(column), 1), [column], "nll"))
    shape = [len(column), 1]
    write_sidecar(path, {"kind": "nll", "shape": shape, **hashes, **report, **provenance})
    return {"nll_dump": path.absolute(), **hashes}
