"""Continuation state that every position changes entirely: recurrent matrices, convolution rows.

Of the past such a state keeps a sum and not its terms, so it cannot forget single positions: it is
copied and put back, or begun again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.format.graph import ConvolutionRows, Recurrent
from larql.runtime.regions import Floats, Region, RegionSnapshot, StateCost

__all__ = ["StripRegion", "WholeRegion", "WholeSnapshot"]


@dataclass(frozen=True)
class WholeSnapshot(RegionSnapshot):
    """A copy of all of a region.

    Attributes
    ----------
    values : float ``[heads, key_dim, value_dim]`` or ``[rows, channels]``
    """

    values: Floats

    def arrays(self) -> Mapping[str, Floats | npt.NDArray[np.int64]]:
        """Return the values."""
        return {"values": self.values}


class WholeRegion(Region):
    """A recurrent state ``[heads, key_dim, value_dim]``, or convolution rows ``[rows, channels]``.

    It begins as zeros. Convolution rows stand in the order of their positions, the oldest first.
    It is kept twice: an advance reads one half and writes the other, and is done when the halves
    are exchanged, so that one that fails leaves nothing to undo.

    Parameters
    ----------
    spec : Recurrent or ConvolutionRows
        Geometry from the plan.
    halves : ndarray of zeros, ``[2, …]``

    Attributes
    ----------
    turn : int64 ``[1]``
        Which half is the current one; always the same word, which kernels read.
    """

    whole = True

    def __init__(self, spec: Recurrent | ConvolutionRows, halves: Floats) -> None:
        self.spec: Recurrent | ConvolutionRows = spec
        self.halves = halves
        self.turn = np.zeros(1, np.int64)

    @classmethod
    def plain(
        cls, spec: Recurrent | ConvolutionRows, dtype: type[np.float64] | type[np.float32]
    ) -> WholeRegion:
        """Return a region of zeros in the order above."""
        return cls(spec, np.zeros((2, *_shape(spec)), dtype))

    @property
    def current(self) -> Floats:
        """The half that holds the state."""
        half: Floats = self.halves[self.turn[0]]
        return half

    def successor(self) -> Floats:
        """Return the other half as a copy of the state, to be changed to what follows it."""
        half: Floats = self.halves[1 - self.turn[0]]
        half[...] = self.current
        return half

    def settle(self) -> None:
        """Exchange the halves."""
        self.turn[0] = 1 - self.turn[0]

    def read(self) -> Floats:
        """Return a copy of the state."""
        return self.current.copy()

    def write(self, values: Floats) -> None:
        """Replace the state."""
        self.current[...] = values

    @property
    def nbytes(self) -> int:
        """Bytes that the region occupies, both halves."""
        return int(self.halves.nbytes)

    @property
    def cost(self) -> StateCost:
        """One half, however many positions there were."""
        return StateCost(self.nbytes // 2, 0, None)

    def snapshot(self, length: int) -> WholeSnapshot:
        """Copy all of it."""
        return WholeSnapshot(self.read())

    def restore(self, snapshot: RegionSnapshot) -> None:
        """Put a copy back."""
        assert isinstance(snapshot, WholeSnapshot)
        self.write(snapshot.values)

    def can_truncate(self, length: int, to: int) -> bool:
        """Return whether ``to`` is the current length or no position at all."""
        return to in (0, length)

    def truncate(self, to: int) -> None:
        """Begin again."""
        self.current[...] = 0

    def why_not(self) -> str:
        """Return why single positions cannot be forgotten."""
        kind = "recurrent state" if isinstance(self.spec, Recurrent) else "convolution rows"
        return (
            f"the {kind} of layer {self.spec.layer} ({self.spec.site}) can only be kept or begun "
            f"again"
        )


class StripRegion(WholeRegion):
    """A recurrent state in strips of columns, ``[heads, strips, key_dim, columns]``.

    Parameters
    ----------
    spec : Recurrent
        Geometry from the plan.
    columns : int
        Columns of a strip; the last one has zeros behind its own.
    """

    def __init__(self, spec: Recurrent, columns: int) -> None:
        strips = -(-spec.value_dim // columns)
        shape = (2, spec.heads, strips, spec.key_dim, columns)
        super().__init__(spec, np.zeros(shape, np.float32))

    def read(self) -> Floats:
        """Return the state as ``[heads, key_dim, value_dim]``."""
        heads, keys, values = _shape(self.spec)
        return self.current.swapaxes(1, 2).reshape(heads, keys, -1)[..., :values].copy()

    def write(self, values: Floats) -> None:
        """Replace the state by ``[heads, key_dim, value_dim]``."""
        heads, strips, keys, columns = self.current.shape
        wide = np.zeros((heads, keys, strips * columns), self.halves.dtype)
        wide[..., : values.shape[-1]] = values
        self.current[...] = wide.reshape(heads, keys, strips, columns).swapaxes(1, 2)


def _shape(spec: Recurrent | ConvolutionRows) -> tuple[int, ...]:
    if isinstance(spec, Recurrent):
        return (spec.heads, spec.key_dim, spec.value_dim)
    return (spec.rows, spec.channels)
