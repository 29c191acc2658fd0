"""``larql slice``: cut a container down to a part of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.capability import headline
from larql.cli.models import open_model, tell
from larql.cli.options import Force, Model, half_open_range
from larql.cli.output import Output, output_of
from larql.errors import UsageError
from larql.format.container import Container, open_container
from larql.format.moe.capability import Capability, capability_of
from larql.format.slicing.cut import Cut, plan_cut
from larql.format.slicing.made import Made, check_slice_output
from larql.format.slicing.plan import request
from larql.format.slicing.presets import PRESETS, Part

__all__ = ["command"]

Out = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="OUT", help="Container to create.", show_default=False),
]
PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help=f"A named set of parts: {', '.join(PRESETS)}.",
        show_default="all, or the parts that are named",
    ),
]
PartsOption = Annotated[
    str | None,
    typer.Option(
        "--parts",
        metavar="A,B",
        help=f"Parts to keep, or to add to a preset: {', '.join(Part)}.",
        show_default=False,
    ),
]
LayersOption = Annotated[
    str | None,
    typer.Option(
        "--layers",
        metavar="A:B",
        help="Keep only these layers, B not included; they keep their numbers.",
        show_default="all",
    ),
]
ExpertsOption = Annotated[
    str | None,
    typer.Option(
        "--experts",
        metavar="A:B",
        help="Keep only these experts of each layer, B not included: a shard.",
        show_default="all",
    ),
]
DepthOption = Annotated[
    int | None,
    typer.Option(
        "--draft-depth",
        metavar="N",
        help="Cut the model after N layers: a shallower model, complete in itself.",
        show_default="all layers",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="List what would be written, and stop.", show_default=False),
]


def command(
    ctx: typer.Context,
    model: Model,
    output_path: Out = None,
    preset: PresetOption = None,
    parts: PartsOption = None,
    layers: LayersOption = None,
    experts: ExpertsOption = None,
    draft_depth: DepthOption = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Cut a container down to a part of itself.

    A slice is a container, with the numbers of the whole: `larql verify` holds it to its own index,
    which declares what was left out. What it can still do is derived from what is in it, and
    printed. Files that are kept whole are cloned or linked, not copied, where the file system can.
    With `--draft-depth` nothing is left out: the slice is a shallower model, and gives what
    `larql exec --draft-depth` gives.

    Examples
    --------
    larql slice model.vindex3 -o browse.vindex3 --preset browse

    larql slice model.vindex3 -o first4.vindex3 --draft-depth 4

    larql slice model.vindex3 -o shard0.vindex3 --preset expert-server --experts 0:16
    """
    output = output_of(ctx)
    if output_path is None and not dry_run:
        raise UsageError("name the slice with -o OUT, or give --dry-run to see what it would hold")
    wanted = request(
        preset,
        [name.strip() for name in parts.split(",")] if parts is not None else [],
        None if layers is None else half_open_range(layers, "--layers"),
        None if experts is None else half_open_range(experts, "--experts"),
        draft_depth,
    )
    container = open_model(model, output)
    if output_path is not None:
        check_slice_output(container, output_path, force=force)
    plan = plan_cut(container, wanted)
    tell(output, plan.notes)
    if dry_run or output_path is None:
        _list(output, container, plan)
        return
    with render.progress(output) as progress:
        made = plan.write(output_path, force=force, progress=progress)
    found = capability_of(open_container(made.path))
    if output.json:
        render.document(output, _document(container, plan, made, found))
    else:
        _print(plan, made, found)


def _list(output: Output, container: Container, plan: Cut) -> None:
    files = plan.files()
    total = sum(file.size for file in files)
    whole = sum(file.size for file in container.index.files.values())
    if output.json:
        render.document(
            output,
            {
                "files": list(files),
                "bytes": total,
                "of": whole,
                "operands": plan.operands,
                "left_out": list(plan.remote),
            },
        )
        return
    render.table(
        ["file", "bytes", "how"], [(f.name, f.size, f.how) for f in files], right=["bytes"]
    )
    render.line(f"{len(files)} files, {total} of {whole} bytes, and index.json")


def _document(container: Container, plan: Cut, made: Made, found: Capability) -> dict[str, object]:
    return {
        "path": made.path.absolute(),
        "fingerprint": made.fingerprint,
        "cut_from": container.fingerprint,
        "bytes": made.nbytes,
        "stored": made.stored,
        "files": dict(made.shared),
        "operands": plan.operands,
        "left_out": list(plan.remote),
        "operations": [
            {
                "name": operation.name,
                "component": operation.component,
                "admitted": operation.admitted,
                "authority": None if operation.authority is None else operation.authority.level,
                "missing": [d.where for d in operation.diagnoses],
            }
            for operation in found.operations
        ],
    }


def _print(plan: Cut, made: Made, found: Capability) -> None:
    shared = ", ".join(f"{count} {how}" for how, count in made.shared.items() if count)
    render.key_values(
        [
            ("slice", made.path),
            ("size", f"{render.bytes_text(made.nbytes)}, {render.bytes_text(made.stored)} written"),
            ("whole files", shared or None),
            ("left out", f"{len(plan.remote)} objects and operands" if plan.remote else None),
            ("fingerprint", made.fingerprint),
        ]
    )
    for operation in found.operations:
        render.line(render.printable(headline(operation)))
        if operation.diagnoses:
            first, more = operation.diagnoses[0], len(operation.diagnoses) - 1
            rest = f", and {more} more" if more else ""
            render.line(render.printable(f"    {first.where}: {first.state or first.detail}{rest}"))
