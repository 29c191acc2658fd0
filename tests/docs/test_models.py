"""The page of models, and the guide to adding one, are what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from larql.format.source.held import reports

ROOT = Path(__file__).parents[2]


def test_the_page_of_models_is_what_would_be_written() -> None:
    process = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs" / "models.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def test_the_guide_shows_files_as_they_are() -> None:
    guide = (ROOT / "docs" / "adding-a-model.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```diff\n(.*?)```\n", guide, re.DOTALL)
    shown: dict[str, list[str]] = {}
    for line in block.splitlines():
        if line.startswith("--- "):
            lines = shown.setdefault(line.removeprefix("--- "), [])
        else:
            assert line.startswith("+")
            lines.append(line[1:])
    registry, family, recipe = shown
    assert set(shown[registry]) <= set((ROOT / registry).read_text().splitlines())
    for name in (family, recipe):
        assert "\n".join(shown[name]) + "\n" == (ROOT / name).read_text(encoding="utf-8")
    assert Path(family).stem in {report.name for report in reports()}
