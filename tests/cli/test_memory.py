"""What commands need in memory on the two real models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# The peak since the program began; what wait4 tells would count the pages of the test's process.
MEASURED = """
import re, sys
from pathlib import Path
from larql.cli.main import main
status = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(status)
"""


def peak_mb(*arguments: object) -> float:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.splitlines()[-1]) * 1024 / 1e6


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("model", "most"), [("s_gguf", 300), ("g_gguf", 450)])
def test_peak_memory(model: str, most: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Extracting takes a piece of a tensor, executing the mapped weights and the compiler."""
    source = request.getfixturevalue(model)
    container = tmp_path / "m.vindex3"
    assert peak_mb("extract", source, "-o", container) < most
    size = sum(path.stat().st_size for path in container.rglob("*") if path.is_file()) / 1e6
    for extra in ((), ("-n", "32"), ("--logit-dump", tmp_path / "a.npy")):
        arguments = ("exec", container, "--tokens", "2,3,4,5,6", *extra)
        peak_mb(*arguments)  # compiles what is not compiled yet
        assert peak_mb(*arguments) <= 1.15 * size + 150, extra


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("model", ["s_gguf", "g_gguf"])
def test_a_run_over_text_stays_within_what_a_decode_may_take(
    model: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Reading a tokenizer's file leaves holes in the heap; they are given back."""
    source = request.getfixturevalue(model)
    container = tmp_path / "m.vindex3"
    peak_mb("extract", source, "-o", container)
    size = sum(path.stat().st_size for path in container.rglob("*") if path.is_file())
    command = ("exec", container, "--prompt", "The capital of France is", "-n", "8", "--json")
    for _ in range(2):  # the first compiles what is not compiled yet
        done = subprocess.run(
            [sys.executable, "-m", "larql", *map(str, command)],
            capture_output=True,
            text=True,
            check=True,
        )
    found = json.loads(done.stdout)["provenance"]
    assert found["resident_bytes"] <= 1.15 * size + 150e6
