"""What a ladder costs, beside one traversal and as many passes of the head as it has rungs.

python scripts/bench/ladder.py model.vindex3 --text tests/data/alice.txt
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.runtime.container_text import tokenizer_of
from larql.runtime.draft.rungs import score_rungs
from larql.runtime.run import Run, RunOptions, open_run


def apart(run: Run, ids: list[int]) -> tuple[float, float]:
    """Return the seconds of one traversal, and of one pass of the head over all positions."""
    session = run.session(len(ids))
    began = time.perf_counter()
    carrier = session.advance(ids)
    between = time.perf_counter()
    for _ in session.logit_rows(carrier):
        pass
    return between - began, time.perf_counter() - between


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--positions", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    container = Container(arguments.model)
    run = open_run(container, RunOptions(threads=arguments.threads))
    text = arguments.text.read_text(encoding="utf-8")
    ids = list(tokenizer_of(container).encode(text, add_bos=True))[: arguments.positions]
    depths = list(range(1, len(run.prepared.plan.layers) + 1))
    ratios = []
    for turn in range(arguments.turns + 1):
        traversal, head = apart(run, ids)
        began = time.perf_counter()
        rungs = score_rungs(run.prepared, ids, depths, None, SilentProgress())
        whole = time.perf_counter() - began
        if not turn:  # loads kernels
            continue
        ratios.append(whole / (traversal + len(depths) * head))
        print(
            f"ladder {whole:.2f} s, traversal {traversal:.2f}, {len(depths)} heads of {head:.3f}: "
            f"{ratios[-1]:.3f}; of the ladder traversal {rungs.traversal_seconds:.2f}, heads "
            f"{rungs.head_seconds:.2f}, scoring {rungs.score_seconds:.2f}"
        )
    print(f"{len(ids)} positions, median of the ratios {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
