"""The gated short convolution in float64."""

from __future__ import annotations

from collections.abc import Sequence

from larql.format.graph import ShortConvolution
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.recurrence import convolved, whole
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["short_convolution"]


def short_convolution(
    mixer: ShortConvolution,
    inputs: list[Float64],
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> list[Float64]:
    """Return the operation's output for each position, and keep its last inputs."""
    (rows,) = whole(regions)
    before, after = arithmetic.linear(mixer.b, inputs), arithmetic.linear(mixer.c, inputs)
    values = arithmetic.linear(mixer.v, inputs)
    for stage, part in (("b", before), ("c", after), ("v", values)):
        tell(taps, stage, part)
    products = [b * v for b, v in zip(before, values, strict=True)]
    found = convolved(mixer.conv, products, rows, arithmetic)
    found = [c * y for c, y in zip(after, found, strict=True)]
    tell(taps, "convolution", found)
    output = arithmetic.linear(mixer.o, found)
    tell(taps, "o", output)
    return output
