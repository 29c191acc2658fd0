"""Causal depthwise convolution over positions, of which recurrent operations are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from larql.format.operations.contract import Defect, OperandContract, Site, at_least_1, equal
from larql.format.operations.dense_ffn import Activation
from larql.format.operations.states import ConvolutionRows

__all__ = ["Convolution"]


@dataclass(frozen=True)
class Convolution:
    """``y[t] = activation(bias + sum over j of weight[:, j] * x[t - taps + 1 + j])``.

    Each channel is convolved with taps of its own; the last tap belongs to the position itself,
    and positions before the first count as zero. With ``residual`` the result is ``x[t] + y[t]``.

    Attributes
    ----------
    weight : str
        Operand of shape ``[channels, taps]``.
    channels, taps : int
    activation : Activation or None
        None: the sum itself.
    bias : str or None
        Operand of shape ``[channels]``.
    residual : bool
        Whether the input is added.
    """

    weight: str
    channels: int
    taps: int
    activation: Activation | None = None
    bias: str | None = None
    residual: bool = False

    def contracts(self, layer: int, use: str) -> Iterator[OperandContract]:
        """Yield the operands that it reads."""
        yield OperandContract(self.weight, (self.channels, self.taps), layer, use)
        if self.bias is not None:
            yield OperandContract(self.bias, (self.channels,), layer, f"{use}.bias")

    def defects(self, channels: int, where: str, what: str) -> Iterator[Defect]:
        """Yield what is wrong with a convolution of ``channels``."""
        yield from at_least_1(where, (f"{what} taps", self.taps))
        yield from equal(where, f"{what} channels", self.channels, channels)

    def state(self, layer: int, site: Site) -> ConvolutionRows:
        """Return what it keeps between positions at a site of a layer."""
        return ConvolutionRows(layer, site, self.channels, self.taps - 1)
