"""Opens a checkpoint in a process of its own and reports what that cost."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """
import json, re, sys, time
from pathlib import Path
from larql.errors import LarqlError
from larql.format.source.checkpoint import open_checkpoint
start = time.process_time()
kind, message = "opened", ""
try:
    open_checkpoint(Path(sys.argv[1]))
except LarqlError as error:
    kind, message = type(error).__name__, str(error)
seconds = time.process_time() - start
peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
heavy = sorted({"numpy", "numba"} & set(sys.modules))
print(json.dumps([kind, message, seconds, peak / 1024, heavy]))
"""


@dataclass(frozen=True)
class Measured:
    """Outcome of opening: error class or ``"opened"``, CPU seconds, peak resident megabytes."""

    kind: str
    message: str
    seconds: float
    peak_mb: float
    heavy_modules: list[str]


def open_measured(path: Path) -> Measured:
    """Run ``open_checkpoint(path)`` in a new process; CPU time excludes imports."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return Measured(*json.loads(done.stdout))
