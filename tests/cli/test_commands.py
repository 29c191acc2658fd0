"""What must hold for every command in the table."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import typer
from typer.models import ArgumentInfo, OptionInfo

from larql.cli.app import COMMANDS, Command, Group, help_sections

DOCS = Path(__file__).parents[2] / "docs"

# What only a command that computes, or draws on a terminal, may load.
HEAVY = {
    "huggingface_hub",
    "jinja2",
    "llvmlite",
    "matplotlib",
    "numba",
    "numpy",
    "plotly",
    "pydantic",
    "rich",
    "safetensors",
    "tokenizers",
}
REPORT_IMPORTS = """
import json, sys
from larql.cli.main import main
status = main(sys.argv[1:])
print(json.dumps({"status": status, "modules": sorted(sys.modules)}), file=sys.stderr)
"""


def leaves(
    table: Mapping[str, Command | Group], prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Command]]:
    for name, entry in table.items():
        if isinstance(entry, Group):
            yield from leaves(entry.commands, (*prefix, name))
        else:
            yield (*prefix, name), entry


EACH = pytest.mark.parametrize(
    ("words", "entry"), [pytest.param(w, e, id=" ".join(w)) for w, e in leaves(COMMANDS)]
)


def function_of(entry: Command) -> Callable[..., object]:
    function: Callable[..., object] = getattr(importlib.import_module(entry.module), entry.function)
    return function


def imported_by(*arguments: str) -> tuple[int, set[str], str]:
    process = subprocess.run(
        [sys.executable, "-c", REPORT_IMPORTS, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(process.stderr.splitlines()[-1])
    return report["status"], HEAVY & set(report["modules"]), process.stdout


@EACH
def test_help_answers_and_loads_nothing_heavy(words: tuple[str, ...], entry: Command) -> None:
    status, heavy, text = imported_by(*words, "--help")
    assert status == 0
    assert heavy == set()
    assert text.startswith(f"Usage: larql {' '.join(words)} ")
    assert entry.summary.split()[0] in text
    _, examples = help_sections(function_of(entry))
    shown = {line.strip() for line in text.splitlines()}
    assert {line.strip() for line in examples.splitlines()} <= shown, "an example is folded"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["--version"],
        ["--version", "--json"],
        ["vindex3", "--help"],
        ["cache", "ls"],
        ["nonsense"],
        ["show", "absent"],
        ["show", "absent", "--json"],
        ["verify", "absent"],
        ["exec", "absent", "--tokens", "1"],
        ["run", "absent", "Hello"],
        ["report", "absent"],
    ],
    ids=" ".join,
)
def test_short_answers_load_nothing_heavy(arguments: list[str]) -> None:
    assert imported_by(*arguments)[1] == set()


def test_the_list_of_commands_imports_none_of_them() -> None:
    process = subprocess.run(
        [sys.executable, "-c", REPORT_IMPORTS, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(json.loads(process.stderr)["modules"])
    assert loaded & {entry.module for _, entry in leaves(COMMANDS)} == set()


@EACH
def test_the_summary_is_the_docstrings_first_line(words: tuple[str, ...], entry: Command) -> None:
    text, _ = help_sections(function_of(entry))
    assert text.splitlines()[0] == entry.summary
    assert len(entry.summary) <= 60
    assert entry.summary.endswith(".")


@EACH
def test_every_argument_and_option_says_what_it_does(
    words: tuple[str, ...], entry: Command
) -> None:
    hints = typing.get_type_hints(function_of(entry), include_extras=True)
    parameters = inspect.signature(function_of(entry)).parameters
    assert next(iter(parameters)) == "ctx"
    assert hints["ctx"] is typer.Context
    for name in parameters.keys() - {"ctx"}:
        info = typing.get_args(hints[name])[1]
        assert isinstance(info, (ArgumentInfo, OptionInfo)), name
        assert info.help, name
        assert info.help[0].isupper() or not info.help[0].isalpha() or " " in info.help, name
        assert not info.hidden, name


@EACH
def test_every_command_is_written_about(words: tuple[str, ...], entry: Command) -> None:
    written_by_hand = [DOCS.parent / "README.md", *set(DOCS.rglob("*.md")) - {DOCS / "cli.md"}]
    name = f"larql {' '.join(words)}"
    named_in = [page for page in written_by_hand if name in page.read_text(encoding="utf-8")]
    assert named_in, f"no page beside the generated reference mentions {name}"


@EACH
def test_examples_name_the_command(words: tuple[str, ...], entry: Command) -> None:
    _, examples = help_sections(function_of(entry))
    assert "larql " in examples, "the docstring has no Examples section"


def test_the_only_aliases_are_the_two_we_promise() -> None:
    seen: dict[Command, list[str]] = {}
    for words, entry in leaves(COMMANDS):
        seen.setdefault(entry, []).append(" ".join(words))
    aliases = [names for names in seen.values() if len(names) > 1]
    assert aliases == [["exec", "vindex3 exec"], ["observe", "vindex3 observe"]]
