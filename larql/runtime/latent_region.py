"""The state of latent attention, as it lies in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.format.graph import KvRows, LatentRows
from larql.runtime.regions import Floats, KvRegion, KvSnapshot, Region, RegionSnapshot, StateCost

__all__ = ["LatentRegion", "LatentSnapshot", "as_keys_and_values"]


def as_keys_and_values(spec: LatentRows) -> KvRows:
    """Return latent rows seen as keys of one head, whose values are their latents."""
    return KvRows(
        layer=spec.layer,
        heads=1,
        key_dim=spec.latent_dim + spec.rope_dim,
        value_dim=spec.latent_dim,
        span="full",
    )


@dataclass(frozen=True)
class LatentSnapshot(RegionSnapshot):
    """A copy of one region's rows, the same whatever order the region keeps them in.

    Attributes
    ----------
    positions : int64 [n]
        Absolute positions, ascending.
    rows : float [n, latent_dim + rope_dim]
    """

    positions: npt.NDArray[np.int64]
    rows: Floats

    def arrays(self) -> Mapping[str, Floats | npt.NDArray[np.int64]]:
        """Return positions and rows."""
        return {"positions": self.positions, "rows": self.rows}


class LatentRegion(Region):
    """Latent rows of one layer.

    Scores go over a row's numbers and sums over positions, so that attention reads the latents in
    two orders; they are kept in both.

    Parameters
    ----------
    spec : LatentRows
        Geometry from the plan.
    kept : KvRegion
        The rows as keys, and their latents as values; of :func:`as_keys_and_values`.
    """

    whole = False

    def __init__(self, spec: LatentRows, kept: KvRegion) -> None:
        self.spec: LatentRows = spec
        self.kept = kept

    @property
    def nbytes(self) -> int:
        """Bytes that the region occupies."""
        return self.kept.nbytes

    @property
    def cost(self) -> StateCost:
        """What a position sees, in both orders."""
        return self.kept.cost

    def snapshot(self, length: int) -> LatentSnapshot:
        """Copy the rows of all positions."""
        positions = self.kept.kept(length)
        return LatentSnapshot(positions, self.kept.key_rows(positions)[:, 0])

    def restore(self, snapshot: RegionSnapshot) -> None:
        """Put the rows of a snapshot back where they stood."""
        assert isinstance(snapshot, LatentSnapshot)
        keys = snapshot.rows[:, None]
        values = keys[:, :, : self.spec.latent_dim]
        self.kept.restore(KvSnapshot(snapshot.positions, keys, values))

    def can_truncate(self, length: int, to: int) -> bool:
        """Return whether going back loses nothing: it never does."""
        return self.kept.can_truncate(length, to)

    def truncate(self, to: int) -> None:
        """Do nothing: rows beyond a state's length are never seen."""

    def why_not(self) -> str:
        """Return what :meth:`can_truncate` never asks for."""
        return self.kept.why_not()
