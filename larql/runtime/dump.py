"""Dumps: float32 arrays written row by row, each with a sidecar that says where it came from."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.format.atomic import write_file
from larql.format.safetensors_header import contiguous_entries, serialize_header

__all__ = ["DumpHashes", "check_dump_path", "write_dump"]

Rows = npt.NDArray[np.float32]
SUFFIXES = (".npy", ".f32", ".safetensors")
_CANONICAL_NAN = np.uint32(0x7FC00000)


@dataclass(frozen=True)
class DumpHashes:
    """Hashes of a written dump.

    Attributes
    ----------
    sha256 : str
        Of the file.
    payload_sha256 : str
        Of the raw little-endian float32 values; comparisons use this one.
    """

    sha256: str
    payload_sha256: str


def check_dump_path(path: Path) -> None:
    """Refuse a dump path before any work is done.

    Raises
    ------
    UsageError
        If its suffix names no format, or its directory does not exist.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the directory {path.parent} does not exist; create it first")
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; expected a file name")


def _header(suffix: str, shape: tuple[int, int], tensor: str) -> bytes:
    if suffix == ".f32":
        return b""
    if suffix == ".safetensors":
        return serialize_header(contiguous_entries([(tensor, "F32", shape)]))
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def canonical(rows: Rows) -> npt.NDArray[np.float32]:
    """Return rows with every NaN as 0x7fc00000, little-endian."""
    rows = np.ascontiguousarray(rows, dtype="<f4")
    bad = np.isnan(rows)
    if bad.any():
        rows = rows.copy()
        rows.view(np.uint32)[bad] = _CANONICAL_NAN
    return rows


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with write_file(path) as temporary, temporary.open("wb") as stream:
        yield stream


def write_dump(
    path: Path, shape: tuple[int, int], rows: Iterable[Rows], tensor: str = "logits"
) -> DumpHashes:
    """Write a two-dimensional float32 dump.

    Parameters
    ----------
    path : Path
        Its suffix names the format: ``.npy``, ``.f32`` (raw) or ``.safetensors``.
    shape : (int, int)
        Of the whole dump.
    rows : iterable of float32 ``[n, columns]``
        Consecutive pieces.
    tensor : str
        Name of the tensor in a ``.safetensors`` dump.

    Raises
    ------
    OutputError
        If the file cannot be written; none is left behind.
    """
    file_digest, payload_digest = hashlib.sha256(), hashlib.sha256()
    with _opened(path) as stream:
        header = _header(path.suffix, shape, tensor)
        stream.write(header)
        file_digest.update(header)
        count = 0
        for piece in rows:
            data = canonical(piece).tobytes()
            stream.write(data)
            file_digest.update(data)
            payload_digest.update(data)
            count += len(piece)
        if count != shape[0]:
            raise ValueError(f"{path}: {count} rows were given, expected {shape[0]}")
    return DumpHashes(file_digest.hexdigest(), payload_digest.hexdigest())
