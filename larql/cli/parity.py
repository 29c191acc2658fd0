"""``larql vindex3 parity``: whether two runs of a model agree, and where they stop to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.inputs import TextSource, read_input, room_for
from larql.cli.models import open_model, start_run
from larql.cli.options import (
    ActivationKind,
    Activations,
    Backend,
    BackendOption,
    Chunk,
    Component,
    DraftDepth,
    Kv,
    KvKind,
    Model,
    NoBos,
    Prompt,
    PromptFile,
    Threads,
    TokenIds,
    TokensFile,
    TopK,
)
from larql.cli.output import output_of
from larql.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from larql.format.container import Container
    from larql.runtime.parity.compare import Comparison, Wanted
    from larql.runtime.parity.ends import Ends
    from larql.runtime.parity.verdict import Checkpoint, Tolerance
    from larql.runtime.run import RunOptions

__all__ = ["command"]

Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="MODEL",
        help="The container of the baseline.",
        show_default="MODEL, on the reference backend",
    ),
]
AgainstBackend = Annotated[
    Backend | None,
    typer.Option(
        "--against-backend",
        metavar="NAME",
        help="Backend of the baseline.",
        show_default="reference; with --against that of MODEL",
    ),
]
AgainstActivations = Annotated[
    ActivationKind | None,
    typer.Option(
        "--against-activations",
        metavar="KIND",
        help="Activations of the baseline.",
        show_default="f32; with --against those of MODEL",
    ),
]
AgainstKv = Annotated[
    KvKind | None,
    typer.Option(
        "--against-kv",
        metavar="KIND",
        help="How the baseline keeps keys and values.",
        show_default="f32; with --against as MODEL",
    ),
]
AgainstChunk = Annotated[
    int | None,
    typer.Option(
        "--against-chunk",
        metavar="N",
        min=1,
        help="Most positions that the baseline advances in one step.",
        show_default="chosen by the backend",
    ),
]
ToleranceOption = Annotated[
    str | None,
    typer.Option(
        "--tolerance",
        metavar="NAME|X",
        help=(
            "How far apart they may be: exact (equal bits), float32, kv-f16, q8, or a number: the "
            "largest difference over the baseline's largest value, position by position."
        ),
        show_default="exact where both compute alike, else by what one rounds",
    ),
]
Decode = Annotated[
    int,
    typer.Option(
        "--generate", "-n", metavar="N", min=0, help="Tokens to decode; 0 leaves decoding out."
    ),
]
OracleLayer = Annotated[
    int | None,
    typer.Option(
        "--oracle-layer",
        metavar="N",
        min=0,
        help=(
            "Hold this layer of both arms to a third computation too: dequantised weights, "
            "reference arithmetic."
        ),
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
    no_bos: NoBos = False,
    against: Against = None,
    backend: BackendOption = Backend.PRODUCTION,
    activations: Activations = ActivationKind.F32,
    kv: Kv = KvKind.F32,
    chunk: Chunk = None,
    against_backend: AgainstBackend = None,
    against_activations: AgainstActivations = None,
    against_kv: AgainstKv = None,
    against_chunk: AgainstChunk = None,
    tolerance: ToleranceOption = None,
    generate: Decode = 4,
    top_k: TopK = 5,
    oracle_layer: OracleLayer = None,
    component: Component = "target",
    draft_depth: DraftDepth = None,
    threads: Threads = None,
) -> None:
    """Say whether two runs of a model agree, and where they stop to.

    MODEL is examined against a baseline: another backend, other activations, another container.
    First every block of both computes on identical hidden states, which names the earliest
    operation that differs; then both are left to themselves, which names the first boundary that
    does; then both decode, with the baseline's tokens and, if that agrees, with their own. A
    refused step ends the comparison and is no mismatch. Exit status 1: they disagree, or agree on
    nothing; 2: refused.

    Examples
    --------
    larql vindex3 parity model.vindex3 --prompt "The capital of France is"

    larql vindex3 parity changed.vindex3 --against model.vindex3 --tokens 1,2,3

    larql vindex3 parity model.vindex3 --tokens 1,2,3 --activations q8 --against-backend production
    """
    output = output_of(ctx)
    examined = open_model(model, output)
    baseline = examined if against is None else open_model(against, output)
    source = TextSource(tokens, tokens_file, prompt, prompt_file)
    from larql.runtime.plan import check_tokens, make_plan
    from larql.runtime.slices import slice_of

    plan = make_plan(examined, component, slice_of(draft_depth))
    given = read_input(examined, source, add_bos=not no_bos)
    check_tokens(given.ids, plan.component.vocab_size, given.option)
    if oracle_layer is not None and oracle_layer not in plan.executed_layers:
        raise UsageError(
            f"--oracle-layer {oracle_layer}: the run executes layers 0:{len(plan.executed_layers)}"
        )
    room_for(plan.component, len(given.ids), generate + 1, None, output)
    from larql.runtime.parity.arms import RefusedArmError, expected_tolerance, open_pair
    from larql.runtime.parity.compare import Comparison, Halt, Wanted, compare
    from larql.runtime.parity.document import arm_document, comparison_document
    from larql.runtime.run import RunOptions

    own = (backend, activations, kv)
    alone = (Backend.REFERENCE, ActivationKind.F32, KvKind.F32)
    default = alone if against is None else own
    chosen = (
        against_backend or default[0],
        against_activations or default[1],
        against_kv or default[2],
    )
    options = tuple(
        RunOptions(component, b.value, draft_depth, threads, size, a.value, k.value)
        for (b, a, k), size in ((chosen, against_chunk), (own, chunk))
    )
    numerics = [(o.backend, o.activations, o.kv) for o in options]
    wanted = Wanted(
        given.ids,
        expected_tolerance(*numerics) if tolerance is None else _tolerance(tolerance),
        generate,
        top_k,
        oracle_layer,
    )
    try:
        pair = open_pair(
            (baseline, examined),
            (options[0], options[1]),
            lambda container, how: start_run(container, how, output),
        )
        found = compare(pair, wanted)
    except RefusedArmError as refused:
        found = Comparison(halt=Halt("opening", refused.arm, refused.refusal))
    arms = (("baseline", baseline, options[0]), ("examined", examined, options[1]))
    if output.json:
        document = {"arms": [arm_document(*arm) for arm in arms]}
        render.document(output, {**document, **comparison_document(found, wanted)})
    else:
        _print(found, wanted, arms)
    for note in found.trivial:
        render.warning(output, note)
    _end(found, examined)


def _tolerance(text: str) -> Tolerance:
    from larql.runtime.parity.verdict import TOLERANCES, Tolerance

    if text in TOLERANCES:
        return TOLERANCES[text]
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise UsageError(
            f"--tolerance {text!r}: expected one of {', '.join(TOLERANCES)}, or a number of at "
            f"least 0"
        )
    return Tolerance("given", value)


def _end(found: Comparison, examined: Container) -> None:
    """End with the status that the comparison has come to."""
    if found.halt is not None:
        raise found.halt.refusal
    if found.blank:
        raise CheckFailed(
            f"{examined.path}: the comparison shows nothing: {found.blank[0]}; the weights are "
            f"damaged, or other tokens are needed"
        )
    if found.agrees:
        return
    causal = None if found.sweep is None else found.sweep.causal
    step = None if found.teacher_forced is None else found.teacher_forced.first
    if causal is not None:
        where = f"first at {causal.name}, on identical input"
    elif found.propagation is not None and found.propagation.first is not None:
        where = f"first at {found.propagation.first.name}, as small differences add up"
    elif step is not None and step.first is not None:
        where = f"first at {step.first.name} in the decoding of position {step.position}"
    else:
        where = "only in what the summary tells"
    raise CheckFailed(f"{examined.path}: the arms disagree, {where}")


def _print(
    found: Comparison, wanted: Wanted, arms: tuple[tuple[str, Container, RunOptions], ...]
) -> None:
    from larql.runtime.parity.document import verdict_text

    facts: list[tuple[str, object]] = []
    for name, container, how in arms:
        chunk = "" if how.chunk is None else f", {how.chunk} positions at once"
        facts.append(
            (name, f"{container.path}, {how.backend}, {how.activations}, kv {how.kv}{chunk}")
        )
    tolerance = wanted.tolerance
    words = "equal bits" if tolerance.asserts_bits else f"{tolerance.relative:g} of the largest"
    facts.append(("tolerance", f"{tolerance.name}: {words}"))
    facts.append(("verdict", verdict_text(found)))
    if found.halt is not None:
        facts.append(("refused", f"{found.halt.arm}, {found.halt.phase}"))
    render.key_values(facts)
    if found.sweep is not None:
        _print_layers(found)
    for leg in found.oracle:
        worst = max(leg.checkpoints, key=lambda c: c.error or 0.0)
        render.line(
            f"layer {leg.layer} of the {leg.arm} against its oracle: {leg.verdict.value}, "
            f"{_error(worst)} at {worst.name}"
        )
    if found.ends is not None:
        _print_ends(found.ends)
    _print_decoding(found)


def _print_layers(found: Comparison) -> None:
    sweep, propagation = found.sweep, found.propagation
    assert sweep is not None
    boundaries = {} if propagation is None else {c.site: c for c in propagation.boundaries}

    def rows() -> Iterator[tuple[object, ...]]:
        for layer in sweep.layers:
            at = [c for site, c in boundaries.items() if site.partition(".")[0] == layer.layer]
            left = max(at, key=lambda c: (c.verdict.rank, c.error or 0.0)) if at else None
            worst = layer.worst
            yield (
                layer.layer,
                layer.verdict.value,
                _error(worst),
                worst.name,
                None if left is None else left.verdict.value,
                None if left is None else _error(left),
            )

    columns = ["layer", "on identical input", "error", "at", "propagated", "error "]
    render.line()
    render.table(columns, rows(), right=["error", "error "])
    render.line()
    if sweep.causal is not None:
        render.line(f"earliest causal operation: {_where(sweep.causal)}")
    if propagation is not None and propagation.first is not None:
        render.line(f"first differing boundary: {_where(propagation.first)}")


def _where(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.name}, error {_error(checkpoint)}, position {checkpoint.position}"


def _error(checkpoint: Checkpoint) -> str:
    return "none" if checkpoint.error is None else f"{checkpoint.error:.2g}"


def _print_ends(ends: Ends) -> None:
    for checkpoint in (ends.before, ends.after, ends.logits):
        render.line(f"{checkpoint.name}: {checkpoint.verdict.value}, error {_error(checkpoint)}")
    sides = (("baseline", ends.baseline), ("examined", ends.examined))
    for name, side in sides:
        margin = "none" if side.margin is None else f"{side.margin:.6g}"
        top = ", ".join(f"{token} ({logit:.6g})" for token, logit in side.top)
        render.line(f"{name}: argmax {side.argmax}, margin {margin}; top {top}")


def _print_decoding(found: Comparison) -> None:
    forced, free = found.teacher_forced, found.free_run
    if forced is not None:
        render.line()
        render.table(
            ["position", "token", "teacher-forced", "error", "argmax", "first difference"],
            [
                (
                    step.position,
                    step.token,
                    step.verdict.value,
                    _error(step.logits),
                    f"{step.argmax[0]} / {step.argmax[1]}",
                    None if step.first is None else step.first.name,
                )
                for step in forced.steps
            ],
            right=["position", "token", "error"],
        )
    if free is not None:
        where = "" if free.differs_at is None else f", from token {free.differs_at} on"
        render.line(f"free-running: {free.verdict.value}{where}")
        render.line(f"    baseline {', '.join(map(str, free.baseline))}")
        render.line(f"    examined {', '.join(map(str, free.examined))}")
    elif forced is not None:
        render.line("free-running: not begun, because teacher-forcing has not passed")
