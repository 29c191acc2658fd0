"""How much slower decoding gets when another process spins on every core.

Turns alternate: quiet, busy, quiet, busy. With as many spinning processes as cores and a fair
scheduler, a step in proportion takes twice as long; an engine whose threads wait for one another
by spinning takes many times as long.

    python scripts/bench/busy.py model.vindex3
    python scripts/bench/busy.py model.vindex3 --source model.gguf --against llama.cpp
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.kernels.setup import usable_cores
from larql.runtime.bench.arm import Arm
from larql.runtime.bench.measure import pseudo_random_ids
from larql.runtime.bench.peers import larql_arm, peer_arm, peer_source
from larql.runtime.bench.summary import Summary, paired, summarise
from larql.runtime.plan import make_plan
from larql.runtime.run import RunOptions
from larql.runtime.slices import Full

SPIN = "while True: pass"
SETTLE_SECONDS = 0.5


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Keep ``count`` processes at work meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        time.sleep(SETTLE_SECONDS)
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a container")
    parser.add_argument("--source", help="what peers load: the checkpoint it was made from")
    parser.add_argument("--against", action="append", default=[], help="as in larql bench")
    parser.add_argument("--activations", default="f32")
    parser.add_argument("--kv", default="f32")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--spinners", type=int, default=usable_cores())
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    if given.against and given.source is None:
        parser.error("--against needs --source")
    container = Container(given.model)
    vocab = make_plan(container, "target", Full()).component.vocab_size
    ids, steps = pseudo_random_ids(1, vocab), given.decode_tokens
    room = len(ids) + steps
    run = RunOptions(threads=given.threads, activations=given.activations, kv=given.kv)
    specs = [larql_arm(container, run, room)]
    if given.against:
        source = peer_source(container, given.source, SilentProgress())
        specs += [peer_arm(name, source, given.threads, room) for name in given.against]
    with ExitStack() as stack:
        arms = [stack.enter_context(Arm(spec)) for spec in specs]
        quiet: list[list[float]] = [[] for _ in arms]
        busy: list[list[float]] = [[] for _ in arms]
        for repeat in range(given.repeats + 1):
            for arm, undisturbed, disturbed in zip(arms, quiet, busy, strict=True):
                time.sleep(SETTLE_SECONDS)
                alone = arm.decode(ids, steps).seconds
                with spinning(given.spinners):
                    beside = arm.decode(ids, steps).seconds
                if repeat:
                    undisturbed.append(alone)
                    disturbed.append(beside)
    print(f"{given.threads} threads, {given.spinners} spinning processes, {usable_cores()} cores\n")
    print("| engine | quiet tokens/s | busy tokens/s | times slower |")
    print("| --- | --- | --- | --- |")
    for arm, undisturbed, disturbed in zip(arms, quiet, busy, strict=True):
        cells = (
            spread(summarise([steps / s for s in undisturbed])),
            spread(summarise([steps / s for s in disturbed])),
            spread(paired(disturbed, undisturbed)),
        )
        print(f"| {arm.spec.name} | {' | '.join(cells)} |")


def spread(found: Summary) -> str:
    """Return median and extremes."""
    return f"{found.median:.2f} ({found.minimum:.2f} to {found.maximum:.2f})"


if __name__ == "__main__":
    main()
