"""What a measurement says: rates, ratios of pairs, the ratio to the floor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from larql.runtime.bench.arm import Memory
from larql.runtime.bench.cost import state_bytes
from larql.runtime.bench.machine import BUSY, Load
from larql.runtime.bench.measure import ArmFigures, Measurement, Work
from larql.runtime.bench.summary import Summary, first_difference, paired, summarise

__all__ = ["ArmReport", "Floor", "Report", "make_report"]


@dataclass(frozen=True)
class Floor:
    """The least time that a step of decoding takes, from what it reads.

    Attributes
    ----------
    weight_bytes : int
        Weights that a step touches.
    state_bytes : float
        Keys and values that a step reads, the mean over the counted steps.
    bytes_per_second : Summary
        Read bandwidth, measured in the same turns.
    seconds_per_token : Summary
        Bytes by bandwidth.
    ratio : Summary
        larql's seconds per token by the floor's, turn by turn; 1 is the bound.
    """

    weight_bytes: int
    state_bytes: float
    bytes_per_second: Summary
    seconds_per_token: Summary
    ratio: Summary


@dataclass(frozen=True)
class ArmReport:
    """One arm.

    Attributes
    ----------
    name : str
    facts : mapping
    start_seconds, load_seconds : float
        From the start of its process until it was ready; the part that loaded the model.
    decode, prefill : Summary or None
        Tokens per second; None where not measured.
    decode_ratio, prefill_ratio : Summary or None
        How many times faster larql is, turn by turn; None for larql.
    decode_memory, memory : Memory
        After decoding, and at the end.
    greedy : tuple of int
        Tokens after the check prompt.
    differs_at : int or None
        The first of them that is not larql's.
    """

    name: str
    facts: Mapping[str, object]
    start_seconds: float
    load_seconds: float
    decode: Summary | None
    decode_ratio: Summary | None
    prefill: Summary | None
    prefill_ratio: Summary | None
    decode_memory: Memory
    memory: Memory
    greedy: tuple[int, ...]
    differs_at: int | None


@dataclass(frozen=True)
class Report:
    """A whole measurement.

    Attributes
    ----------
    arms : tuple of ArmReport
        larql first.
    floor : Floor or None
        None where decoding was not measured.
    reader : mapping
        How bandwidth was measured.
    load : Load
    load_before, load_after : float or None
    seconds : float
    notes : tuple of str
        What a reader of the numbers should know, one line each.
    """

    arms: tuple[ArmReport, ...]
    floor: Floor | None
    reader: Mapping[str, object]
    load: Load
    load_before: float | None
    load_after: float | None
    seconds: float
    notes: tuple[str, ...]


def make_report(
    measurement: Measurement, work: Work, weight_bytes: int, cache_bytes: int | None
) -> Report:
    """Derive rates and ratios.

    Parameters
    ----------
    measurement : Measurement
    work : Work
        What was measured.
    weight_bytes : int
        From `larql.runtime.bench.cost.weight_bytes`.
    cache_bytes : int or None
        The machine's largest cache.
    """
    own = measurement.arms[0]
    arms = tuple(_arm(arm, own, work) for arm in measurement.arms)
    floor = _floor(measurement, own, work, weight_bytes) if work.steps else None
    return Report(
        arms,
        floor,
        measurement.reader,
        measurement.load,
        measurement.load_before,
        measurement.load_after,
        measurement.seconds,
        tuple(_notes(measurement, arms, floor, cache_bytes)),
    )


def _arm(arm: ArmFigures, own: ArmFigures, work: Work) -> ArmReport:
    def rate(tokens: int, seconds: tuple[float, ...]) -> Summary | None:
        return summarise([tokens / s for s in seconds]) if seconds else None

    def ratio(theirs: tuple[float, ...], ours: tuple[float, ...]) -> Summary | None:
        return paired(theirs, ours) if theirs and arm is not own else None

    return ArmReport(
        arm.name,
        arm.facts,
        arm.start_seconds,
        arm.load_seconds,
        rate(work.steps, arm.decode),
        ratio(arm.decode, own.decode),
        rate(len(work.prompt), arm.prefill),
        ratio(arm.prefill, own.prefill),
        arm.decode_memory,
        arm.memory,
        arm.greedy,
        first_difference(own.greedy, arm.greedy),
    )


def _floor(measurement: Measurement, own: ArmFigures, work: Work, weight_bytes: int) -> Floor:
    regions = own.facts["state"]
    assert isinstance(regions, list)
    state = state_bytes(regions, len(work.context), work.steps)
    floors = [(weight_bytes + state) / rate for rate in measurement.bandwidth]
    return Floor(
        weight_bytes,
        state,
        summarise(measurement.bandwidth),
        summarise(floors),
        paired([seconds / work.steps for seconds in own.decode], floors),
    )


def _notes(
    measurement: Measurement,
    arms: tuple[ArmReport, ...],
    floor: Floor | None,
    cache_bytes: int | None,
) -> list[str]:
    notes = []
    load = measurement.load
    if load.others > BUSY:
        notes.append(
            f"other work kept {load.others:.1f} cores busy meanwhile; the figures are not those of "
            f"a quiet machine"
        )
    if load.stolen > BUSY / 10:
        notes.append(f"the host of this virtual machine took {load.stolen:.2f} cores meanwhile")
    if floor is not None and cache_bytes is not None and floor.weight_bytes < 2 * cache_bytes:
        notes.append(
            "much of what a step reads fits the processor's largest cache, so the floor, which is "
            "that of memory, is none"
        )
    notes.extend(
        f"{arm.name} chose another token than larql at greedy step {arm.differs_at}"
        for arm in arms
        if arm.differs_at is not None
    )
    return notes
