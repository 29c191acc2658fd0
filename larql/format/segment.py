"""One segment: a safetensors file that holds the tensors of one logical object.

Block-quantised tensors are kept as their stored bytes, dtype U8 and shape ``[rows, row bytes]``;
encoding and logical shape are facts of the index.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import ContainerError
from larql.format.digest import hash_descriptor
from larql.format.encoding import Encoding
from larql.format.index import FileEntry
from larql.format.safetensors_header import (
    Header,
    contiguous_entries,
    parse_header,
    serialize_header,
)
from larql.format.untrusted import chunks_at, open_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "Segment",
    "SegmentTensor",
    "advise_alone",
    "hash_file",
    "map_file",
    "stored_shape",
    "write_segment",
    "write_stream",
]

_CHUNK = 8 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ (Linux 5.14), which Python has no name for


@dataclass(frozen=True)
class SegmentTensor:
    """A tensor to be written: its name, encoding, logical shape and a source of stored bytes."""

    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    chunks: Iterable[bytes]


def stored_shape(encoding: Encoding, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape under which a tensor stands in a segment's header."""
    if encoding.safetensors_dtype != "U8":
        return shape
    return (*shape[:-1], encoding.row_bytes(shape[-1]))


def write_stream(path: Path, chunks: Iterable[bytes]) -> FileEntry:
    """Write and sync a file chunk by chunk, hashing on the way.

    Returns
    -------
    FileEntry
        Size and sha256 of what was written.
    """
    digest = hashlib.sha256()
    size = 0
    # The system caches a file in pages as large as what was written at once: larger reads faster.
    with path.open("wb", _CHUNK) as stream:
        for chunk in chunks:
            stream.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        stream.flush()
        os.fsync(stream.fileno())
    return FileEntry(size, digest.hexdigest())


def write_segment(path: Path, tensors: Iterable[SegmentTensor]) -> FileEntry:
    """Write a segment without holding a whole tensor.

    Raises
    ------
    ContainerError
        If a tensor's chunks are not as long as its encoding and shape say.
    """
    listed = list(tensors)
    entries = contiguous_entries(
        (t.name, t.encoding.safetensors_dtype, stored_shape(t.encoding, t.shape)) for t in listed
    )

    def stream() -> Iterator[bytes]:
        yield serialize_header(entries)
        for tensor in listed:
            expected = tensor.encoding.nbytes(tensor.shape)
            written = 0
            for chunk in tensor.chunks:
                written += len(chunk)
                yield chunk
            if written != expected:
                raise ContainerError(
                    f"{path.name}: tensor {tensor.name} gave {written} bytes, expected {expected}"
                )

    return write_stream(path, stream())


def hash_file(path: Path, advance: Callable[[int], object] | None = None) -> FileEntry:
    """Return size and sha256 of a file, read in pieces of which ``advance`` is told.

    Raises
    ------
    ContainerError
        If it is missing, not a regular file or unreadable.
    """
    with open_regular(path, ContainerError) as (descriptor, _status):
        return FileEntry(*hash_descriptor(descriptor, advance))


def map_file(path: Path, size: int) -> mmap.mmap:
    """Map a file that had ``size`` bytes when it was examined.

    Raises
    ------
    ContainerError
        If it has another size now, or cannot be opened.
    """
    with open_regular(path, ContainerError) as (descriptor, status):
        if status.st_size != size:
            raise ContainerError(f"{path}: changed size while it was open")
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def advise_alone(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Have the system read a range of a mapping now, and nothing around what is read later."""
    first = begin - begin % mmap.PAGESIZE
    with suppress(OSError):
        mapped.madvise(mmap.MADV_RANDOM)
        mapped.madvise(mmap.MADV_WILLNEED, first, end - first)


class Segment:
    """A segment opened for reading: its header is parsed, its payload mapped on first use.

    Parameters
    ----------
    path : Path
        The file.
    header : Header or None
        What the file holds, where that is stated elsewhere and it has no header of its own.

    Raises
    ------
    ContainerError
        If the file is missing, is not a well-formed safetensors file, or is shorter than a header
        from elsewhere says.
    """

    def __init__(self, path: Path, header: Header | None = None) -> None:
        self.path = path
        with open_regular(path, ContainerError) as (descriptor, status):
            self.size = status.st_size
            self.header: Header = header or parse_header(
                descriptor, status.st_size, str(path), ContainerError
            )
        for name, entry in self.header.entries.items():
            if self.header.data_start + entry.end > self.size:
                raise ContainerError(
                    f"{path}: has {self.size} bytes, but tensor {name} ends at byte "
                    f"{self.header.data_start + entry.end}; the file is cut short"
                )
        self._map: mmap.mmap | None = None

    @property
    def header_bytes(self) -> int:
        """Bytes that stand before the first tensor."""
        return self.header.data_start

    def check(self, name: str, encoding: Encoding, shape: tuple[int, ...]) -> None:
        """Refuse a tensor that is not stored as the index says.

        Raises
        ------
        ContainerError
            If the tensor is missing, or has another dtype or stored shape.
        """
        entry = self.header.entries.get(name)
        if entry is None:
            raise ContainerError(f"{self.path}: tensor {name} is missing from the segment")
        expected = (encoding.safetensors_dtype, stored_shape(encoding, shape))
        if (entry.dtype, entry.shape) != expected:
            raise ContainerError(
                f"{self.path}: tensor {name} is stored as {entry.dtype} {list(entry.shape)}, "
                f"expected {expected[0]} {list(expected[1])} for {encoding.name}"
            )

    def bytes_of(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a tensor's stored bytes as a read-only mapped view of shape ``[nbytes]``."""
        import numpy as np

        entry = self.header.entries[name]
        if entry.end == entry.begin:
            return np.empty(0, dtype=np.uint8)
        return np.frombuffer(
            self._mapped(),
            dtype=np.uint8,
            count=entry.end - entry.begin,
            offset=self.header.data_start + entry.begin,
        )

    def alone(self, name: str) -> npt.NDArray[np.uint8]:
        """As :meth:`bytes_of`, of a tensor that is read and whose neighbours are not.

        The system is told so, because it reads ahead of what a mapping is asked for.
        """
        entry = self.header.entries[name]
        begin, end = self.header.data_start + entry.begin, self.header.data_start + entry.end
        if begin < end:
            advise_alone(self._mapped(), begin, end)
        return self.bytes_of(name)

    def prefault(self, name: str) -> None:
        """Read a tensor's stored bytes into memory and map them, before anything uses them.

        Where the system cannot do that it is told that they will be needed.

        Raises
        ------
        ContainerError
            If they cannot be read.
        """
        entry = self.header.entries[name]
        begin, end = self.header.data_start + entry.begin, self.header.data_start + entry.end
        if begin == end:
            return
        first = begin - begin % mmap.PAGESIZE
        try:
            try:
                self._mapped().madvise(_POPULATE_READ, first, end - first)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._mapped().madvise(mmap.MADV_WILLNEED, first, end - first)
        except OSError as error:
            raise ContainerError(
                f"{self.path}: tensor {name} cannot be read into memory: {error.strerror}"
            ) from None

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            self._map = map_file(self.path, self.size)
        return self._map

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a tensor's stored bytes in pieces, without mapping them."""
        entry = self.header.entries[name]
        begin, count = self.header.data_start + entry.begin, entry.end - entry.begin
        where = f"{self.path}: tensor {name}"
        with open_regular(self.path, ContainerError) as (descriptor, _status):
            yield from chunks_at(descriptor, begin, count, where, ContainerError)
