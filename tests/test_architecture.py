"""The rules of the house that a machine can check: who imports whom, where names may occur."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from larql.format.source.families import FAMILIES

PACKAGE = Path(__file__).parents[1] / "larql"
MODULES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 500

# What each part may import of larql, beside itself and the error tree.
MAY_IMPORT = {
    "cli": {"report", "runtime", "format", "kernels", "provenance"},
    "report": {"runtime", "format"},
    "provenance": {"runtime", "format", "kernels"},
    "runtime": {"format", "kernels", "provenance"},
    "format": set(),
    "kernels": set(),
}
KERNELS_MAY_IMPORT = {"numpy", "numba", "llvmlite"}
# Tokenizer files call their kinds by the models that had them first, whatever the family.
TOKENIZER_MODULES = ("format/tokenizer", "runtime/text.py")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Give all nodes of a module, which several rules look at, parsed once."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Give the dotted names that a module imports, wherever in it, absolute."""
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts
    found: list[str] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: -node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found += (f"{module}.{alias.name}" for alias in node.names)
    return tuple(found)


def part_of(path: Path) -> str:
    """Give the part of larql that a module belongs to: a package, or itself."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


EACH = pytest.mark.parametrize("path", MODULES, ids=label)


@EACH
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    if part in ("__init__", "__main__", "errors"):
        return
    allowed = MAY_IMPORT[part] | {part, "errors", "__version__"}
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("larql.")}
    assert ours <= allowed, f"{part} imports {sorted(ours - allowed)}"


def test_kernels_know_nothing_of_models() -> None:
    allowed = KERNELS_MAY_IMPORT | set(sys.stdlib_module_names)
    for path in MODULES:
        if part_of(path) != "kernels":
            continue
        for name in imports(path):
            assert name.split(".")[0] in allowed or name.startswith("larql.kernels"), (
                f"{label(path)} imports {name}"
            )


@EACH
def test_only_the_renderer_uses_rich(path: Path) -> None:
    if label(path) != "cli/render.py":
        assert not any(name.split(".")[0] == "rich" for name in imports(path))


@EACH
def test_only_reports_draw(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert not roots & {"plotly", "matplotlib"} or part_of(path) == "report"


@EACH
def test_only_the_command_line_uses_typer(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert "click" not in roots, "Typer decides which click it brings"
    assert "typer" not in roots or part_of(path) == "cli"
    assert not any(name.startswith("typer._") for name in imports(path))


@EACH
def test_families_are_named_in_the_source_compiler_only(path: Path) -> None:
    if label(path).startswith(("format/source/", *TOKENIZER_MODULES)):
        return
    text = path.read_text(encoding="utf-8").lower()
    # llama.cpp is a program, and gpt-oss-expert-v1 what experts compute.
    found = re.search(rf"\b({'|'.join(family_names())})\b(?!\.cpp|-expert-v1)", text)
    assert found is None, f"{found[0]} is named"


@cache
def family_names() -> list[str]:
    return sorted({name for f in FAMILIES for name in (f.name, *f.model_types, *f.architectures)})


def test_there_are_families_to_look_for() -> None:
    assert {"llama", "gemma3"} <= set(family_names())


@EACH
def test_files_hold_one_idea(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{lines} lines; aim at 300"


@EACH
def test_kinds_are_explicit(path: Path) -> None:
    called = {
        node.func.id
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "hasattr" not in called


def test_the_rules_see_what_they_forbid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of imports finds those in functions, under conditions, and relative ones."""
    package = tmp_path / "larql"
    module = package / "format" / "bad.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "from ..runtime import plan\n"
        "from . import index\n"
        "from matplotlib.figure import Figure\n"
        "if False:\n    import rich.table\n"
        "def f():\n    from larql.kernels.setup import features\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", package)
    assert set(imports(module)) == {
        "larql.runtime.plan",
        "larql.format.index",
        "matplotlib.figure.Figure",
        "rich.table",
        "larql.kernels.setup.features",
    }
    with pytest.raises(AssertionError, match=r"format imports \['kernels', 'runtime'\]"):
        test_imports_go_one_way(module)
    with pytest.raises(AssertionError):
        test_only_the_renderer_uses_rich(module)
    with pytest.raises(AssertionError):
        test_only_reports_draw(module)
