"""What a draft costs at each depth: reads, bytes, seconds and peak memory, and how affine they are.

Each depth runs in a process of its own, after one run that compiles and caches the kernels. The
fit is by least squares over the depths; reads are exact counts, so their residual must be 0.

    python scripts/bench/draft_depth.py model.vindex3 --tokens 504,3575,282,4649,314
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Cost:
    """One depth; seconds are medians over repeats, memory is the largest resident size."""

    depth: int
    reads: int
    nbytes: int
    prepare: float
    step: float
    peak_mb: float


def measure(model: str, tokens: str, depth: int, threads: int) -> tuple[dict[str, object], float]:
    """Run one draft; return its provenance and peak resident megabytes."""
    with tempfile.TemporaryFile() as answer:
        command = [sys.executable, "-m", "larql", "exec", model, "--tokens", tokens]
        command += ["--draft-depth", str(depth), "--threads", str(threads), "--json"]
        process = subprocess.Popen(command, stdout=answer)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"depth {depth}: exec ended with status {status}")
        answer.seek(0)
        document = json.load(answer)
    return document["provenance"], usage.ru_maxrss / 1000


def main() -> None:
    """Measure and print the table and the fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    show = [sys.executable, "-m", "larql", "show", arguments.model, "--json"]
    shown = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)
    layers = shown["num_layers"]
    depths = sorted({d for d in (1, 2, 4, 8, 16, 32, 64) if d < layers} | {layers})
    measure(arguments.model, arguments.tokens, layers, arguments.threads)
    costs = []
    for depth in depths:
        runs = [
            measure(arguments.model, arguments.tokens, depth, arguments.threads)
            for _ in range(arguments.repeats)
        ]
        first = runs[0][0]
        costs.append(
            Cost(
                depth,
                int(str(first["operand_reads"])),
                int(str(first["operand_bytes"])),
                statistics.median(float(str(p["prepare_seconds"])) for p, _ in runs),
                statistics.median(float(str(p["step_seconds"])) for p, _ in runs),
                max(peak for _, peak in runs),
            )
        )
    report(Path(arguments.model).name, costs)


def report(name: str, costs: list[Cost]) -> None:
    """Print a Markdown table and the affine fits."""
    print(f"{name}\n\n| depth | reads | bytes | prepare s | step s | peak MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for c in costs:
        print(
            f"| {c.depth} | {c.reads} | {c.nbytes:,} | {c.prepare:.4f} | {c.step:.4f} "
            f"| {c.peak_mb:.0f} |"
        )
    print()
    depth = np.array([c.depth for c in costs], float)
    for label, values in (
        ("reads", [c.reads for c in costs]),
        ("bytes", [c.nbytes for c in costs]),
        ("step seconds", [c.step for c in costs]),
        ("peak MB", [c.peak_mb for c in costs]),
    ):
        slope, base = np.polyfit(depth, np.array(values, float), 1)
        residual = np.abs(base + slope * depth - values).max()
        print(f"{label}: {base:.4g} + {slope:.4g} per layer, largest residual {residual:.3g}")


if __name__ == "__main__":
    main()
