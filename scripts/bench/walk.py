"""What a walk costs for each layer, and which pages it reads from an empty page cache.

    python scripts/bench/walk.py model.vindex3
    python scripts/bench/walk.py packed.vindex3 --profile packed

Warm: milliseconds for each layer of ranking features, and of telling the tokens that the ten best
of each layer write. Cold: all files are dropped from the page cache, the ranking is run in a
process of its own, and the pages that lie wholly in gates, ups and downs are counted. Hashes are
remembered before, as they are when a container has been used once.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from larql.format.container import Container
from larql.format.graph import DenseFfn
from larql.runtime.walk.answer import Walk, WalkOptions
from larql.runtime.walk.run import walk
from tests.builders.page_cache import drop, resident


def spread(values: list[float]) -> str:
    """Return median, least and most."""
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def warm(container: Container, given: argparse.Namespace) -> None:
    """Print what ranking and telling cost for each layer, with every file in memory."""

    def asked(writes: int, threads: int) -> Walk:
        options = WalkOptions(writes=writes, threads=threads, profile=given.profile)
        return walk(container, options, tokens=[given.token])

    print("| threads | ranking, ms a layer | telling tokens, ms a layer | runs |")
    print("| --- | --- | --- | --- |")
    for threads in given.threads:
        asked(3, threads)
        found = [asked(3, threads) for _ in range(given.repeats)]
        layers = len(found[0].banks)
        rank = [1e3 * one.seconds / layers for one in found]
        tell = [1e3 * one.token_seconds / layers for one in found]
        print(f"| {threads} | {spread(rank)} | {spread(tell)} | {given.repeats} |")
    print()


def cold(container: Container, given: argparse.Namespace) -> None:
    """Print which pages of feed-forward networks a walk brings in from an empty page cache."""
    paths = [container.path / name for name in container.index.files]
    command = [
        sys.executable,
        "-m",
        "larql",
        "walk",
        str(container.path),
        "--writes",
        "0",
        "--json",
    ]
    command += ["--tokens", str(given.token)]
    command += [] if given.profile is None else ["--profile", given.profile]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for path in paths:
        drop(path)
    before = sum(int(resident(path).sum()) for path in paths if path.stat().st_size)
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - began
    pages: Counter[str] = Counter()
    read: Counter[str] = Counter()
    selection = container.select(given.profile)
    for layer in container.component("target").layers:
        for block in layer.blocks:
            ffn = block.mixer
            if not isinstance(ffn, DenseFfn):
                continue
            for role, linear in (("gate", ffn.gate), ("up", ffn.up), ("down", ffn.down)):
                if linear is None:
                    continue
                value = selection.bound[linear.weight]
                segment = container.segment(value.segment)
                entry = segment.header.entries[value.tensor]
                begin = -(-(segment.header_bytes + entry.begin) // mmap.PAGESIZE)
                end = (segment.header_bytes + entry.end) // mmap.PAGESIZE
                pages[role] += end - begin
                read[role] += int(resident(segment.path)[begin:end].sum())
    print(f"{before} pages of the container in memory before; the command took {took:.2f} s\n")
    print("| pages wholly in | there are | read |")
    print("| --- | --- | --- |")
    for role, count in pages.items():
        print(f"| {role} | {count} | {read[role]} |")


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a container")
    parser.add_argument("--profile")
    parser.add_argument("--token", type=int, default=4649)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=21)
    given = parser.parse_args()
    warm(Container(given.model), given)
    # A container that maps its files keeps their pages: this one has opened none.
    cold(Container(given.model), given)


if __name__ == "__main__":
    main()
