"""The flags that every command takes, and what they say about how a run answers.

Commands do not declare them: :mod:`larql.cli.app` adds them to each command and group, so they are
accepted before and after the command's name. A command's body asks :func:`output_of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

__all__ = ["DebugFlag", "HelpFlag", "JsonFlag", "Output", "QuietFlag", "output_of"]


@dataclass
class Output:
    """How one run of the program answers; :func:`larql.cli.main.main` makes one for each run.

    It is filled while the command line is parsed and read by the command's body and by the error
    report, which must agree on it. It is passed on explicitly and never kept in a module.

    Attributes
    ----------
    json : bool
        Standard output carries one strict JSON document and nothing else.
    quiet : bool
        No progress, notices or warnings; errors are still reported.
    debug : bool
        An error is followed by its traceback.
    answered : bool
        The JSON document has been written, so an error must not write another.
    """

    json: bool = False
    quiet: bool = False
    debug: bool = False
    answered: bool = False


def output_of(ctx: typer.Context) -> Output:
    """Give the :class:`Output` of this run.

    Parameters
    ----------
    ctx : typer.Context
        The context that Typer passes to the command.

    Returns
    -------
    Output
    """
    return ctx.ensure_object(Output)


def _answer_json(ctx: typer.Context, value: bool) -> bool:
    if value:
        output_of(ctx).json = True
    return value


def _answer_quietly(ctx: typer.Context, value: bool) -> bool:
    if value:
        output_of(ctx).quiet = True
    return value


def _show_tracebacks(ctx: typer.Context, value: bool) -> bool:
    if value:
        output_of(ctx).debug = True
    return value


def _show_help(ctx: typer.Context, value: bool) -> bool:
    if value and not ctx.resilient_parsing:
        typer.echo(ctx.get_help())
        raise typer.Exit
    return value


JsonFlag = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document on standard output, errors included.",
        callback=_answer_json,
        expose_value=False,
        is_eager=True,
        show_default=False,
    ),
]
QuietFlag = Annotated[
    bool,
    typer.Option(
        "--quiet",
        help="No progress bars, notices or warnings; errors are still reported.",
        callback=_answer_quietly,
        expose_value=False,
        is_eager=True,
        show_default=False,
    ),
]
DebugFlag = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Follow an error with its traceback.",
        callback=_show_tracebacks,
        expose_value=False,
        is_eager=True,
        show_default=False,
    ),
]


HelpFlag = Annotated[
    bool,
    typer.Option(
        "--help",
        "-h",
        help="Show this text and exit.",
        callback=_show_help,
        expose_value=False,
        is_eager=True,
        show_default=False,
    ),
]
