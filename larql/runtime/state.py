"""Continuation state: what a session keeps between steps, one typed region for each layer.

Rows are kept in a ring: the row of absolute position p stands at ``p % capacity``. A full region
has room for every position of the session; a windowed one has room for its window plus the largest
block that is ever advanced at once, so writing a block never overwrites a row that one of its own
queries may see, nor one that the state before the block still needs.
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

__all__ = ["KvRegion", "KvSnapshot", "State", "StateSnapshot"]

Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class KvSnapshot:
    """A copy of one region's rows, with the positions they belong to."""

    positions: npt.NDArray[np.int64]
    keys: Floats
    values: Floats


class KvRegion:
    """Key and value rows of one attention layer.

    Parameters
    ----------
    spec : KvRows
        Geometry from the plan.
    context : int
        Most positions that the session will hold.
    block : int
        Most positions that are advanced at once.
    dtype : type
        float32, or float64 for the reference backend.

    Attributes
    ----------
    keys : ndarray, shape ``[capacity, heads, key_dim]``
    values : ndarray, shape ``[capacity, heads, value_dim]``
    """

    def __init__(
        self, spec: KvRows, context: int, block: int, dtype: type[np.float32] | type[np.float64]
    ) -> None:
        self.spec = spec
        rows = context if spec.window is None else min(context, spec.window + block)
        self.capacity = max(rows, 1)
        self.keys: Floats = np.zeros((self.capacity, spec.heads, spec.key_dim), dtype=dtype)
        self.values: Floats = np.zeros((self.capacity, spec.heads, spec.value_dim), dtype=dtype)

    @property
    def nbytes(self) -> int:
        """Bytes that the region occupies."""
        return int(self.keys.nbytes + self.values.nbytes)

    def rows(self, part: Floats) -> Floats:
        """Return keys or values as a matrix, one row for each slot of the ring."""
        return part.reshape(self.capacity, -1)

    def write(self, start: int, keys: Floats, values: Floats) -> None:
        """Store rows of positions ``start, start + 1, …``."""
        slots = np.arange(start, start + len(keys)) % self.capacity
        self.keys[slots] = keys
        self.values[slots] = values

    def key_rows(self, positions: npt.NDArray[np.int64]) -> Floats:
        """Return the keys of positions that the region holds, ``[n, heads, key_dim]``."""
        rows: Floats = self.keys[positions % self.capacity]
        return rows

    def kept(self, length: int) -> npt.NDArray[np.int64]:
        """Return the positions that a state of ``length`` positions still needs, ascending."""
        window = self.spec.window
        first = 0 if window is None else max(0, length - window + 1)
        return np.arange(first, length, dtype=np.int64)

    def snapshot(self, length: int) -> KvSnapshot:
        """Copy the rows that a state of ``length`` positions needs."""
        positions = self.kept(length)
        slots = positions % self.capacity
        return KvSnapshot(positions, self.keys[slots].copy(), self.values[slots].copy())

    def restore(self, snapshot: KvSnapshot) -> None:
        """Put the rows of a snapshot back where they stood."""
        slots = snapshot.positions % self.capacity
        self.keys[slots] = snapshot.keys
        self.values[slots] = snapshot.values

    def can_truncate(self, length: int, to: int) -> bool:
        """Return whether going back from ``length`` to ``to`` positions loses no needed row."""
        needed = self.kept(to)
        return needed.size == 0 or int(needed[0]) >= length - self.capacity


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
