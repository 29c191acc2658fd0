"""``larql vindex3 necessity``: which of a mixture's experts a run needs, by taking some away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.inputs import TextSource, read_input
from larql.cli.models import open_model, start_run
from larql.cli.options import (
    ActivationKind,
    Activations,
    Backend,
    BackendOption,
    Chunk,
    Component,
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
    half_open_range,
)
from larql.cli.output import output_of
from larql.cli.run_options import run_options
from larql.errors import CheckFailed

if TYPE_CHECKING:
    from larql.format.container import Container
    from larql.runtime.parity.necessity import Ladder

__all__ = ["command"]

LayersOption = Annotated[
    str | None,
    typer.Option(
        "--layers",
        metavar="A:B",
        help="Layers whose experts are taken away, B not included.",
        show_default="five with experts, spread over the model",
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
    layers: LayersOption = None,
    backend: BackendOption = Backend.PRODUCTION,
    activations: Activations = ActivationKind.F32,
    kv: Kv = KvKind.F32,
    chunk: Chunk = None,
    profile: Profile = None,
    component: Component = "target",
    threads: Threads = None,
) -> None:
    """Show that a run needs its experts, and no others.

    The prompt is run with all experts, and its routing is kept. Then it is run with those experts
    alone, which must give the same bits; with one of them taken away, and with another in its
    place, which must be refused as a matter of residency, naming layer and expert; and with it put
    back. Exit status 1: it came out otherwise, or every expert was chosen, which shows nothing.

    Examples
    --------
    larql vindex3 necessity mixture.vindex3 --tokens 1,2,3

    larql vindex3 necessity mixture.vindex3 --tokens 1,2,3 --layers 3:5 --json
    """
    output = output_of(ctx)
    container = open_model(model, output)
    source = TextSource(tokens, tokens_file, prompt, prompt_file)
    given = read_input(container, source, add_bos=not no_bos)
    from larql.runtime.parity.necessity import climb
    from larql.runtime.plan import check_tokens

    check_tokens(given.ids, container.component(component).vocab_size, given.option)
    options = run_options(backend, activations, kv, threads, chunk, profile, component=component)
    wanted = None if layers is None else half_open_range(layers, "--layers")
    found = climb(container, options, given.ids, wanted, lambda c, how: start_run(c, how, output))
    if output.json:
        render.document(output, _document(container, given.ids, found))
    else:
        _print(found)
    for note in found.trivial:
        render.warning(output, note)
    _end(container, found)


def _end(container: Container, found: Ladder) -> None:
    wrong = [rung for rung in found.rungs if not rung.holds]
    if wrong:
        rung = wrong[0]
        where = "" if rung.layer is None else f" of layer {rung.layer}, expert {rung.expert}"
        raise CheckFailed(
            f"{container.path}: rung {rung.name}{where} is {rung.outcome}, expected {rung.expected}"
        )
    if found.blank:
        raise CheckFailed(f"{container.path}: {found.trivial[0]}")
    if not found.holds:
        raise CheckFailed(
            f"{container.path}: every expert of every tested layer was chosen, so nothing was left "
            f"out; give fewer tokens"
        )


def _document(container: Container, tokens: tuple[int, ...], found: Ladder) -> dict[str, object]:
    return {
        "container": container.path.absolute(),
        "fingerprint": container.fingerprint,
        "tokens": list(tokens),
        "holds": found.holds,
        "trivial": list(found.trivial),
        "layers": [
            {
                "layer": layer,
                "population": found.population[layer],
                "minimal": list(found.minimal[layer]),
            }
            for layer in found.layers
        ],
        "rungs": [
            {
                "name": rung.name,
                "layer": rung.layer,
                "expert": rung.expert,
                "other": rung.other,
                "bound": rung.bound,
                "expected": rung.expected,
                "outcome": rung.outcome,
                "message": rung.message,
            }
            for rung in found.rungs
        ],
    }


def _print(found: Ladder) -> None:
    render.table(
        ["layer", "experts", "chosen"],
        [
            (layer, found.population[layer], ", ".join(map(str, found.minimal[layer])))
            for layer in found.layers
        ],
        right=["layer", "experts"],
    )
    render.line()
    render.table(
        ["rung", "layer", "expert", "in its place", "bound", "outcome", ""],
        [
            (
                rung.name,
                rung.layer,
                rung.expert,
                rung.other,
                rung.bound,
                rung.outcome,
                "" if rung.holds else f"expected {rung.expected}",
            )
            for rung in found.rungs
        ],
        right=["layer", "expert", "in its place", "bound"],
    )
