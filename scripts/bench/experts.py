"""What routed experts cost: population, layout, tracing, and the pages that a step touches.

    python scripts/bench/experts.py [part ...]
    parts: population layout trace pages memory recorded writing

Models are made here, of random weights. Times are of the processor, the least of interleaved
repeats, of one routed block and one position on one thread, so that they can be compared on a
machine that is busy. Blocks are walked by themselves, but in ``recorded``, where steps of a session
are compared with the same steps walked. ``writing`` writes a bank of 896 experts, of 1.1 GB.
"""

from __future__ import annotations

import argparse
import mmap
import os
import re
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from larql.format.container import Container
from larql.format.encoding import ENCODINGS
from larql.format.graph import Block, RoutedFfn
from larql.format.lyrw.codes import BankKind, Packing, Role
from larql.format.lyrw.tables import Bank, BankSegment, RegionSchema, Tables
from larql.format.lyrw.v2_writer import write_banks
from larql.runtime.operands import OperandStore, StoredBank
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.state import State
from larql.runtime.taps import BlockTaps, Keep, Taps
from tests.builders.expert_banks import Spec, weights, write

SMALL = Spec(8, 4, 512, 256, encoding="q8_0")
LARGE = Spec(32, 8, 1024, 1024, encoding="q4_k")
PAGE = mmap.PAGESIZE


class Step:
    """One routed block of a container, ready to run for one position."""

    def __init__(self, spec: Spec, at: Path) -> None:
        if not at.exists():
            write(weights(spec), at)
        self.spec = spec
        self.run: Run = open_run(Container(at), RunOptions(threads=1))
        self.block: Block = self.run.prepared.plan.layers[0].blocks[0]
        generator = np.random.default_rng(1)
        # The same position each time: chosen experts are as near in memory in every arm.
        self.inputs = generator.standard_normal((1, spec.hidden), np.float32)

    def __call__(self, taps: BlockTaps | None = None) -> None:
        """Run one position."""
        self.run.prepared.backend.write(self.block, self.inputs.copy(), (), 0, taps)

    def router(self) -> None:
        """Run what a router alone costs: its scores and its choice."""
        from larql.runtime.backends.production.routed_ffn import choose_experts

        mixer = self.block.mixer
        assert isinstance(mixer, RoutedFfn)
        arithmetic = self.run.prepared.backend._arithmetic  # type: ignore[attr-defined]
        arithmetic.memory.restart()
        choose_experts(mixer.router, self.inputs, arithmetic)


def least(arms: Mapping[str, Callable[[], None]], repeats: int, calls: int) -> dict[str, float]:
    """Return microseconds of a call, the least of interleaved repeats of some calls."""
    found = {name: float("inf") for name in arms}
    for arm in arms.values():
        for _ in range(calls):
            arm()
    for _ in range(repeats):
        for name, arm in arms.items():
            began = time.thread_time()
            for _ in range(calls):
                arm()
            found[name] = min(found[name], (time.thread_time() - began) / calls * 1e6)
    return found


def population(to: Path, repeats: int) -> None:
    """Compare a population with 64 times as many experts."""
    one, many = (
        Step(replace(SMALL, experts=count), to / f"population-{count}") for count in (8, 512)
    )
    took = least(
        {"8": one, "512": many, "router of 8": one.router, "router of 512": many.router},
        repeats, 50,
    )  # fmt: skip
    grew, router = took["512"] - took["8"], took["router of 512"] - took["router of 8"]
    print("population  block, us  router alone, us")
    for name in ("8", "512"):
        print(f"{name:>10} {took[name]:10.1f} {took[f'router of {name}']:17.1f}")
    print(f"the block grew by {grew:.1f} us, the router by {router:.1f} us")


def layout(to: Path, repeats: int) -> None:
    """Compare gate and up in one region with each in its own."""
    arms = {
        form: Step(replace(LARGE, form=form), to / f"layout-{form}") for form in ("apart", "halves")
    }
    took = least(arms, 3 * repeats, 4)
    apart, fused = took["apart"], took["halves"]
    print(f"apart {apart:.1f} us, fused {fused:.1f} us, {100 * (fused / apart - 1):+.1f} %")


def trace(to: Path, repeats: int) -> None:
    """Compare a block that nobody observes with one that keeps every checkpoint."""
    step = Step(LARGE, to / "layout-apart")
    none = BlockTaps(step.block, 1, Keep())
    sink = BlockTaps(step.block, 1, Keep(experts=True))
    arms = {"no taps": step, "no sink": lambda: step(none), "sink": lambda: step(sink)}
    took = least(arms, 3 * repeats, 4)
    base = took["no taps"]
    for name, value in took.items():
        print(f"{name:>8} {value:8.1f} us  {100 * (value / base - 1):+.2f} %")


def pages(to: Path, repeats: int) -> None:
    """Compare the pages of a bank's file that a step touches with those that it must."""
    spec = replace(LARGE, encoding="q8_0")
    step = Step(spec, to / "pages")
    (name,) = (n for n in step.run.container.index.segments if n.endswith(".lyrw"))
    file = step.run.container.bank_file(name)
    file.advise(mmap.MADV_RANDOM)
    descriptor = os.open(file.path, os.O_RDONLY)
    os.fsync(descriptor)
    # Kernels are compiled and the router's pages are there before anything is counted.
    step.router()
    taps = BlockTaps(step.block, 1, Keep(experts=True))
    store = OperandStore(step.run.container, step.run.container.select(None))
    file.advise(mmap.MADV_DONTNEED)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    before = resident(file.path)
    step(taps)
    touched = resident(file.path) - before
    os.close(descriptor)
    assert taps.experts is not None and taps.experts.chosen is not None
    chosen = [int(e) for e in taps.experts.chosen[0]]
    needed: set[int] = set()
    exact = 0
    for contract in step.run.prepared.plan.contracts():
        if contract.chosen is None:
            continue
        bank = store.fetch(contract.name, contract.shape)
        assert isinstance(bank, StoredBank)
        regions = step.run.container.entries(step.run.container.operands[contract.name])
        for expert in chosen:
            extent = file.extent(regions.place.bank, expert, regions.schema)
            first, last = extent.offset // PAGE, (extent.offset + extent.length - 1) // PAGE
            needed |= set(range(first, last + 1))
            exact += extent.length
    print(f"experts {sorted(chosen)} of {spec.experts}, {exact} bytes in regions")
    print(f"predicted {len(needed)} pages, measured {touched // PAGE}, of {file.size // PAGE}")
    if len(needed) != touched // PAGE:
        raise SystemExit("the prediction does not hold")


def resident(path: Path) -> int:
    """Return the bytes of a mapped file that this process has in memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def memory(to: Path, repeats: int) -> None:
    """Compare what a step allocates for a population and for 64 times as many."""
    for count in (8, 512):
        step = Step(replace(SMALL, experts=count), to / f"population-{count}")
        for _ in range(5):
            step()
        tracemalloc.start()
        for _ in range(20):
            step()
        tracemalloc.reset_peak()
        began, _ = tracemalloc.get_traced_memory()
        step()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"population {count:>4}: {peak - began} bytes at most")


def recorded(to: Path, repeats: int) -> None:
    """Compare a layer in a recorded step with the same layer walked, by population and traced."""
    layers, arms = 4, {}
    for count in (8, 512):
        at = to / f"recorded-{count}"
        if not at.exists():
            write(weights(replace(SMALL, experts=count, layers=layers)), at)
        for name, walked, keep in (
            ("recorded", False, None), ("walked", True, None), ("no sink", False, Keep()),
            ("sink", False, Keep(experts=True)),
        ):  # fmt: skip
            run = open_run(Container(at), RunOptions(threads=1))
            if walked:
                run.prepared.backend.repeats = lambda count: False  # type: ignore[method-assign]
            session = run.session(1, None if keep is None else Watch(keep))
            arms[f"{count} {name}"] = partial(one_step, session)
    took = {name: value / layers for name, value in least(arms, repeats, 50).items()}
    for name, value in took.items():
        base = took[name.split()[0] + (" no sink" if name.endswith("sink") else " walked")]
        print(f"{name:>12} {value:8.1f} us a layer  {100 * (value / base - 1):+.1f} %")


def one_step(session: Session) -> None:
    """Advance from nothing by one position."""
    session.truncate(0)
    session.advance([3])


class Watch:
    """An observer that asks for something and takes nothing."""

    most = 64

    def __init__(self, keep: Keep) -> None:
        self.keep = keep

    def changes(self, start: int, count: int) -> None:
        """Change nothing."""

    def begin_step(self) -> None:
        """Take no note."""

    def saw(self, start: int, tokens: object, taps: Taps, state: State) -> None:
        """Take nothing."""

    def end_step(self) -> None:
        """Take no note."""

    def abandon_step(self) -> None:
        """Take no note."""

    def restored(self, snapshot: object) -> None:
        """Take no note."""

    def truncated(self, length: int) -> None:
        """Take no note."""


def writing(to: Path, repeats: int) -> None:
    """Write a bank of 896 experts, and compare what that takes in memory with one tensor."""
    rows, columns, entries = 512, 768, 896
    line = ENCODINGS["q8_0"].row_bytes(columns)
    fused = RegionSchema(0, Role.GATE_UP_FUSED, 6, Packing.BLOCKS_INLINE, 2 * rows, columns)
    down = RegionSchema(1, Role.DOWN, 6, Packing.BLOCKS_INLINE, rows, columns)
    bank = Bank(0, BankKind.ROUTED, entries, columns, rows, rows, (fused, down))
    tables = Tables(0, (bank,), (BankSegment(0, 0, 0, entries),))

    def made(region: RegionSchema, entry: int) -> Iterator[memoryview]:
        yield memoryview(np.full((region.rows, line), entry % 251, np.uint8))

    path = to / "bank.lyrw"
    first = Tables(0, (bank,), (BankSegment(0, 0, 0, 1),), one_of_several=True)
    with write_banks(to / "first.lyrw", first) as writer:  # so that nothing is loaded later
        for region in (fused, down):
            writer.region(0, 0, region, made(region, 0))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again here
    before = status("VmRSS")
    with write_banks(path, tables) as writer:
        for entry in range(entries):
            for region in (fused, down):
                writer.region(0, entry, region, made(region, entry))
    grown = status("VmHWM") - before
    size, tensor = path.stat().st_size, 2 * rows * line
    path.unlink()
    print(f"{size} bytes written; the largest tensor has {tensor}")
    print(f"peak resident memory above where it began: {grown}, {grown / tensor:.2f} tensors")


def status(name: str) -> int:
    """Return a field of this process's status in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)[1]) * 1024  # type: ignore[index]


PARTS = {f.__name__: f for f in (population, layout, trace, pages, memory, recorded, writing)}


def main() -> None:
    """Measure the parts that were named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--directory", type=Path, help="where models are made and kept")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as scratch:
        to = given.directory or Path(scratch)
        for name in given.parts or PARTS:
            print(f"{name}:")
            PARTS[name](to, given.repeats)
            print()


if __name__ == "__main__":
    main()
