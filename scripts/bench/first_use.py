"""Seconds from the start of ``larql exec`` to its end: a second run, and one that must compile.

The second run finds compiled kernels in the cache and the model in memory. The other has a fresh
kernel cache each time; give ``--fresh 0`` to leave it out.

    python scripts/bench/first_use.py model.vindex3
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path


def seconds_of(command: list[str], environment: Mapping[str, str]) -> float:
    """Run a command; return the seconds that its process took."""
    began = time.perf_counter()
    process = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(process.stderr.strip())
    return took


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a container")
    parser.add_argument("--tokens", default="1,2,3,4,5", help="token ids that exec is given")
    parser.add_argument("--generate", type=int, default=0)
    parser.add_argument("--activations", default="f32")
    parser.add_argument("--kv", default="f32")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--fresh", type=int, default=3, help="runs with a fresh kernel cache")
    given = parser.parse_args()
    # A source would be extracted into the fresh cache, which is another thing to measure.
    if not (given.model / "index.json").is_file():
        parser.error(f"{given.model} is not a container; extract it first")
    command = [sys.executable, "-m", "larql", "exec", str(given.model), "--tokens", given.tokens]
    command += ["--generate", str(given.generate), "--activations", given.activations]
    command += ["--kv", given.kv]
    if given.threads is not None:
        command += ["--threads", str(given.threads)]
    seconds_of(command, {})
    rows = {"second run": [seconds_of(command, {}) for _ in range(given.repeats)]}
    fresh = []
    for _ in range(given.fresh):
        with tempfile.TemporaryDirectory() as directory:
            fresh.append(seconds_of(command, {"LARQL_CACHE_DIR": directory}))
    if fresh:
        rows["fresh kernel cache"] = fresh
    print("| process, start to exit | median s | min | max | runs |")
    print("| --- | --- | --- | --- | --- |")
    for name, seconds in rows.items():
        print(
            f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f} "
            f"| {max(seconds):.2f} | {len(seconds)} |"
        )


if __name__ == "__main__":
    main()
