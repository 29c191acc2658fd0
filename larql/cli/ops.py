"""``larql vindex3 ops``: a container's plan, operation by operation."""

from __future__ import annotations

import dataclasses

import typer

from larql.cli import render
from larql.cli.models import open_model
from larql.cli.options import Component, DraftDepth, Model, Profile
from larql.cli.output import output_of
from larql.errors import CheckFailed
from larql.format.closure import check_closure
from larql.runtime.listing import operand_lines, operations
from larql.runtime.plan import make_plan
from larql.runtime.slices import Draft, Full

__all__ = ["command"]


def command(
    ctx: typer.Context,
    model: Model,
    component: Component = "target",
    depth: DraftDepth = None,
    profile: Profile = None,
) -> None:
    """List a container's plan, operation by operation.

    Each operation is followed by the operands that it reads, with shape and stored encoding, and
    at the end stands whether they close. Exit status 1 means that an operand is missing or has
    another shape than its operation needs.

    Examples
    --------
    larql vindex3 ops model.vindex3 --draft-depth 1
    """
    output = output_of(ctx)
    container = open_model(model, output)
    plan = make_plan(container, component, Full() if depth is None else Draft(depth))
    served = container.select(profile).bound
    # A draft needs no more than it runs.
    defects = check_closure(dataclasses.replace(plan.component, layers=plan.layers), served)
    rows = [(op, operand_lines(op, served)) for op in operations(plan)]
    if output.json:
        render.document(
            output,
            {
                "container": container.path.absolute(),
                "component": component,
                "executed_layers": list(plan.executed_layers),
                "closes": not defects,
                "defects": [{"where": d.where, "problem": d.problem} for d in defects],
                "operations": [
                    {
                        "layer": op.layer,
                        "site": op.site,
                        "op": op.op,
                        "detail": op.detail,
                        "operands": [
                            {
                                "use": line.contract.use,
                                "name": line.contract.name,
                                "shape": list(line.contract.shape),
                                "encoding": line.encoding,
                                "problem": line.problem,
                            }
                            for line in lines
                        ],
                    }
                    for op, lines in rows
                ],
            },
        )
    else:
        for op, lines in rows:
            layer = "" if op.layer is None else f"layer {op.layer} "
            render.line(f"{layer}{op.site}: {op.op}  {op.detail}")
            for line in lines:
                shape = " × ".join(map(str, line.contract.shape))
                state = line.encoding if line.problem is None else f"{line.problem}!"
                render.line(f"    {render.printable(line.contract.name)}  {shape}  {state}")
        for defect in defects:
            render.line(render.printable(defect.line()))
        if not defects:
            render.line("operands close")
    if defects:
        count = "1 operand does" if len(defects) == 1 else f"{len(defects)} operands do"
        raise CheckFailed(f"{container.path}: {count} not close")
