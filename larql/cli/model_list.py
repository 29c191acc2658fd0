"""``larql models``: the families that this build compiles and executes."""

from __future__ import annotations

import typer

from larql.cli import render
from larql.cli.output import output_of
from larql.format.source.held import BACKENDS, reports

__all__ = ["command"]


def command(ctx: typer.Context) -> None:
    """List the model families that this build runs.

    A checkpoint's ``config.json`` names its family in ``model_type``, a GGUF file in
    ``general.architecture``. Each family is held to oracles: tiny checkpoints and what another
    program computed from them. A backend executes a family if it computes all its oracles; shown is
    how far the logits of each backend are from those at most, as a share of the largest logit.

    Examples
    --------
    larql models

    larql models --json | jq '.families[].name'
    """
    output = output_of(ctx)
    families = reports()
    if output.json:
        render.document(
            output,
            {
                "families": [
                    {
                        "name": family.name,
                        "model_types": family.model_types,
                        "architectures": family.architectures,
                        "compiles": family.compiles,
                        "executes": family.executes,
                        "operations": family.operations,
                        "oracles": family.oracles,
                    }
                    for family in families
                ]
            },
        )
        return
    render.table(
        ("family", "model_type", "GGUF", "compiles", "executes", "oracles", *BACKENDS),
        [
            (
                family.name,
                ", ".join(family.model_types),
                ", ".join(family.architectures),
                ", ".join(family.compiles),
                ", ".join(family.executes) or "nothing",
                len(family.oracles),
                *(_shown(family.error(backend)) for backend in BACKENDS),
            )
            for family in families
        ],
        right=("oracles", *BACKENDS),
    )


def _shown(error: float | None) -> str | None:
    return None if error is None else f"{error:.0e}"
