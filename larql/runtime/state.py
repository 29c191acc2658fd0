"""Continuation state: what a session keeps between steps, one or more typed regions for a block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from larql.errors import UsageError
from larql.format.graph import Site
from larql.runtime.regions import Floats, KvSnapshot, Region, RegionSnapshot

__all__ = ["Mark", "State", "StateSnapshot"]


@dataclass(frozen=True)
class StateSnapshot:
    """A copy of a whole state."""

    length: int
    regions: tuple[RegionSnapshot, ...]

    def changed(self, region: int, *, keys: Floats, values: Floats) -> StateSnapshot:
        """Return a snapshot with other rows in one region, to be restored in place of this one.

        Parameters
        ----------
        region : int
            Number of a region of keys and values, in execution order.
        keys, values : ndarray, shapes as in :attr:`regions`

        Raises
        ------
        UsageError
            If the region keeps something else, or the rows have another shape.
        """
        old = self.regions[region]
        if not isinstance(old, KvSnapshot):
            raise UsageError(f"region {region} does not hold keys and values")
        if keys.shape != old.keys.shape or values.shape != old.values.shape:
            raise UsageError(
                f"region {region} holds keys {old.keys.shape} and values {old.values.shape}, found "
                f"{keys.shape} and {values.shape}"
            )
        new = replace(old, keys=keys.astype(old.keys.dtype), values=values.astype(old.values.dtype))
        regions = (*self.regions[:region], new, *self.regions[region + 1 :])
        return StateSnapshot(self.length, regions)

    def sha256(self) -> str:
        """Return the sha256 of the length and all arrays of all regions, little-endian."""
        digest = hashlib.sha256(self.length.to_bytes(8, "little"))
        for region in self.regions:
            for part in region.arrays().values():
                digest.update(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Mark:
    """The state before a step, as far as the step may spoil it."""

    length: int
    copies: tuple[tuple[Region, RegionSnapshot], ...]


class State:
    """All regions of a run, and how many positions they hold.

    Parameters
    ----------
    regions : iterable of Region
        In execution order.

    Attributes
    ----------
    length : int
        Positions that have been advanced.
    """

    def __init__(self, regions: Iterable[Region]) -> None:
        self.regions = tuple(regions)
        self.length = 0
        self._whole = tuple(region for region in self.regions if region.whole)
        places: dict[tuple[int, Site], list[Region]] = {}
        for region in self.regions:
            places.setdefault((region.spec.layer, region.spec.site), []).append(region)
        self._places = {place: tuple(found) for place, found in places.items()}

    @property
    def nbytes(self) -> int:
        """Bytes that all regions occupy."""
        return sum(region.nbytes for region in self.regions)

    def at(self, layer: int, site: Site) -> tuple[Region, ...]:
        """Return the regions of one block, in the order of its operation's state; or none."""
        return self._places.get((layer, site), ())

    def snapshot(self) -> StateSnapshot:
        """Copy the state; :meth:`restore` makes it as if nothing had happened since."""
        return StateSnapshot(
            self.length, tuple(region.snapshot(self.length) for region in self.regions)
        )

    def restore(self, snapshot: StateSnapshot) -> None:
        """Return to the moment of a snapshot."""
        for region, kept in zip(self.regions, snapshot.regions, strict=True):
            region.restore(kept)
        self.length = snapshot.length

    def mark(self, several: bool) -> Mark:
        """Return what is needed to undo a step that begins now.

        Parameters
        ----------
        several : bool
            Whether the step is made of several blocks, which may overwrite what the state before
            it still needs; one block never does.
        """
        if not several:
            return Mark(self.length, ())
        copies = tuple(
            (region, region.snapshot(self.length))
            for region in self.regions
            if region.whole or self.length
        )
        return Mark(self.length, copies)

    def checkpoint(self, ahead: int) -> Mark:
        """Return what is needed to come back from at most ``ahead`` more positions.

        Rows are forgotten for that; copied are only states that cannot forget positions, and
        windows too small for so many.
        """
        copies = tuple(
            (region, region.snapshot(self.length))
            for region in self.regions
            if region.whole or not region.can_truncate(self.length + ahead, self.length)
        )
        return Mark(self.length, copies)

    def settle(self, length: int) -> None:
        """Take all positions before ``length`` as done, after they have been advanced."""
        for region in self._whole:
            region.settle()
        self.length = length

    def undo(self, mark: Mark) -> None:
        """Return to the moment of a mark."""
        for region, kept in mark.copies:
            region.restore(kept)
        self.length = mark.length

    def can_truncate(self, length: int) -> bool:
        """Return whether going back to ``length`` positions loses nothing that is still needed."""
        return 0 <= length <= self.length and all(
            region.can_truncate(self.length, length) for region in self.regions
        )

    def truncate(self, length: int) -> None:
        """Forget all positions from ``length`` on.

        Raises
        ------
        UsageError
            If ``length`` is negative or beyond the state, or a region cannot forget positions.
        """
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot truncate a state of {self.length} positions to {length}")
        for region in self.regions:
            if not region.can_truncate(self.length, length):
                raise UsageError(
                    f"cannot truncate to {length} positions: {region.why_not()}; restore a "
                    f"snapshot instead"
                )
        for region in self.regions:
            if length < self.length:
                region.truncate(length)
        self.length = length
