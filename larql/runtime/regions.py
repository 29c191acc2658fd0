"""The kinds of continuation state, each as it lies in memory.

Rows of keys and values are kept in a ring of slots: the rows of absolute positions
``u n .. u n + u`` stand in slot ``n % slots``, where ``u`` is a region's unit. A full region has
room for every position of the session; a windowed one has room for its window plus the largest
block that is ever advanced at once, so writing a block never overwrites a row that one of its own
queries may see, nor one that the state before the block still needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.format.graph import KvRows, StateSpec

__all__ = [
    "KvRegion",
    "KvSnapshot",
    "Region",
    "RegionSnapshot",
    "RowRegion",
    "StateCost",
    "needed_rows",
]

Floats = npt.NDArray[Any]


def needed_rows(spec: KvRows, context: int, block: int) -> int:
    """Return for how many positions a region must have room.

    Parameters
    ----------
    spec : KvRows
        Geometry from the plan.
    context : int
        Most positions that the session will hold.
    block : int
        Most positions that are advanced at once.
    """
    rows = context if spec.window is None else min(context, spec.window + block)
    return max(rows, 1)


@dataclass(frozen=True)
class StateCost:
    """What a step reads of a region: a fixed number of bytes, and some for each position it sees.

    Attributes
    ----------
    fixed : int
    per_position : int
    window : int or None
        Most positions that are seen; None: all.
    """

    fixed: int
    per_position: int
    window: int | None


class RegionSnapshot(ABC):
    """A copy of what a region holds, the same whatever order the region keeps it in."""

    @abstractmethod
    def arrays(self) -> Mapping[str, Floats | npt.NDArray[np.int64]]:
        """Return the copied arrays by name, in a fixed order."""


class Region(ABC):
    """What one operation keeps between positions.

    Attributes
    ----------
    spec : StateSpec
        Its kind and geometry, from the plan.
    whole : bool
        Whether each step changes all of the region. Then an advance leaves what was before it as
        it was until it is settled; a region of rows only has to forget the new ones.
    """

    spec: StateSpec
    whole: bool

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that the region occupies."""

    @property
    @abstractmethod
    def cost(self) -> StateCost:
        """What a step reads of the region."""

    def settle(self) -> None:
        """Take what the last advance wrote as the state."""
        return

    @abstractmethod
    def snapshot(self, length: int) -> RegionSnapshot:
        """Copy what a state of ``length`` positions needs."""

    @abstractmethod
    def restore(self, snapshot: RegionSnapshot) -> None:
        """Put a snapshot of this region back."""

    @abstractmethod
    def can_truncate(self, length: int, to: int) -> bool:
        """Return whether going back from ``length`` to ``to`` positions loses nothing needed."""

    @abstractmethod
    def truncate(self, to: int) -> None:
        """Forget the positions from ``to`` on, where :meth:`can_truncate` allows it."""

    @abstractmethod
    def why_not(self) -> str:
        """Return in words why positions cannot be forgotten, where :meth:`can_truncate` says so."""


@dataclass(frozen=True)
class KvSnapshot(RegionSnapshot):
    """A copy of one region's rows, the same whatever order the region keeps them in.

    Attributes
    ----------
    positions : int64 [n]
        Absolute positions, ascending.
    keys : float [n, heads, key_dim]
    values : float [n, heads, value_dim]
    """

    positions: npt.NDArray[np.int64]
    keys: Floats
    values: Floats

    def arrays(self) -> Mapping[str, Floats | npt.NDArray[np.int64]]:
        """Return positions, keys and values."""
        return {"positions": self.positions, "keys": self.keys, "values": self.values}


class KvRegion(Region):
    """Keys and values of one attention layer, in an order that its backend chose.

    Parameters
    ----------
    spec : KvRows
        Geometry from the plan.
    unit : int
        Positions of a slot.
    keys, values : ndarray, shape ``[slots, …]``
        Storage; float16 keeps numbers rounded to it.
    """

    whole = False

    def __init__(self, spec: KvRows, unit: int, keys: Floats, values: Floats) -> None:
        self.spec: KvRows = spec
        self.unit = unit
        self.keys = keys
        self.values = values

    @property
    def capacity(self) -> int:
        """For how many positions there is room."""
        return len(self.keys) * self.unit

    @property
    def nbytes(self) -> int:
        """Bytes that the region occupies."""
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def cost(self) -> StateCost:
        """The keys and values that a position sees, padding included."""
        return StateCost(0, self.nbytes // self.capacity, self.spec.window)

    def key_rows(self, positions: npt.NDArray[np.int64]) -> Floats:
        """Return the keys of positions that the region holds, ``[n, heads, key_dim]``."""
        return np.ascontiguousarray(self.keys[self._key_places(positions)])

    def value_rows(self, positions: npt.NDArray[np.int64]) -> Floats:
        """Return the values of positions that the region holds, ``[n, heads, value_dim]``."""
        return np.ascontiguousarray(self.values[self._value_places(positions)])

    def _key_places(self, positions: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        slots = positions // self.unit % len(self.keys)
        # A slot of several positions has their keys side by side, [heads, key_dim, unit].
        return (
            (slots,) if self.unit == 1 else (slots, slice(None), slice(None), positions % self.unit)
        )

    def _value_places(self, positions: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        slots = positions // self.unit % len(self.values)
        # … and their values one after the other, [heads, unit, value_dim and padding].
        whole, dims = slice(None), slice(self.spec.value_dim)
        return (slots,) if self.unit == 1 else (slots, whole, positions % self.unit, dims)

    def kept(self, length: int) -> npt.NDArray[np.int64]:
        """Return the positions that a state of ``length`` positions still needs, ascending."""
        window = self.spec.window
        first = 0 if window is None else max(0, length - window + 1)
        return np.arange(first, length, dtype=np.int64)

    def snapshot(self, length: int) -> KvSnapshot:
        """Copy the rows that a state of ``length`` positions needs."""
        positions = self.kept(length)
        return KvSnapshot(positions, self.key_rows(positions), self.value_rows(positions))

    def restore(self, snapshot: RegionSnapshot) -> None:
        """Put the rows of a snapshot back where they stood."""
        assert isinstance(snapshot, KvSnapshot)
        self.keys[self._key_places(snapshot.positions)] = snapshot.keys
        self.values[self._value_places(snapshot.positions)] = snapshot.values

    def can_truncate(self, length: int, to: int) -> bool:
        """Return whether going back from ``length`` to ``to`` positions loses no needed row."""
        needed = self.kept(to)
        return needed.size == 0 or int(needed[0]) >= length - self.capacity

    def truncate(self, to: int) -> None:
        """Do nothing: rows beyond a state's length are never seen."""

    def why_not(self) -> str:
        """Return what a window has done."""
        return f"the window of layer {self.spec.layer} has dropped rows that it would need"


class RowRegion(KvRegion):
    """One position in each slot, ``[capacity, heads, dim]``: easy to read and to write.

    Parameters
    ----------
    spec, context, block
        See :func:`needed_rows`.
    dtype : type
        float64, or float16 to round what is written.
    """

    def __init__(
        self, spec: KvRows, context: int, block: int, dtype: type[np.float64] | type[np.float16]
    ) -> None:
        rows = needed_rows(spec, context, block)
        keys = np.zeros((rows, spec.heads, spec.key_dim), dtype=dtype)
        values = np.zeros((rows, spec.heads, spec.value_dim), dtype=dtype)
        super().__init__(spec, 1, keys, values)

    def write(self, start: int, keys: Floats, values: Floats) -> None:
        """Store rows of positions ``start, start + 1, …``."""
        positions = np.arange(start, start + len(keys))
        with np.errstate(over="ignore"):  # float16 has infinity for what it cannot hold
            self.restore(KvSnapshot(positions, keys, values))
