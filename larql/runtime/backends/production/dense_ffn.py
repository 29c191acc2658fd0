"""Feed-forward operations by kernels."""

from __future__ import annotations

from collections.abc import Sequence

from larql.format.graph import Activation, DenseFfn
from larql.kernels.activation import Kind, activate, gate
from larql.kernels.elementwise import scale
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.regions import Region
from larql.runtime.taps import BlockTaps, tell

__all__ = ["dense_ffn", "kernel_kind"]


def dense_ffn(
    mixer: DenseFfn,
    x: Float32,
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> Float32:
    """Return the operation's output for each position."""
    kind = kernel_kind(mixer.activation)
    if mixer.gate is None:
        up = arithmetic.linear(mixer.up, x)
        tell(taps, "up", up)
        activate(up, kind, up)
    else:
        gated, up = arithmetic.linears([mixer.gate, mixer.up], arithmetic.inputs(x))
        tell(taps, "gate", gated)
        tell(taps, "up", up)
        gate(gated, up, kind, up)
    tell(taps, "activation", up)
    out = arithmetic.linear(mixer.down, up)
    if mixer.scale is not None:
        scale(out, float(arithmetic.vectors[mixer.scale][0]))
    tell(taps, "down", out)
    return out


def kernel_kind(activation: Activation) -> Kind:
    """Return the kernels' name of an activation."""
    return "gelu_erf" if activation == "gelu" else activation
