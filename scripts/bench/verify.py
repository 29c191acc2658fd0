"""How fast a container's files are hashed, beside ``sha256sum`` on the same files.

Files of random bytes are written to a temporary directory, read once, and hashed in turns: by
``sha256sum``, by ``openssl`` where it is installed (not every ``sha256sum`` uses the processor's
own instructions), by larql on one thread, and on as many as asked for. With a container, ``larql
verify`` is timed on it too, as a process, beside ``sha256sum`` on all that its index lists.

    python scripts/bench/verify.py
    python scripts/bench/verify.py --container model.vindex3
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from larql.format.hash_files import hash_files
from larql.format.progress import SilentProgress


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def programs(directory: Path, names: list[str]) -> dict[str, Callable[[], object]]:
    """Return what hashes files one after the other by programs of the system."""

    def run(*command: str) -> Callable[[], object]:
        return lambda: subprocess.run(
            [*command, *names], cwd=directory, check=True, stdout=subprocess.DEVNULL
        )

    arms = {"sha256sum": run("sha256sum")}
    if shutil.which("openssl") is not None:
        arms["openssl dgst -sha256"] = run("openssl", "dgst", "-sha256")
    return arms


def rows(arms: Mapping[str, Callable[[], object]], nbytes: int, repeats: int) -> None:
    """Take turns and print a Markdown table; the first arm is what the others are held to."""
    for work in arms.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, work in arms.items():
            found[name].append(seconds(work))
    first = next(iter(found.values()))
    print(f"| {nbytes / 1e9:.2f} GB | GB/s (least, most) | times the first (least, most) |")
    print("| --- | --- | --- |")
    for name, taken in found.items():
        speeds = [nbytes / 1e9 / one for one in taken]
        ratios = [base / one for base, one in zip(first, taken, strict=True)]
        print(f"| {name} | {_spread(speeds)} | {_spread(ratios)} |")
    print()


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=600, help="of each file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--container", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        sizes = {f"{n}.bin": given.megabytes * 1_000_000 for n in range(given.files)}
        for name in sizes:
            with (directory / name).open("wb") as stream:
                for _ in range(given.megabytes):
                    stream.write(os.urandom(1_000_000))

        def larql(threads: int) -> Callable[[], object]:
            return lambda: hash_files(directory, sizes, threads, SilentProgress())

        arms = programs(directory, list(sizes))
        arms |= {f"larql, {count} threads": larql(count) for count in (1, given.threads)}
        rows(arms, sum(sizes.values()), given.repeats)
    if given.container is None:
        return
    listed = json.loads((given.container / "index.json").read_bytes())["files"]

    def verify(threads: int) -> Callable[[], object]:
        command = [sys.executable, "-m", "larql", "verify", str(given.container)]
        command += ["--threads", str(threads)]
        return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    arms = programs(given.container, list(listed))
    arms |= {f"larql verify --threads {count}": verify(count) for count in (1, given.threads)}
    rows(arms, sum(entry["size"] for entry in listed.values()), given.repeats)


if __name__ == "__main__":
    main()
