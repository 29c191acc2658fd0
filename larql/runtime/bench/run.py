"""One benchmark of a container, from the user's wishes to a report with its provenance."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field

from larql.errors import UsageError
from larql.format.container import Container
from larql.format.progress import Progress
from larql.kernels.setup import usable_cores
from larql.provenance import tokens_sha256
from larql.runtime.bench.cost import weight_bytes
from larql.runtime.bench.machine import cpu_model, largest_cache
from larql.runtime.bench.measure import Work, measure, pseudo_random_ids
from larql.runtime.bench.peers import larql_arm, peer_arm, peer_source, reader_arm
from larql.runtime.bench.report import Report, make_report
from larql.runtime.plan import make_plan
from larql.runtime.run import RunOptions
from larql.runtime.slices import Full

__all__ = ["Bench", "BenchOptions", "bench"]

CHECK_STEPS = 16
_CHECK_IDS = 8  # where a container has no tokenizer
_LEAST_BUFFER = 256 << 20
_CACHES = 8  # the buffer is this many times the largest cache


@dataclass(frozen=True)
class BenchOptions:
    """What is measured.

    Attributes
    ----------
    peers : tuple of str
        Names of `larql.runtime.bench.peers.PEERS`.
    source : str
        What peers load, as a user names it; unused without peers.
    check : tuple of int
        A prompt whose greedy continuations are compared; empty: some pseudo-random ids.
    decode_tokens, prefill : int
        Tokens in a turn; 0 leaves out.
    context : int
        Positions held before the first decoded token.
    repeats : int
        Counted turns.
    run : RunOptions
        How larql runs: its threads, activations, kv, prefault and profile are taken. Peers compute
        with as many threads, and load all of the source.
    """

    peers: tuple[str, ...] = ()
    source: str = ""
    check: tuple[int, ...] = ()
    decode_tokens: int = 64
    prefill: int = 512
    context: int = 1
    repeats: int = 5
    run: RunOptions = field(default_factory=RunOptions)


@dataclass(frozen=True)
class Bench:
    """A finished benchmark.

    Attributes
    ----------
    report : Report
    machine : dict
        Processor, cores, instruction set, cache.
    work : dict
        What every arm did.
    provenance : dict
        What was measured, and with what.
    """

    report: Report
    machine: dict[str, object]
    work: dict[str, object]
    provenance: dict[str, object]

    def document(self) -> dict[str, object]:
        """Return everything as what JSON can hold; `larql.cli.render` sees to numbers."""
        return {
            "machine": self.machine,
            "work": self.work,
            **{f.name: getattr(self.report, f.name) for f in dataclasses.fields(self.report)},
            "provenance": self.provenance,
        }


def bench(container: Container, options: BenchOptions, progress: Progress) -> Bench:
    """Measure a container's target component, beside other engines if any are named.

    Raises
    ------
    UsageError
        If there is nothing to measure, or peers cannot load the source.
    PlatformError
        If a peer is missing or fails.
    LarqlError
        Whatever executing the container refuses.
    """
    if not options.decode_tokens and not options.prefill:
        raise UsageError("--decode-tokens 0 --prefill 0: nothing is left to measure")
    plan = make_plan(container, "target", Full())
    selection = container.select(options.run.profile)
    vocab = plan.component.vocab_size
    work = Work(
        options.check or pseudo_random_ids(_CHECK_IDS, vocab),
        CHECK_STEPS,
        pseudo_random_ids(options.context, vocab),
        options.decode_tokens,
        pseudo_random_ids(options.prefill, vocab),
        options.repeats,
    )
    threads = usable_cores() if options.run.threads is None else options.run.threads
    cache = largest_cache()
    run = dataclasses.replace(options.run, threads=threads)
    specs = [larql_arm(container, run, work.room)]
    if options.peers:
        source = peer_source(container, options.source, progress)
        specs.extend(peer_arm(name, source, threads, work.room) for name in options.peers)
    reader = reader_arm(threads, max(_LEAST_BUFFER, _CACHES * (cache or 0)))
    measured = measure(specs, reader, work, progress)
    report = make_report(measured, work, weight_bytes(selection.bound, plan), cache)
    facts = measured.arms[0].facts
    environment = facts["environment"]
    assert isinstance(environment, dict)
    return Bench(
        report,
        {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "cores_usable": usable_cores(),
            "isa": environment["isa"],
            "largest_cache_bytes": cache,
        },
        {
            "threads": threads,
            "context": len(work.context),
            "decode_tokens": work.steps,
            "prefill_tokens": len(work.prompt),
            "repeats": work.repeats,
            "ids": "pseudo-random",
            "check_ids": work.check,
            "check_steps": work.check_steps,
        },
        {
            "container": {
                "fingerprint": container.fingerprint,
                "profile": selection.profile,
                "model": container.index.model,
                "source": dict(container.index.source),
            },
            "component": plan.component.id,
            "activations": facts["activations"],
            "kv": facts["kv"],
            "prefault": run.prefault,
            "numerics": facts["numerics"],
            "max_format": facts["max_format"],
            "context_tokens_sha256": tokens_sha256(work.context),
            "prefill_tokens_sha256": tokens_sha256(work.prompt),
            "environment": environment,
        },
    )
