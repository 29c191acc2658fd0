"""Norms and projections, of which all other operations are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from larql.format.operations.contract import Defect, OperandContract, equal

__all__ = ["Linear", "Norm"]


@dataclass(frozen=True)
class Norm:
    """Normalisation over the last axis: ``x / rms(x) * (weight + offset)`` or layer norm.

    Attributes
    ----------
    kind : {"rms", "layer"}
        ``rms``: ``sqrt(mean(x**2) + eps)`` divides; ``layer``: the mean is subtracted first.
    width : int
        Length of the normalised axis.
    eps : float
        Added to the mean square (or variance) before the root.
    offset : float
        Added to the stored weight: 1.0 where a checkpoint stores ``w`` and means ``1 + w``.
    weight, bias : str or None
        Operands of shape ``[width]``; None where the operation has none.
    """

    kind: Literal["rms", "layer"]
    width: int
    eps: float
    offset: float = 0.0
    weight: str | None = None
    bias: str | None = None

    def contracts(self, layer: int | None, use: str) -> Iterator[OperandContract]:
        """Yield the operands that it reads."""
        if self.weight is not None:
            yield OperandContract(self.weight, (self.width,), layer, use)
        if self.bias is not None:
            yield OperandContract(self.bias, (self.width,), layer, f"{use}.bias")

    def defects(self, width: int, where: str) -> Iterator[Defect]:
        """Yield what is wrong with a norm of rows of ``width``."""
        yield from equal(where, "norm width", self.width, width)
        if self.kind == "rms" and self.bias is not None:
            yield Defect(where, f"an rms norm has no bias, but {self.bias} is named as one")
        if self.eps < 0:
            yield Defect(where, f"norm eps is {self.eps}, expected 0 or more")


@dataclass(frozen=True)
class Linear:
    """``y = W x + b`` with ``W`` of shape ``[outputs, inputs]`` and ``b`` of ``[outputs]``."""

    weight: str
    outputs: int
    inputs: int
    bias: str | None = None

    def contracts(self, layer: int | None, use: str) -> Iterator[OperandContract]:
        """Yield the operands that it reads."""
        yield OperandContract(self.weight, (self.outputs, self.inputs), layer, use)
        if self.bias is not None:
            yield OperandContract(self.bias, (self.outputs,), layer, f"{use}.bias")

    def defects(self, outputs: int, inputs: int, where: str, what: str) -> Iterator[Defect]:
        """Yield what is wrong with a projection of ``inputs`` to ``outputs``."""
        if (self.outputs, self.inputs) != (outputs, inputs):
            yield Defect(
                where,
                f"{what} is [{self.outputs}, {self.inputs}], expected [{outputs}, {inputs}]",
            )
