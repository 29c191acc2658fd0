"""Options about routed experts, which mean the same on every command that executes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.options import half_open_range
from larql.cli.output import Output

if TYPE_CHECKING:
    from larql.runtime.expert_access import ExpertAccess
    from larql.runtime.run import Run

__all__ = [
    "Experts",
    "RefusalPolicy",
    "Refusals",
    "Route",
    "RouteKind",
    "Shard",
    "expert_access",
    "tell_left_out",
]


class RouteKind(StrEnum):
    """How the experts of this process are asked."""

    BOUND = "bound"
    IN_PROCESS = "in-process"


class RefusalPolicy(StrEnum):
    """What becomes of a position whose experts are refused."""

    STRICT = "strict"
    BEST_EFFORT = "best-effort"


Shard = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="A:B",
        help=(
            "Bind only these of each layer's experts; where another one is chosen, the step is "
            "refused."
        ),
        show_default=False,
    ),
]
Experts = Annotated[
    str | None,
    typer.Option(
        "--experts",
        metavar="DIR,DIR",
        help=(
            "Containers on this machine that hold more of the model's experts, or what else this "
            "one declares to be elsewhere."
        ),
        show_default=False,
    ),
]
Route = Annotated[
    RouteKind,
    typer.Option(
        "--route",
        metavar="KIND",
        help=(
            "bound, or in-process: ask the experts across the boundary that other routes have; "
            "the answer does not depend on it."
        ),
    ),
]
Refusals = Annotated[
    RefusalPolicy,
    typer.Option(
        "--refusals",
        metavar="POLICY",
        help=(
            "strict: a refused expert refuses the step. best-effort: its position goes on without "
            "its routed part, and the result says so."
        ),
    ),
]


def expert_access(shard: str | None, experts: str | None, route: RouteKind) -> ExpertAccess:
    """Return how a run reaches its experts.

    Raises
    ------
    UsageError
        If the shard is no range.
    ContainerError
        If a shard container cannot be opened.
    """
    from larql.format.container import Container
    from larql.runtime.expert_access import ExpertAccess

    return ExpertAccess(
        None if shard is None else half_open_range(shard, "--shard"),
        tuple(Container(Path(path)) for path in experts.split(",")) if experts else (),
        route is RouteKind.IN_PROCESS,
    )


def tell_left_out(run: Run, output: Output) -> None:
    """Warn of positions that went on without their experts."""
    found = run.left_out
    if found:
        positions = len({note.position for note in found})
        render.warning(
            output,
            f"{positions} positions went on without routed experts, {len(found)} times in all; "
            f"first: {found[0].refusal}",
        )
