"""Feed-forward operations by kernels."""

from __future__ import annotations

from collections.abc import Sequence

from larql.format.graph import DenseFfn
from larql.kernels.activation import activate, gate
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps

__all__ = ["dense_ffn"]


def dense_ffn(
    mixer: DenseFfn,
    x: Float32,
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> Float32:
    """Return the operation's output for each position."""
    kind = "gelu_erf" if mixer.activation == "gelu" else mixer.activation
    if mixer.gate is None:
        up = arithmetic.linear(mixer.up, x)
        activate(up, kind, up)
    else:
        gated, up = arithmetic.linears([mixer.gate, mixer.up], arithmetic.inputs(x))
        gate(gated, up, kind, up)
    return arithmetic.linear(mixer.down, up)
