"""``larql observe``: run tokens and see what happens inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
from larql.cli.inputs import TextSource, read_input, room_for
from larql.cli.models import open_model, start_run
from larql.cli.observe_options import (
    BasisDims,
    BasisRows,
    BasisSeed,
    Capture,
    CaptureOut,
    HeadNorms,
    Intervene,
    LensAttention,
    LensLayers,
    LensTokens,
    LensTopK,
    Patterns,
    Record,
    RunId,
)
from larql.cli.observed import document_of, print_summary
from larql.cli.options import (
    ActivationKind,
    Activations,
    Backend,
    BackendOption,
    Chunk,
    Component,
    Context,
    DraftDepth,
    Force,
    Generate,
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
    TopK,
    token_ids,
)
from larql.cli.output import Output, output_of
from larql.cli.run_options import run_options
from larql.errors import UsageError

if TYPE_CHECKING:
    from larql.runtime.model import Model as Opened
    from larql.runtime.observe.basis import Basis
    from larql.runtime.observe.readers import Reader
    from larql.runtime.observe.run import Observed

__all__ = ["command"]


def command(
    ctx: typer.Context,
    model: Model,
    tokens: TokenIds = None,
    tokens_file: TokensFile = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    no_bos: NoBos = False,
    generate: Generate = 0,
    top_k: TopK = 5,
    record: Record = None,
    force: Force = False,
    run_id: RunId = None,
    lens_layers: LensLayers = "all",
    lens_attention: LensAttention = False,
    lens_tokens: LensTokens = None,
    lens_top_k: LensTopK = 5,
    basis_dims: BasisDims = 0,
    basis_seed: BasisSeed = None,
    basis_rows: BasisRows = None,
    head_norms: HeadNorms = False,
    attention_patterns: Patterns = False,
    intervene: Intervene = None,
    capture: Capture = None,
    capture_out: CaptureOut = None,
    component: Component = "target",
    draft_depth: DraftDepth = None,
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
    context: Context = None,
) -> None:
    """Run tokens and see what happens inside: norms, the lens.

    Every write to the carrier is measured, and by default the output of every layer is read
    through the model's own norm and head, at every position: the logit lens, whose last site is
    the logits themselves. Printed is the last position; --record keeps all. Logits and record do
    not depend on threads, chunks or context, and watching changes no bit of the logits.

    Examples
    --------
    larql observe model.vindex3 --prompt "The capital of France is"

    larql observe model.vindex3 --prompt "One, two," --record run.jsonl

    larql observe model.vindex3 --tokens 1,2,3 --lens-layers none --json
    """
    output = output_of(ctx)
    _check(basis_dims, basis_seed, basis_rows, capture, capture_out, record, force, run_id)
    container = open_model(model, output)
    from larql.runtime.model import Model as Opened
    from larql.runtime.observe.capture import parse_captures
    from larql.runtime.observe.declaration import Declaration
    from larql.runtime.observe.summary import FinalPosition, summarize
    from larql.runtime.plan import check_tokens, make_plan
    from larql.runtime.slices import slice_of

    captures = () if capture is None else parse_captures(capture)
    plan = make_plan(container, component, slice_of(draft_depth))
    source = TextSource(tokens, tokens_file, prompt, prompt_file)
    given = read_input(container, source, add_bos=not no_bos)
    check_tokens(given.ids, plan.component.embed.vocab, given.option)
    room = room_for(plan.component, len(given.ids), generate, context, output)
    options = run_options(
        backend, activations, kv, threads, chunk, profile, prefault=prefault, component=component,
        draft_depth=draft_depth, experts=expert_access(shard, experts, route), refusals=refusals,
    )  # fmt: skip
    opened = Opened(start_run(container, options, output))
    declaration = Declaration(
        readers=_readers(opened, lens_layers, lens_attention, lens_tokens, lens_top_k),
        basis=_basis(opened.hidden_size, basis_dims, basis_seed, basis_rows),
        head_norms=head_norms,
        patterns=attention_patterns,
        interventions=() if intervene is None else opened.interventions(intervene),
        captures=captures,
    )
    final = FinalPosition()
    with render.progress(output) as progress:
        found = opened.observe_into(
            given.ids, declaration, [final], generate=generate, top_k=top_k, run_id=run_id,
            record=record, force=force, context=room, progress=progress,
        )  # fmt: skip
    if capture_out is not None:
        _write_captures(capture_out, found, force, output)
    seconds = opened.run.step_seconds
    summary = summarize(found.header, final, found.receipt, seconds)
    _tell(found, output)
    tell_left_out(opened.run, output)
    if output.json:
        render.document(
            output,
            {
                **document_of(found.header, final, found.receipt),
                "record": None if record is None else record.absolute(),
                "step_seconds": seconds,
            },
        )
    else:
        print_summary(summary)


def _check(
    dims: int,
    seed: int | None,
    rows: Path | None,
    capture: str | None,
    capture_out: Path | None,
    record: Path | None,
    force: bool,
    run_id: str | None,
) -> None:
    """Refuse options that contradict each other, before any work is done."""
    from larql.format.atomic import check_output_file

    if run_id == "":
        raise UsageError("--run-id: is empty; give a name, or leave it out")
    if rows is not None and (dims or seed is not None):
        raise UsageError("--basis-rows is a basis already; leave --basis-dims and --basis-seed out")
    if seed is not None and not dims:
        raise UsageError("--basis-seed draws the basis of --basis-dims; give its number of rows")
    if (capture is None) != (capture_out is None):
        raise UsageError("--capture and --capture-out go together: what to keep, and where")
    outputs = [path for path in (capture_out, record) if path is not None]
    for path in outputs:
        check_output_file(path, force=force)
    if len({path.resolve() for path in outputs}) < len(outputs):
        raise UsageError(
            f"{record}: --record and --capture-out have the same path; give each its own"
        )


def _readers(
    opened: Opened, layers: str, attention: bool, tokens: str | None, top: int
) -> tuple[Reader, ...]:
    from larql.runtime.observe.lens import Lens, lens_layers
    from larql.runtime.plan import check_tokens

    prepared = opened.run.prepared
    chosen = lens_layers(layers, prepared.plan, "--lens-layers")
    if not chosen:
        if attention or tokens is not None:
            raise UsageError("--lens-layers none arms no lens; leave the other --lens options out")
        return ()
    declared: tuple[int, ...] = ()
    if tokens is not None and tokens.startswith("text:"):
        text = tokens.removeprefix("text:")
        declared = tuple(opened.tokenize(text, add_bos=False))
    elif tokens is not None:
        declared = token_ids(tokens, "--lens-tokens")
    check_tokens(declared, prepared.plan.component.vocab_size, "--lens-tokens")
    return (Lens(prepared, chosen, attention=attention, tokens=declared, top=top),)


def _basis(hidden: int, dims: int, seed: int | None, rows: Path | None) -> Basis | None:
    from larql.runtime.observe.basis import load_basis, seeded_basis

    if rows is not None:
        return load_basis(rows, hidden)
    return seeded_basis(dims, hidden, seed or 0) if dims else None


def _write_captures(path: Path, found: Observed, force: bool, output: Output) -> None:
    from larql.runtime.observe.capture import write_captures

    if not found.captured:
        render.warning(output, "--capture names no position that was run; nothing was kept")
    write_captures(path, found.captured, found.header, force=force)


def _tell(found: Observed, output: Output) -> None:
    """Warn of what the receipt says that a reader of numbers should not miss."""
    for number, count in enumerate(found.receipt.fired):
        if not count:
            render.warning(output, f"intervention {number} never fired; no such position was run")
    lens = found.receipt.readers.get("lens")
    if isinstance(lens, dict) and lens["failure"] is not None:
        render.warning(output, f"the lens failed: {lens['failure']['reason']}")
