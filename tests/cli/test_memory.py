"""What commands need in memory on the two real models."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow(20)]
TOKENS = "2,3,4,5,6"
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


@dataclass(frozen=True)
class Extracted:
    """A model's container, what extracting it took at most and might take, and its size, in MB."""

    container: Path
    peak: float
    most: float
    size: float


@pytest.fixture(scope="module", params=[("s_gguf", 300), ("g_gguf", 450)], ids="sg")
def extracted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Extracted:
    model, most = request.param
    source, at = request.getfixturevalue(model), tmp_path_factory.mktemp("memory")
    container = at / "m.vindex3"
    peak = peak_mb("extract", source, "-o", container)
    # Compiles what is not compiled yet, for all runs of this file.
    peak_mb("exec", container, "--tokens", TOKENS, "-n", "2", "--logit-dump", at / "a.npy")
    size = sum(path.stat().st_size for path in container.rglob("*") if path.is_file()) / 1e6
    return Extracted(container, peak, most, size)


def test_peak_memory(extracted: Extracted, tmp_path: Path) -> None:
    """Extracting takes a piece of a tensor, executing the mapped weights and the compiler."""
    assert extracted.peak < extracted.most
    for extra in ((), ("-n", "32"), ("--logit-dump", tmp_path / "a.npy")):
        peak = peak_mb("exec", extracted.container, "--tokens", TOKENS, *extra)
        assert peak <= 1.15 * extracted.size + 150, extra


def test_a_run_over_text_stays_within_what_a_decode_may_take(extracted: Extracted) -> None:
    """Reading a tokenizer's file leaves holes in the heap; they are given back."""
    command = ("--prompt", "The capital of France is", "-n", "8", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "larql", "exec", str(extracted.container), *command],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)["provenance"]
    assert found["resident_bytes"] <= 1.15e6 * extracted.size + 150e6
