"""What the lens costs: single positions with every feed-forward site armed, beside unarmed ones.

Turns of the two alternate, so a slow spell of the machine is in both. The head product is timed in
the same turns, on as many rows as sites are armed.

    python scripts/bench/lens.py model.vindex3 --threads 2
    python scripts/bench/lens.py model.vindex3 --threads 2 --activations q8
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from larql.format.container import Container
from larql.runtime.head import logits
from larql.runtime.observe.declaration import Declaration
from larql.runtime.observe.events import Event
from larql.runtime.observe.lens import Lens
from larql.runtime.observe.observation import Observation
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session


class Nowhere:
    """A sink that drops what it is given."""

    def take(self, event: Event) -> None:
        pass

    def flush(self) -> None:
        pass


def milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--activations", choices=("f32", "q8"), default="f32")
    parser.add_argument("--profile", help="of the container's profiles")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64, help="positions held before")
    parser.add_argument("--positions", type=int, default=32, help="counted positions")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    run = open_run(
        Container(arguments.model),
        RunOptions(
            threads=arguments.threads, activations=arguments.activations, profile=arguments.profile
        ),
    )
    plan = run.prepared.plan
    room = arguments.prompt + arguments.positions + 2
    lens = Lens(run.prepared, plan.executed_layers, top=5)
    arms = {
        "unarmed": Session(run.prepared, room),
        "statistics": Session(
            run.prepared, room, None, Observation(run.prepared, Declaration(), Nowhere())
        ),
        "armed": Session(
            run.prepared, room, None, Observation(run.prepared, Declaration((lens,)), Nowhere())
        ),
    }
    for session in arms.values():
        session.advance([3] * arguments.prompt)
    armed = len(plan.executed_layers)
    carrier = np.random.default_rng(1).standard_normal((armed, plan.component.hidden_size))
    rows = carrier.astype(np.float32)
    times: dict[str, list[float]] = {name: [] for name in (*arms, "head")}
    for turn in range(arguments.positions + 2):
        found = {
            name: milliseconds(lambda s=session, t=turn: s.step([5 + t]))  # type: ignore[misc]
            for name, session in arms.items()
        }
        found["head"] = milliseconds(lambda: logits(plan, run.prepared.backend, rows))
        if turn >= 2:
            for name, value in found.items():
                times[name].append(value)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = [a / b for a, b in zip(times["armed"], times["unarmed"], strict=True)]
    bound = [u + h for u, h in zip(times["unarmed"], times["head"], strict=True)]
    over = [a / b for a, b in zip(times["armed"], bound, strict=True)]
    work = armed * plan.component.vocab_size * plan.component.hidden_size
    report = {
        "model": run.container.index.model,
        "activations": arguments.activations,
        "threads": arguments.threads,
        "armed_rows": armed,
        "milliseconds": medians,
        "armed_to_unarmed": statistics.median(ratios),
        "armed_to_unarmed_range": [min(ratios), max(ratios)],
        "armed_to_unarmed_plus_head": statistics.median(over),
        "head_multiply_adds_per_second": work / (medians["head"] / 1e3),
    }
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{report['model']}, {arguments.activations}, {arguments.threads} threads, {armed} rows")
    for name, value in medians.items():
        print(f"{name:>12}  {value:8.2f} ms")
    print(f"armed / unarmed           {report['armed_to_unarmed']:.2f}")
    print(f"armed / (unarmed + head)  {report['armed_to_unarmed_plus_head']:.2f}")


if __name__ == "__main__":
    main()
