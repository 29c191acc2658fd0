"""The gated short convolution by kernels."""

from __future__ import annotations

from collections.abc import Sequence

from larql.format.graph import ShortConvolution
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.recurrence import convolved, whole
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["short_convolution"]


def short_convolution(
    mixer: ShortConvolution,
    x: Float32,
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> Float32:
    """Return the operation's output for each position, and keep its last inputs."""
    (rows,) = whole(regions)
    before, after, values = arithmetic.linears([mixer.b, mixer.c, mixer.v], arithmetic.inputs(x))
    for stage, part in (("b", before), ("c", after), ("v", values)):
        tell(taps, stage, part)
    (found,) = convolved([(mixer.conv, rows, values)], arithmetic, before, after)
    tell(taps, "convolution", found)
    output = arithmetic.linear(mixer.o, found)
    tell(taps, "o", output)
    return output
