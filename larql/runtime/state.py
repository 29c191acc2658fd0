"""Continuation state: what a session keeps between steps, one typed region for each layer.

Rows are kept in a ring of slots: the rows of absolute positions ``u n .. u n + u`` stand in slot
``n % slots``, where ``u`` is a region's unit. A full region has room for every position of the
session; a windowed one has room for its window plus the largest block that is ever advanced at
once, so writing a block never overwrites a row that one of its own queries may see, nor one that
the state before the block still needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.format.graph import KvRows

__all__ = ["KvRegion", "KvSnapshot", "RowRegion", "State", "StateSnapshot", "needed_rows"]

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
class KvSnapshot:
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


class KvRegion:
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

    def __init__(self, spec: KvRows, unit: int, keys: Floats, values: Floats) -> None:
        self.spec = spec
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

    def restore(self, snapshot: KvSnapshot) -> None:
        """Put the rows of a snapshot back where they stood."""
        self.keys[self._key_places(snapshot.positions)] = snapshot.keys
        self.values[self._value_places(snapshot.positions)] = snapshot.values

    def can_truncate(self, length: int, to: int) -> bool:
        """Return whether going back from ``length`` to ``to`` positions loses no needed row."""
        needed = self.kept(to)
        return needed.size == 0 or int(needed[0]) >= length - self.capacity


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


@dataclass(frozen=True)
class StateSnapshot:
    """A copy of a whole state."""

    length: int
    regions: tuple[KvSnapshot, ...]

    def changed(self, region: int, *, keys: Floats, values: Floats) -> StateSnapshot:
        """Return a snapshot with other rows in one region, to be restored in place of this one.

        Parameters
        ----------
        region : int
            Number of the region, in layer order.
        keys, values : ndarray, shapes as in :attr:`regions`

        Raises
        ------
        UsageError
            If the rows have another shape.
        """
        old = self.regions[region]
        if keys.shape != old.keys.shape or values.shape != old.values.shape:
            raise UsageError(
                f"region {region} holds keys {old.keys.shape} and values {old.values.shape}, found "
                f"{keys.shape} and {values.shape}"
            )
        new = replace(old, keys=keys.astype(old.keys.dtype), values=values.astype(old.values.dtype))
        regions = (*self.regions[:region], new, *self.regions[region + 1 :])
        return StateSnapshot(self.length, regions)

    def sha256(self) -> str:
        """Return the sha256 of the length and all rows with their positions, little-endian."""
        digest = hashlib.sha256(self.length.to_bytes(8, "little"))
        for region in self.regions:
            for part in (region.positions, region.keys, region.values):
                digest.update(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()


class State:
    """All regions of a run, and how many positions they hold.

    Parameters
    ----------
    regions : iterable of KvRegion
        In layer order.

    Attributes
    ----------
    length : int
        Positions that have been advanced.
    """

    def __init__(self, regions: Iterable[KvRegion]) -> None:
        self._regions = {region.spec.layer: region for region in regions}
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes that all regions occupy."""
        return sum(region.nbytes for region in self._regions.values())

    def region(self, layer: int) -> KvRegion:
        """Return the region of a layer."""
        return self._regions[layer]

    def snapshot(self) -> StateSnapshot:
        """Copy the state; :meth:`restore` makes it as if nothing had happened since."""
        regions = tuple(region.snapshot(self.length) for region in self._regions.values())
        return StateSnapshot(self.length, regions)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Return to the moment of a snapshot."""
        for region, rows in zip(self._regions.values(), snapshot.regions, strict=True):
            region.restore(rows)
        self.length = snapshot.length

    def can_truncate(self, length: int) -> bool:
        """Return whether going back to ``length`` positions loses no row that is still needed."""
        return 0 <= length <= self.length and all(
            region.can_truncate(self.length, length) for region in self._regions.values()
        )

    def truncate(self, length: int) -> None:
        """Forget all positions from ``length`` on.

        Raises
        ------
        UsageError
            If ``length`` is negative or beyond the state, or a window has already dropped a row
            that the shorter state would need.
        """
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot truncate a state of {self.length} positions to {length}")
        for layer, region in self._regions.items():
            if not region.can_truncate(self.length, length):
                raise UsageError(
                    f"cannot truncate to {length} positions: the window of layer {layer} has "
                    f"dropped rows that it would need; restore a snapshot instead"
                )
        self.length = length
