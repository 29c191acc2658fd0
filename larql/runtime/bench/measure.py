"""Running arms side by side: the same ids, one at a time, turn by turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from larql.format.progress import Progress
from larql.runtime.bench.arm import Arm, ArmSpec, Memory
from larql.runtime.bench.machine import Clock, Load, load_average

__all__ = ["ArmFigures", "Measurement", "Work", "measure", "pseudo_random_ids"]

# Threads of an engine that has just answered may still spin, waiting for more work.
_SETTLE_SECONDS = 0.2


@dataclass(frozen=True)
class Work:
    """What every arm does.

    Attributes
    ----------
    check : tuple of int
        A short prompt; greedy tokens after it are compared.
    check_steps : int
        How many.
    context : tuple of int
        Positions held before the first counted step of decoding.
    steps : int
        Counted steps; 0 measures no decoding.
    prompt : tuple of int
        Prefilled from nothing; empty measures no prefill.
    repeats : int
        Counted turns of each arm.
    """

    check: tuple[int, ...]
    check_steps: int
    context: tuple[int, ...]
    steps: int
    prompt: tuple[int, ...]
    repeats: int

    @property
    def room(self) -> int:
        """Positions that a session must have room for."""
        return max(
            len(self.check) + self.check_steps, len(self.context) + self.steps, len(self.prompt), 1
        )


@dataclass(frozen=True)
class ArmFigures:
    """What was measured of one arm.

    Attributes
    ----------
    name : str
    facts : mapping
        What the arm says of itself.
    start_seconds, load_seconds : float
        See `larql.runtime.bench.arm.Arm`.
    greedy : tuple of int
        Tokens after the check prompt.
    decode : tuple of float
        Seconds for all steps, turn by turn.
    prefill : tuple of float
        Seconds for the prompt, turn by turn.
    decode_memory : Memory
        After decoding, before any prefill of the prompt.
    memory : Memory
        At the end.
    """

    name: str
    facts: Mapping[str, object]
    start_seconds: float
    load_seconds: float
    greedy: tuple[int, ...]
    decode: tuple[float, ...]
    prefill: tuple[float, ...]
    decode_memory: Memory
    memory: Memory


@dataclass(frozen=True)
class Measurement:
    """What was measured side by side.

    Attributes
    ----------
    arms : tuple of ArmFigures
        larql first.
    bandwidth : tuple of float
        Bytes per second read in each turn of decoding.
    reader : mapping
        How they were read.
    load : Load
        Of the machine, while arms were warmed up and took their turns.
    load_before, load_after : float or None
        Load averages.
    seconds : float
        From the first answer to the last.
    """

    arms: tuple[ArmFigures, ...]
    bandwidth: tuple[float, ...]
    reader: Mapping[str, object]
    load: Load
    load_before: float | None
    load_after: float | None
    seconds: float


def pseudo_random_ids(count: int, vocab: int) -> tuple[int, ...]:
    """Return the same ``count`` ids below ``vocab`` every time.

    The generator is Knuth's 64-bit linear congruential one (MMIX), its upper bits taken.
    """
    ids, state = [], 0
    for _ in range(count):
        state = (6364136223846793005 * state + 1442695040888963407) % (1 << 64)
        ids.append((state >> 33) % vocab)
    return tuple(ids)


def measure(
    specs: Sequence[ArmSpec], reader: ArmSpec, work: Work, progress: Progress
) -> Measurement:
    """Start the arms and measure them turn by turn: A B A B, one computing at a time.

    Each arm does everything once before its turns count. Decoding comes before prefill, so that
    the memory of the one is not that of the other.

    Parameters
    ----------
    specs : sequence of ArmSpec
        larql first.
    reader : ArmSpec
        The arm that measures bandwidth, once before each turn of decoding.
    work : Work
    progress : Progress

    Raises
    ------
    LarqlError
        As `larql.runtime.bench.arm.Arm` does.
    """
    load_before = load_average()
    with ExitStack() as stack:
        progress.start("load", len(specs) + 1)
        arms = []
        for spec in (*specs, reader):
            arms.append(stack.enter_context(Arm(spec)))
            progress.advance(1)
        read = arms.pop()
        began = time.perf_counter()
        greedy = [arm.decode(work.check, work.check_steps).tokens for arm in arms]
        clock = Clock([read.pid, *(arm.pid for arm in arms)])
        bandwidth: tuple[float, ...] = ()
        decode: list[tuple[float, ...]] = [()] * len(arms)
        if work.steps:
            turns = [read.read, *(_decoding(arm, work) for arm in arms)]
            bandwidth, *decode = _alternate(turns, work.repeats, "decode", progress)
        decode_memory = [arm.memory() for arm in arms]
        prefill: list[tuple[float, ...]] = [()] * len(arms)
        if work.prompt:
            turns = [_prefilling(arm, work) for arm in arms]
            prefill = _alternate(turns, work.repeats, "prefill", progress)
        progress.finish()
        load, seconds = clock.load(), time.perf_counter() - began
        figures = tuple(
            ArmFigures(
                arm.spec.name, arm.facts, arm.start_seconds, arm.load_seconds, greedy[i],
                decode[i], prefill[i], decode_memory[i], arm.memory(),
            )
            for i, arm in enumerate(arms)
        )  # fmt: skip
        return Measurement(
            figures, bandwidth, read.facts, load, load_before, load_average(), seconds
        )


def _decoding(arm: Arm, work: Work) -> Callable[[], float]:
    return lambda: arm.decode(work.context, work.steps).seconds


def _prefilling(arm: Arm, work: Work) -> Callable[[], float]:
    return lambda: arm.prefill(work.prompt).seconds


def _alternate(
    turns: Sequence[Callable[[], float]], repeats: int, label: str, progress: Progress
) -> list[tuple[float, ...]]:
    """Take all turns one after another, once to warm up and then ``repeats`` times."""
    found: list[list[float]] = [[] for _ in turns]
    progress.start(label, (repeats + 1) * len(turns))
    for repeat in range(repeats + 1):
        for turn, values in zip(turns, found, strict=True):
            time.sleep(_SETTLE_SECONDS)
            value = turn()
            if repeat:
                values.append(value)
            progress.advance(1)
    return [tuple(values) for values in found]
