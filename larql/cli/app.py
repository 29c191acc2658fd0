"""The table of commands, and the Typer groups that import a command only when it runs.

Names and one-line summaries are known without importing anything, so help, an unknown command and
shell pipelines that fail early answer at once. A command is a plain function in a module of
its own; its docstring is its help. The first line must equal the summary in the table, the
paragraphs up to ``Parameters`` are shown by ``--help``, and so is the ``Examples`` section.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from larql import __version__
from larql.cli.conversion import spare_conversion
from larql.cli.output import DebugFlag, HelpFlag, JsonFlag, QuietFlag, output_of

__all__ = ["COMMANDS", "PROGRAM", "Command", "Group", "LazyGroup", "build", "help_sections", "root"]

PROGRAM = "larql"


@dataclass(frozen=True)
class Command:
    """One command: a function, named but not imported.

    Attributes
    ----------
    summary : str
        One line, shown in lists of commands.
    module : str
        The module that holds the function.
    function : str
        Its name in that module.
    """

    summary: str
    module: str
    function: str = "command"


@dataclass(frozen=True)
class Group:
    """A command that only holds other commands."""

    summary: str
    commands: Mapping[str, Command | Group]


_EXEC = Command("Run a model over tokens or a prompt, and report logits.", "larql.cli.exec")
_OBSERVE = Command("Run tokens and see what happens inside: norms, the lens.", "larql.cli.observe")

COMMANDS: Mapping[str, Command | Group] = MappingProxyType(
    {
        "demo": Command("Fetch a small model and show what larql does with it.", "larql.cli.demo"),
        "run": Command("Continue a prompt, or chat.", "larql.cli.run"),
        "pull": Command("Fetch a model from a hub or a package index.", "larql.cli.pull"),
        "models": Command("List the model families that this build runs.", "larql.cli.model_list"),
        "extract": Command("Compile a checkpoint into a container.", "larql.cli.extract"),
        "show": Command("Describe a container from its metadata.", "larql.cli.show"),
        "verify": Command(
            "Check a container's bytes, and whether it will run.", "larql.cli.verify"
        ),
        "represent": Command(
            "Write a container that holds further representations.", "larql.cli.represent"
        ),
        "slice": Command("Cut a container down to a part of itself.", "larql.cli.slice"),
        "reconstruct": Command("Write a container's checkpoint back.", "larql.cli.reconstruct"),
        "publish": Command("Upload a container or a slice to a hub.", "larql.cli.publish"),
        "tokenize": Command("Convert text to token ids, and back.", "larql.cli.tokenize"),
        "perplexity": Command("Measure a model on a text file.", "larql.cli.perplexity"),
        "bench": Command(
            "Measure speed and memory, alone or beside other engines.", "larql.cli.bench"
        ),
        "exec": _EXEC,
        "observe": _OBSERVE,
        "walk": Command("Search a model's features, layer by layer.", "larql.cli.walk"),
        "describe": Command("Tell which features a token or text lights up.", "larql.cli.describe"),
        "report": Command("Draw a run record as a page, or as a picture.", "larql.cli.report"),
        "vindex3": Group(
            "Commands on VINDEX3 containers.",
            MappingProxyType(
                {
                    "exec": _EXEC,
                    "observe": _OBSERVE,
                    "replay": Command(
                        "Verify a run record and print it again.", "larql.cli.replay"
                    ),
                    "score": Command(
                        "Score one dump of logits against another.", "larql.cli.score"
                    ),
                    "ladder": Command(
                        "Score every depth of a model as a draft of the whole.",
                        "larql.cli.ladder",
                    ),
                    "accept": Command(
                        "Tell how often a drafter would be right on given texts.",
                        "larql.cli.accept",
                    ),
                    "draft-cost": Command(
                        "Measure a drafter's step beside the model's own.",
                        "larql.cli.draft_cost",
                    ),
                    "plan": Command(
                        "Judge a checkpoint without writing anything.", "larql.cli.plan"
                    ),
                    "ops": Command(
                        "List a container's plan, operation by operation.", "larql.cli.ops"
                    ),
                    "capability": Command(
                        "Say what a container can do, how well, and what it lacks.",
                        "larql.cli.capability",
                    ),
                    "parity": Command(
                        "Say whether two runs agree, and where they stop to.",
                        "larql.cli.parity",
                    ),
                    "necessity": Command(
                        "Show that a run needs its experts, and no others.",
                        "larql.cli.necessity",
                    ),
                }
            ),
        ),
        "cache": Group(
            "List and remove what larql keeps on this machine.",
            MappingProxyType(
                {
                    "ls": Command("List what the cache holds.", "larql.cli.cache", "ls"),
                    "rm": Command("Remove entries from the cache.", "larql.cli.cache", "rm"),
                }
            ),
        ),
        "doctor": Command("Report what this machine and installation offer.", "larql.cli.doctor"),
    }
)


class LazyGroup(TyperGroup):
    """A group that knows its commands' names and imports a command only to run it."""

    table: Mapping[str, Command | Group] = MappingProxyType({})

    def list_commands(self, ctx: Any) -> list[str]:
        """Give the names in the table's order."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Import and build one command; None when there is none of that name."""
        entry = self.table.get(cmd_name)
        return None if entry is None else build(cmd_name, entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that ``args[0]`` names; an unknown one is a usage error."""
        if args and args[0] not in self.table:
            close = difflib.get_close_matches(args[0], self.table, n=1)
            ctx.fail(
                f"No such command {args[0]!r}" + (f"; did you mean {close[0]!r}?" if close else ".")
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands from the table, so that help imports none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.table.items()])


def root() -> LazyGroup:
    """Build the ``larql`` command.

    Returns
    -------
    LazyGroup
    """
    group = _group(
        PROGRAM,
        "Compile a language model once into a container; run, inspect and measure it on a CPU.",
        COMMANDS,
        _program,
    )
    group.epilog = f"'{PROGRAM} COMMAND --help' tells more; '{PROGRAM} demo' is a place to start."
    return group


def build(name: str, entry: Command | Group) -> TyperCommand | TyperGroup:
    """Build one entry of a table, importing the module of a command.

    Parameters
    ----------
    name : str
        The name it is called by.
    entry : Command or Group
        What the table says of it.

    Returns
    -------
    TyperCommand or TyperGroup
    """
    if isinstance(entry, Group):
        return _group(name, entry.summary, entry.commands, _only_holds_commands)
    function = getattr(importlib.import_module(entry.module), entry.function)
    text, examples = help_sections(function)
    app = _typer()
    app.command(
        name, help=text, epilog=_epilog(examples), short_help=entry.summary, add_help_option=False
    )(function)
    command = typer.main.get_command(app)
    if not isinstance(command, TyperCommand):
        raise TypeError(f"{entry.module}:{entry.function} did not become one command")
    hints = get_type_hints(function, include_extras=True)
    for parameter in command.params:
        spare_conversion(parameter, hints.get(str(parameter.name)))
    command.params.extend(_shared_flags())
    return command


def _group(
    name: str,
    summary: str,
    table: Mapping[str, Command | Group],
    callback: Callable[..., None],
) -> LazyGroup:
    app = _typer()
    app.callback(cls=LazyGroup, help=summary, invoke_without_command=True, add_help_option=False)(
        callback
    )
    group = typer.main.get_command(app)
    if not isinstance(group, LazyGroup):
        raise TypeError(f"{name} did not become a group")
    group.table = table
    group.params.extend(_shared_flags())
    return group


def _typer() -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _shared_flags() -> list[Any]:
    """Make the parameters that every command and group takes."""

    def flags(
        json: JsonFlag = False,
        quiet: QuietFlag = False,
        debug: DebugFlag = False,
        help: HelpFlag = False,  # noqa: A002
    ) -> None:
        raise AssertionError("only its parameters are used")

    app = _typer()
    app.command(add_help_option=False)(flags)
    return list(typer.main.get_command(app).params)


def _program(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", show_default=False)
    ] = False,
) -> None:
    if version:
        from larql.cli import render

        output = output_of(ctx)
        if output.json:
            render.document(output, {"version": __version__})
        else:
            render.line(f"{PROGRAM} {__version__}")
        raise typer.Exit
    _only_holds_commands(ctx)


def _only_holds_commands(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is not None:
        return
    if output_of(ctx).json:
        ctx.fail("No command given; --json needs one to answer for.")
    typer.echo(ctx.get_help())


_SECTION = re.compile(r"^([A-Z][A-Za-z ]+)\n-{3,}$", re.MULTILINE)


def help_sections(function: Callable[..., object]) -> tuple[str, str]:
    """Take the user's part out of a command's numpy-style docstring.

    Parameters
    ----------
    function : callable
        A command.

    Returns
    -------
    tuple of str
        Summary and paragraphs before the first section; the Examples section, empty if none.
    """
    parts = _SECTION.split(inspect.getdoc(function) or "")
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return parts[0].strip(), sections.get("Examples", "").strip()


def _epilog(examples: str) -> str | None:
    if not examples:
        return None
    # \b asks the help formatter not to refill the lines of a paragraph.
    lines = [f"  {text}" if text else "\n\b" for text in examples.splitlines()]
    return "\n".join(["\b", "Examples:", *lines])
