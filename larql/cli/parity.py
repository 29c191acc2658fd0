"""``larql vindex3 parity``: whether two runs of a model agree, and where they stop to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.expert_options import RouteKind, Shard, expert_access
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
    Profile,
    Prompt,
    PromptFile,
    Threads,
    TokenIds,
    TokensFile,
    TopK,
)
from larql.cli.output import output_of
from larql.cli.parity_text import print_comparison
from larql.cli.run_options import run_options
from larql.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from larql.format.container import Container
    from larql.runtime.parity.compare import Comparison
    from larql.runtime.parity.verdict import Tolerance

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
AgainstProfile = Annotated[
    str | None,
    typer.Option(
        "--against-profile",
        metavar="NAME",
        help="Profile under which the baseline is run, which selects among representations.",
        show_default="that of MODEL",
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
    profile: Profile = None,
    against_backend: AgainstBackend = None,
    against_activations: AgainstActivations = None,
    against_kv: AgainstKv = None,
    against_chunk: AgainstChunk = None,
    against_profile: AgainstProfile = None,
    tolerance: ToleranceOption = None,
    generate: Decode = 4,
    top_k: TopK = 5,
    oracle_layer: OracleLayer = None,
    shard: Shard = None,
    component: Component = "target",
    draft_depth: DraftDepth = None,
    threads: Threads = None,
) -> None:
    """Say whether two runs agree, and where they stop to.

    MODEL is examined against a baseline: another backend, other activations, another selection of
    what it holds, another container.
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

    own = (backend, activations, kv)
    alone = (Backend.REFERENCE, ActivationKind.F32, KvKind.F32)
    default = alone if against is None else own
    chosen = (
        against_backend or default[0],
        against_activations or default[1],
        against_kv or default[2],
    )
    part = expert_access(shard, None, RouteKind.BOUND)
    options = tuple(
        run_options(
            b,
            a,
            k,
            threads,
            size,
            name,
            component=component,
            draft_depth=draft_depth,
            experts=which,
        )
        for (b, a, k), size, name, which in (
            (chosen, against_chunk, against_profile or profile, None),
            (own, chunk, profile, part),
        )
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
        print_comparison(found, wanted, arms)
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
    raise CheckFailed(f"{examined.path}: {_disagreement(found)}")


def _disagreement(found: Comparison) -> str:
    """Return where a comparison that does not agree differs first."""
    from larql.runtime.parity.verdict import first_mismatch

    causal = None if found.sweep is None else found.sweep.causal
    boundary = None if found.propagation is None else found.propagation.first
    step = None if found.teacher_forced is None else found.teacher_forced.first
    wrong = [leg for leg in found.oracle if first_mismatch(leg.checkpoints) is not None]
    if causal is not None:
        return f"the arms disagree, first at {causal.name}, on identical input"
    if wrong:
        return f"layer {wrong[0].layer} of the {wrong[0].arm} disagrees with its oracle"
    if boundary is not None:
        return f"the arms disagree, first at {boundary.name}, as small differences add up"
    if step is not None:
        what = "" if step.first is None else f" at {step.first.name}"
        return f"the arms disagree, first{what} in the decoding of position {step.position}"
    if found.free_run is not None and found.free_run.differs_at is not None:
        return f"the arms generate other tokens, from token {found.free_run.differs_at} on"
    return "the arms disagree at the head"
