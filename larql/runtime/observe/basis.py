"""Bases that the carrier is projected on: drawn from a seed, or supplied; each with its hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError

__all__ = ["Basis", "load_basis", "seeded_basis"]


@dataclass(frozen=True, eq=False)
class Basis:
    """Rows that a carrier is multiplied with.

    Attributes
    ----------
    rows : float32 ``[dims, hidden]``
    seed : int or None
        What it was drawn from; None where it was supplied.
    """

    rows: npt.NDArray[np.float32]
    seed: int | None

    def sha256(self) -> str:
        """Return the sha256 of the rows as little-endian float32."""
        return hashlib.sha256(np.ascontiguousarray(self.rows, "<f4").tobytes()).hexdigest()


def seeded_basis(dims: int, hidden: int, seed: int) -> Basis:
    """Draw a basis of random signs: each element is +1 or -1, divided by the root of ``hidden``.

    Element i is negative where bit i % 8 of byte i // 8 is set in SHAKE-256 of
    ``larql basis SEED``: no library's generator has a say.

    Parameters
    ----------
    dims, hidden : int
        Shape.
    seed : int

    Raises
    ------
    UsageError
        If there are more rows than ``hidden``: they would say nothing that fewer do not.
    """
    if dims > hidden:
        raise UsageError(f"--basis-dims {dims}: expected at most the carrier's width, {hidden}")
    count = dims * hidden
    stream = hashlib.shake_256(f"larql basis {seed}".encode()).digest(-(-count // 8))
    bits = np.unpackbits(np.frombuffer(stream, np.uint8), count=count, bitorder="little")
    size = np.float32(1.0 / np.sqrt(np.float64(hidden)))
    rows = np.where(bits.reshape(dims, hidden) == 1, -size, size)
    return Basis(rows.astype(np.float32), seed)


def load_basis(path: Path, hidden: int) -> Basis:
    """Read a basis from a ``.npy`` file, float32 ``[dims, hidden]``.

    Raises
    ------
    UsageError
        If the file cannot be read or holds no such array.
    """
    try:
        rows = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as a .npy file: {error.strerror}") from None
    except (ValueError, EOFError):
        raise UsageError(
            f"{path}: cannot be read as a .npy file; expected a float32 matrix [dims, {hidden}] as "
            f"numpy.save writes it"
        ) from None
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.ndim != 2:
        raise UsageError(f"{path}: expected a float32 matrix [dims, {hidden}]")
    if rows.shape[0] < 1 or rows.shape[1] != hidden:
        raise UsageError(f"{path}: has shape {list(rows.shape)}, expected [dims, {hidden}]")
    if not np.isfinite(rows).all():
        raise UsageError(f"{path}: holds numbers that are not finite; a basis has none")
    return Basis(rows, None)
