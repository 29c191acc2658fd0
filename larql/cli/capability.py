"""``larql vindex3 capability``: what a container can do, how faithfully, and what it lacks."""

from __future__ import annotations

from typing import Annotated

import typer

from larql.cli import render
from larql.cli.models import open_model
from larql.cli.options import Model, Profile, half_open_range
from larql.cli.output import output_of
from larql.errors import CheckFailed
from larql.format.container import Container
from larql.format.generation import Generation
from larql.format.moe.capability import Capability, capability_of
from larql.format.moe.findings import Operation

__all__ = ["command", "headline"]

PartialOption = Annotated[
    bool,
    typer.Option(
        "--partial",
        help="Admit a walk over some of the banks; those that it drops are listed.",
        show_default=False,
    ),
]

LayersOption = Annotated[
    str | None,
    typer.Option(
        "--layers",
        metavar="A:B",
        help="Layers whose banks a walk is asked to cover, B not included.",
        show_default="all",
    ),
]


def command(
    ctx: typer.Context,
    model: Model,
    profile: Profile = None,
    layers: LayersOption = None,
    partial: PartialOption = False,
) -> None:
    """Say what a container can do, how well, and what it lacks.

    Asked of each component: may the rows of its banks be searched (`walk`), does it run here
    (`local_decode`); and of the document: can the checkpoint be written back
    (`reconstruct_canonical`). Headers and tables are read, no weight; `larql verify` is what hashes
    files. Exit status 1 means that something is not as the container declares it; what a profile
    leaves out is no defect.

    Examples
    --------
    larql vindex3 capability model.vindex3

    larql vindex3 capability model.vindex3 --profile client --json
    """
    output = output_of(ctx)
    container = open_model(model, output, only=Generation.VINDEX3)
    found = capability_of(
        container,
        profile,
        partial=partial,
        layers=None if layers is None else half_open_range(layers, "--layers"),
    )
    if output.json:
        render.document(output, _document(container, found))
    else:
        _print(found)
    if found.defects:
        # The operations say it each in their words, of the same regions.
        count = len({d.where.partition(",")[0] for d in found.defects})
        raise CheckFailed(
            f"{container.path}: {count} defect{'s' if count > 1 else ''} found; larql verify "
            f"checks the bytes as well"
        )


def _print(found: Capability) -> None:
    profile = "none" if found.profile is None else " < ".join(found.chain)
    render.line(f"profile {render.printable(profile)}")
    for operation in found.operations:
        render.line()
        render.line(render.printable(headline(operation)))
        for group in operation.groups:
            kind = "choice" if len(group.usable) > 1 else "one alternative serves"
            usable = ", ".join(group.usable) or "none"
            render.line(render.printable(f"    {kind}: {group.subject}: {usable}"))
            for label, why in group.failed:
                render.line(render.printable(f"        not {label}: {why}"))
        for diagnosis in operation.diagnoses:
            render.line(render.printable(f"    {diagnosis.line()}"))
        for note in operation.notes:
            render.line(render.printable(f"    note: {note}"))


def headline(operation: Operation) -> str:
    """Return in one line whether an operation is admitted, how well, and what bound it."""
    subject = "document" if operation.component is None else operation.component
    head = f"{operation.name} ({subject}, scope {operation.scope})"
    covered = (
        f", {len(operation.covered)} of {len(operation.asked)} banks" if operation.asked else ""
    )
    if operation.authority is None:
        return f"{head}: no route{covered}"
    authority, achievable = operation.authority, operation.achievable
    why = ""
    if authority.cap == "fidelity":
        more = f" and {len(authority.regions) - 1} more" if len(authority.regions) > 1 else ""
        why = f", bound by {authority.regions[0]}{more}"
    elif authority.cap != "none":
        why = f", bound by {authority.cap}"
    span = ""
    if achievable is not None and not achievable.settled:
        span = f", from {achievable.best} to {achievable.worst} by what a profile selects"
    return f"{head}: yes, {authority.level}{why}{span}{covered}"


def _document(container: Container, found: Capability) -> dict[str, object]:
    return {
        "container": container.path.absolute(),
        "fingerprint": container.fingerprint,
        "profile": found.profile,
        "inherits": list(found.chain[1:]),
        "ok": not found.defects,
        "operations": [
            {
                "name": operation.name,
                "component": operation.component,
                "scope": operation.scope,
                "admitted": operation.admitted,
                "authority": None
                if operation.authority is None
                else operation.authority.document(),
                "achievable": None
                if operation.achievable is None
                else {
                    "best": operation.achievable.best,
                    "worst": operation.achievable.worst,
                    "settled": operation.achievable.settled,
                },
                "choices": list(operation.groups),
                "diagnoses": list(operation.diagnoses),
                "banks": list(operation.asked),
                "covered": list(operation.covered),
                "outside": [{"bank": bank, "state": state} for bank, state in operation.outside],
                "notes": list(operation.notes),
            }
            for operation in found.operations
        ],
    }
