"""What a record of statistics costs: bytes a position, and peak memory against positions.

Each length runs in a process of its own.

    python scripts/bench/record.py model.vindex3 --positions 1024,2048,4096
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--positions", default="1024,2048,4096")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    print("| positions | bytes | bytes a position | peak MB | of them context MB |")
    print("| --- | --- | --- | --- | --- |")
    for positions in map(int, arguments.positions.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            tokens, record = Path(directory) / "tokens", Path(directory) / "run.jsonl"
            tokens.write_text(",".join(str(5 + i % 997) for i in range(positions)))
            command = [sys.executable, "-m", "larql", "observe", arguments.model, "--quiet"]
            command += ["--tokens-file", str(tokens), "--lens-layers", "none"]
            command += ["--record", str(record), "--threads", str(arguments.threads)]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"{positions} positions: observe ended with status {status}")
            size = record.stat().st_size
        print(
            f"| {positions} | {size:,} | {size / positions:.0f} | {usage.ru_maxrss / 1000:.0f} | "
            f"{state_megabytes(arguments.model, positions):.0f} |"
        )


def state_megabytes(model: str, positions: int) -> float:
    """Return what the continuation state takes, which every run of so many positions has."""
    from larql.format.container import Container
    from larql.runtime.observe.observation import MOST_POSITIONS
    from larql.runtime.run import RunOptions, open_run

    run = open_run(Container(Path(model)), RunOptions(chunk=MOST_POSITIONS))
    return run.session(positions).state.nbytes / 1e6


if __name__ == "__main__":
    main()
