"""The header of one GGUF file: metadata, tensor table, and where the data starts.

Layout (GGUF specification, ggml docs): magic, u32 version, u64 tensor count, u64 metadata count,
metadata, tensor table, padding to ``general.alignment``, tensor data. Offsets in the table count
from the start of the data; each tensor starts at the next multiple of the alignment.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from larql.errors import SourceError
from larql.format.encoding import from_ggml_type
from larql.format.source.checkpoint import GGUF_MAGIC, SourceTensor
from larql.format.source.gguf_metadata import Cursor, Metadata, StoredValue
from larql.format.source.weight_file import WeightFile
from larql.format.untrusted import POINTER_LIMIT, open_regular, refuse_pointer, shown

__all__ = ["GgufHeader", "read_gguf_header"]

ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_AXES = 4
_FIXED_BYTES = 24
_SMALLEST_KEY = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 1 + 4 + 4 + 8
_MAX_I64 = (1 << 63) - 1
_BEFORE_GGUF = (b"lmgg", b"fmgg", b"tjgg", b"algg", b"ggml", b"ggmf", b"ggjt", b"ggla")


@dataclass(frozen=True)
class GgufHeader:
    """What the header of one file says.

    Attributes
    ----------
    version : int
        2 or 3: the same layout.
    metadata : Metadata
        Values by key.
    tensors : tuple of SourceTensor
        In the order of their bytes.
    alignment : int
        Bytes.
    data_start : int
        Offset of the first tensor's first byte.
    file : WeightFile
        For reading the tensors.
    """

    version: int
    metadata: Metadata
    tensors: tuple[SourceTensor, ...]
    alignment: int
    data_start: int
    file: WeightFile


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check the header of a GGUF file.

    Parameters
    ----------
    path : Path
        The file. ``tensors`` carry its name without directory.

    Returns
    -------
    GgufHeader
        Tensors that tile the data, aligned, inside the file.

    Raises
    ------
    SourceError
        If the file is a Git LFS pointer, not GGUF, of version 1, big-endian or unknown version;
        if a length, count or string reaches beyond the file or above its limit; if a key or tensor
        name is empty or stands twice; if a value type is unknown, the alignment not a power of
        two, a tensor of more than 4 axes, of a zero axis, of more than 2^63 - 1 elements, of rows
        that are not whole blocks, unaligned, outside the file, overlapping, or after a hole.
    UnsupportedRefusal
        If a tensor has an encoding that this build does not decode.
    """
    where = str(path)
    with open_regular(path, SourceError) as (descriptor, status):
        if status.st_size < _FIXED_BYTES:
            raise SourceError(
                f"{where}: {status.st_size} bytes are too few for a GGUF file; it is cut short"
            )
        try:
            data = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        except ValueError as problem:
            raise SourceError(f"{where}: cannot map the file: {problem}") from None
    cursor = Cursor(data, where)
    version = _version(cursor)
    tensor_count = cursor.u64("tensor count")
    key_count = cursor.u64("metadata count")
    _check_count(cursor, key_count, MAX_KEYS, _SMALLEST_KEY, "metadata keys")
    values: dict[str, StoredValue] = {}
    for _ in range(key_count):
        key = cursor.name("a metadata key")
        if key in values:
            raise SourceError(f"{where}: duplicate metadata key {shown(key)}; expected it once")
        values[key] = cursor.skip_value(key)
    metadata = Metadata(data, where, values)
    alignment = _alignment(metadata, where)
    _check_count(cursor, tensor_count, MAX_TENSORS, _SMALLEST_TENSOR, "tensors")
    rows = _read_table(cursor, tensor_count, path.name)
    data_start = _align(cursor.position, alignment)
    tensors = _place(rows, data_start, alignment, len(data), where)
    return GgufHeader(version, metadata, tensors, alignment, data_start, WeightFile(path, status))


def _align(offset: int, alignment: int) -> int:
    return offset + -offset % alignment


def _version(cursor: Cursor) -> int:
    head = cursor.data[:POINTER_LIMIT]
    refuse_pointer(head, cursor.where, SourceError)
    magic = head[:4]
    if magic in _BEFORE_GGUF:
        raise SourceError(
            f"{cursor.where}: is a GGML file from before GGUF (magic {magic!r}); convert the "
            "original checkpoint again"
        )
    if magic != GGUF_MAGIC:
        raise SourceError(
            f"{cursor.where}: begins with {magic!r}, expected {GGUF_MAGIC!r}; not a GGUF file"
        )
    cursor.position = 4
    version = cursor.u32("version")
    if version in (2, 3):
        return version
    if version == 1:
        raise SourceError(
            f"{cursor.where}: is GGUF version 1, expected 2 or 3; convert the original checkpoint "
            "again"
        )
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped < 65536:
        raise SourceError(
            f"{cursor.where}: is a big-endian GGUF file (version {swapped}); expected "
            "little-endian, convert the original checkpoint again"
        )
    raise SourceError(f"{cursor.where}: is GGUF version {version}, which is unknown; expected 2-3")


def _check_count(cursor: Cursor, count: int, limit: int, smallest: int, what: str) -> None:
    room = (cursor.size - cursor.position) // smallest
    if count > room:
        raise SourceError(
            f"{cursor.where}: declares {count} {what}, but the file of {cursor.size} bytes has "
            f"room for {room} at most; it is cut short or malformed"
        )
    if count > limit:
        raise SourceError(
            f"{cursor.where}: declares {count} {what}, above the limit of {limit}; it is malformed"
        )


def _alignment(metadata: Metadata, where: str) -> int:
    value = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool):
        raise SourceError(
            f"{where}: {ALIGNMENT_KEY} is {metadata.type_name(ALIGNMENT_KEY)}; expected u32"
        )
    if value <= 0 or value & (value - 1):
        raise SourceError(f"{where}: {ALIGNMENT_KEY} is {value}; expected a power of two")
    return value


def _read_table(cursor: Cursor, count: int, file_name: str) -> list[SourceTensor]:
    """Read the tensor table; offsets still count from the start of the data."""
    rows: dict[str, SourceTensor] = {}
    for _ in range(count):
        name = cursor.name("a tensor name")
        if name in rows:
            raise SourceError(f"{cursor.where}: duplicate tensor {shown(name)}; expected it once")
        rows[name] = _read_row(cursor, name, file_name)
    return list(rows.values())


def _read_row(cursor: Cursor, name: str, file_name: str) -> SourceTensor:
    where = f"{cursor.where}: tensor {shown(name)}"
    axes = cursor.u32(f"number of axes of {shown(name)}")
    if axes > MAX_AXES:
        raise SourceError(f"{where} has {axes} axes; expected at most {MAX_AXES}")
    shape = tuple(reversed([cursor.u64(f"an axis of {shown(name)}") for _ in range(axes)]))
    type_code = cursor.u32(f"type of {shown(name)}")
    offset = cursor.u64(f"offset of {shown(name)}")
    if 0 in shape:
        raise SourceError(f"{where} has shape {list(shape)} with a zero axis")
    if prod(shape) > _MAX_I64:
        raise SourceError(f"{where} has shape {list(shape)}, whose product overflows 64 bits")
    encoding = from_ggml_type(type_code, where)
    columns = shape[-1] if shape else 1
    if columns % encoding.block_elements:
        raise SourceError(
            f"{where} is {encoding.name.upper()} with rows of {columns} elements; expected a "
            f"multiple of {encoding.block_elements}"
        )
    return SourceTensor(
        name=name,
        shape=shape,
        dtype=encoding.name.upper(),
        known_encoding=encoding,
        file=file_name,
        offset=offset,
        nbytes=encoding.nbytes(shape),
    )


def _place(
    rows: list[SourceTensor], data_start: int, alignment: int, size: int, where: str
) -> tuple[SourceTensor, ...]:
    """Check the rows against each other and the file, and make their offsets absolute."""
    rows = sorted(rows, key=lambda row: row.offset)
    needed = data_start + max((row.offset + row.nbytes for row in rows), default=0)
    placed: list[SourceTensor] = []
    reached = 0
    for row in rows:
        label = f"{where}: tensor {shown(row.name)}"
        end = data_start + row.offset + row.nbytes
        expected = _align(reached, alignment)
        if row.offset % alignment:
            raise SourceError(
                f"{label} has offset {row.offset}, which is not a multiple of the alignment "
                f"{alignment}"
            )
        if row.offset < reached:
            raise SourceError(
                f"{label} at offset {row.offset} overlaps tensor {shown(placed[-1].name)}, which "
                f"ends at {reached}"
            )
        if end > size:
            raise SourceError(
                f"{label} ends at byte {end}, but the file has {size} bytes (all tensors need "
                f"{needed}); it is cut short, fetch it again"
            )
        if row.offset != expected:
            raise SourceError(
                f"{label} has offset {row.offset}, expected {expected}: there is a hole before it"
            )
        placed.append(replace(row, offset=data_start + row.offset))
        reached = row.offset + row.nbytes
    return tuple(placed)
