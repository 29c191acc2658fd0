"""What speculation gains: the same text continued with drafts and without, in turn.

Each turn continues the prompt by single steps and with the drafter, in an order that alternates, so
a slow spell of the machine is in both. Tokens must be equal.

    python scripts/bench/speculate.py model.vindex3 --drafter ngram
    python scripts/bench/speculate.py model.vindex3 --drafter depth:20 --prompt "Water boils at"
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from larql.format.container import Container
from larql.runtime.container_text import end_ids, tokenizer_of
from larql.runtime.draft.choice import make_drafter
from larql.runtime.draft.drafter import Speculation
from larql.runtime.generate import generate
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.sampling import Sampler, Sampling

REPETITIVE = "The river rises in the hills, runs through the town and reaches the sea. " * 8


def continued(
    run: Run, ids: list[int], count: int, drafter: str | None, most: int
) -> tuple[list[int], float, Speculation | None]:
    """Return the tokens, seconds from the first one on, and the speculation."""
    room = len(ids) + count - 1
    session = run.session(room)
    speculation = None if drafter is None else Speculation(make_drafter(drafter, run, room), most)
    carrier, row = run.timed_advance(session, ids)
    if speculation is not None:
        speculation.single_seconds = 0.0  # timed here, and not by itself
        speculation.begin(session, ids, carrier, count)
    began = time.perf_counter()
    stream = generate(run, session, row, count, Sampler(Sampling()), (), ids, speculation)
    return list(stream), time.perf_counter() - began, speculation


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--draft-tokens", type=int, default=6)
    parser.add_argument("--prompt", default=REPETITIVE)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--activations", choices=("f32", "q8"), default="f32")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    container = Container(arguments.model)
    options = RunOptions(threads=arguments.threads, activations=arguments.activations)
    run = open_run(container, options)
    tokenizer = tokenizer_of(container)
    ids = list(tokenizer.encode(arguments.prompt, add_bos=True))
    ends = end_ids(container, tokenizer)
    times: dict[str, list[float]] = {"plain": [], "drafted": []}
    for turn in range(arguments.turns + 1):
        arms = {"plain": None, "drafted": arguments.drafter}
        tokens = {}
        for name in sorted(arms, reverse=bool(turn % 2)):
            made, seconds, found = continued(
                run, ids, arguments.generate, arms[name], arguments.draft_tokens
            )
            tokens[name] = made
            if found is not None:
                told = found.report()
            if turn:  # the first turn loads kernels
                times[name].append(seconds)
        if tokens["plain"] != tokens["drafted"]:
            raise SystemExit("the tokens differ")
    ratios = [a / b for a, b in zip(times["plain"], times["drafted"], strict=True)]
    report = {
        "model": container.index.model,
        "activations": arguments.activations,
        "prompt_tokens": len(ids),
        "generated": arguments.generate,
        "ends_within": any(token in ends for token in tokens["plain"]),
        "tokens_per_second": {
            name: arguments.generate / statistics.median(values) for name, values in times.items()
        },
        "speedup": statistics.median(ratios),
        "speedup_range": [min(ratios), max(ratios)],
        "speculation": told,
    }
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{report['model']}, {arguments.activations}, {arguments.drafter}: {len(ids)} tokens and")
    print(f"{arguments.generate} more; tokens equal in {arguments.turns} turns")
    for name, values in times.items():
        print(f"{name:>8}  {arguments.generate / statistics.median(values):7.1f} tokens/s")
    print(f"speed-up  {report['speedup']:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"accepted  {told['accepted']} of {told['judged']} judged, {told['blocks']} blocks")


if __name__ == "__main__":
    main()
