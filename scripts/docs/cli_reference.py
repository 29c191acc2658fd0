"""Write docs/cli.md from the commands themselves.

    python scripts/docs/cli_reference.py            rewrite the page
    python scripts/docs/cli_reference.py --check    exit 1 if it is not what would be written

Names, options, defaults and texts are read from the functions' signatures and docstrings, the same
ones that ``--help`` shows, and not from rendered help, which differs between versions of Typer.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import UnionType

import typer
from typer.models import ArgumentInfo, OptionInfo

from larql.cli import output
from larql.cli.app import COMMANDS, PROGRAM, Command, Group, help_sections

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BAR = r"\|"  # a vertical bar inside a table's cell
SHARED = {
    "--json": output.JsonFlag,
    "--quiet": output.QuietFlag,
    "--debug": output.DebugFlag,
    "--help": output.HelpFlag,
}
TYPE_NAMES = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Parameter:
    """One argument or option as the page shows it."""

    written: str
    is_argument: bool
    default: str
    help: str


def main() -> int:
    text = reference()
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is out of date: run python scripts/docs/cli_reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def reference() -> str:
    """Give the whole page."""
    blocks = [
        "<!-- Written by scripts/docs/cli_reference.py from the commands; do not edit. -->",
        "# Command-line reference",
        "| Command | |\n| --- | --- |\n"
        + "\n".join(
            f"| [`{PROGRAM} {name}`](#{PROGRAM}-{name.replace(' ', '-')}) | {entry.summary} |"
            for name, entry in _leaves(COMMANDS)
        ),
        "Standard output carries the answer and nothing else; progress, notices and errors go to "
        "standard error. Exit status 0: done, and what was checked holds. 1: a check found "
        "something. 2: refused, with one line that says what, where, and what to do. 130: "
        "interrupted.",
        "## Options of every command",
        f"Accepted before and after the name of the command. `{PROGRAM} --version` prints the "
        "version.",
        _table([_parameter(name, hint, False) for name, hint in SHARED.items()]),
    ]
    seen: dict[Command, str] = {}
    for name, entry in _leaves(COMMANDS):
        blocks.append(f"## {PROGRAM} {name}")
        if entry in seen:
            blocks.append(f"The same command as `{PROGRAM} {seen[entry]}`.")
        else:
            seen[entry] = name
            blocks += _command(name, function_of(entry))
    return "\n\n".join(blocks) + "\n"


def function_of(entry: Command) -> Callable[..., object]:
    """Import the function behind an entry of the table."""
    function: Callable[..., object] = getattr(importlib.import_module(entry.module), entry.function)
    return function


def parameters_of(function: Callable[..., object]) -> list[Parameter]:
    """Read a command's arguments and options from its signature."""
    hints = typing.get_type_hints(function, include_extras=True)
    return [
        _parameter(name, hints[name], parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if hints[name] is not typer.Context
    ]


def _leaves(
    table: Mapping[str, Command | Group], prefix: str = ""
) -> Iterator[tuple[str, Command]]:
    for name, entry in table.items():
        if isinstance(entry, Group):
            yield from _leaves(entry.commands, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", entry


def _command(name: str, function: Callable[..., object]) -> Iterator[str]:
    text, examples = help_sections(function)
    parameters = parameters_of(function)
    arguments = [p for p in parameters if p.is_argument]
    options = [p for p in parameters if not p.is_argument]
    usage = [PROGRAM, name, "[OPTIONS]", *(p.written.strip("`") for p in arguments)]
    yield f"```\n{' '.join(usage)}\n```"
    yield from (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    if parameters:
        yield _table([*arguments, *options])
    if examples:
        yield f"```\n{examples}\n```"


def _table(parameters: list[Parameter]) -> str:
    rows = ["| | Default | |", "| --- | --- | --- |"]
    for parameter in parameters:
        cells = [parameter.written, parameter.default, " ".join(parameter.help.split())]
        rows.append(f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |")
    return "\n".join(rows)


def _parameter(name: str, hint: object, default: object) -> Parameter:
    kind, info = typing.get_args(hint)[:2]
    help_text = info.help or ""
    if isinstance(info, ArgumentInfo):
        metavar = (info.metavar or name.upper()).strip("[]")
        required = default is inspect.Parameter.empty
        written = f"`{metavar}`" if required else f"`[{metavar}]`"
        return Parameter(written, True, "" if required else _default(default), help_text)
    if not isinstance(info, OptionInfo):
        raise TypeError(f"{name} is annotated with neither an argument nor an option")
    scalar = _without_none(kind)
    dashed = name.replace("_", "-")
    # In an annotation, the first declaration is passed in the place of the default.
    declared = [d for d in (info.default, *(info.param_decls or ())) if isinstance(d, str)]
    if not declared:
        declared = [f"--{dashed}/--no-{dashed}" if scalar is bool else f"--{dashed}"]
    declared.sort(key=lambda option: not option.startswith("--"))
    written = ", ".join(f"`{option}`" for option in declared)
    if scalar is not bool:
        written = f"{written} `{info.metavar or _type_name(scalar)}`"
    shown = info.show_default if isinstance(info.show_default, str) else _default(default)
    return Parameter(written, False, shown, help_text + _range(info))


def _range(info: OptionInfo) -> str:
    low, high = info.min, info.max
    if low is None and high is None:
        return ""
    return f" ({'' if low is None else f'at least {low:g}'}" + (
        ")" if high is None else f"{'' if low is None else ', '}at most {high:g})"
    )


def _default(value: object) -> str:
    if value is None or value is False:
        return ""
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, (list, tuple)):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{value}`"


def _without_none(kind: object) -> object:
    if typing.get_origin(kind) in (typing.Union, UnionType):
        kinds = [argument for argument in typing.get_args(kind) if argument is not type(None)]
        return kinds[0] if len(kinds) == 1 else kind
    return kind


def _type_name(kind: object) -> str:
    if typing.get_origin(kind) is list:
        return _type_name(typing.get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    for known, name in TYPE_NAMES.items():
        if kind is known:
            return name
    raise TypeError(f"no name for the type {kind!r}; give the option a metavar")


if __name__ == "__main__":
    sys.exit(main())
