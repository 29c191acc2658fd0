from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "docs" / "cli_reference.py"


def test_the_reference_is_what_the_commands_say(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import cli_reference

    return cli_reference


def test_names_types_defaults_and_ranges_are_read_from_the_signature(reference) -> None:  # type: ignore[no-untyped-def]
    from larql.cli import options

    def command(
        model: options.Model,
        threads: options.Threads = None,
        backend: options.BackendOption = options.Backend.PRODUCTION,
        generate: options.Generate = 0,
        force: options.Force = False,
    ) -> None:
        """Try it."""

    command.__annotations__ = {
        "model": options.Model,
        "threads": options.Threads,
        "backend": options.BackendOption,
        "generate": options.Generate,
        "force": options.Force,
    }
    shown = [(p.written, p.is_argument, p.default) for p in reference.parameters_of(command)]
    assert shown == [
        ("`MODEL`", True, ""),
        ("`--threads` `N`", False, "one per core"),
        ("`--backend` `NAME`", False, "`production`"),
        ("`--generate`, `-n` `N`", False, "`0`"),
        ("`--force`", False, ""),
    ]
    assert reference.parameters_of(command)[1].help.endswith("(at least 1, at most 64)")
