"""What one operand is filled from."""

from __future__ import annotations

from dataclasses import dataclass

from larql.format.rows import RowSelection
from larql.format.source.checkpoint import SourceTensor

__all__ = ["Binding"]


@dataclass(frozen=True)
class Binding:
    """One operand and what of a checkpoint fills it.

    Attributes
    ----------
    operand : str
        ``<object>/<tensor>``.
    source : SourceTensor
    shape : tuple of int
        The operand's logical shape.
    rows : RowSelection or None
        The rows of the tensor that it is made of; None: all of them.
    """

    operand: str
    source: SourceTensor
    shape: tuple[int, ...]
    rows: RowSelection | None = None

    @property
    def object(self) -> str:
        """The logical object, e.g. ``target.layer.007``."""
        return self.operand.split("/", 1)[0]

    @property
    def tensor(self) -> str:
        """The tensor's name inside the object's segment."""
        return self.operand.split("/", 1)[1]
