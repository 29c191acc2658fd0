"""The header of a safetensors file, read strictly and written deterministically.

A file is a u64 little-endian header length, that many bytes of JSON, and the tensors' bytes. The
JSON maps each tensor name to ``{"dtype", "shape", "data_offsets"}`` with offsets from the end of
the header, and ``__metadata__`` to an object of strings. The tensors tile the rest of the file:
no hole, no overlap, nothing after the last one (safetensors format description; limits and dtypes
follow the reference crate).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import NoReturn

from larql.errors import ContainerError, LarqlError, SourceError
from larql.format.json_scan import JsonScanner
from larql.format.untrusted import POINTER_LIMIT, read_exactly, refuse_pointer, shown

__all__ = [
    "DTYPE_BITS",
    "Header",
    "HeaderEntry",
    "check_tiling",
    "contiguous_entries",
    "parse_header",
    "serialize_header",
]

MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 65535
MAX_METADATA_BYTES = 8 << 20
METADATA_KEY = "__metadata__"

DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("F4",), 4),
        **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
        **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
        **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
        **dict.fromkeys(("U32", "I32", "F32"), 32),
        **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    }
)
"""Bits of one element, for every dtype of the format."""

_W = rb"[ \t\r\n]*+"
_INTEGER = rb"-?(?:0|[1-9][0-9]{0,19})"
_FIELD = (
    rb'(?:"dtype"%(w)b:%(w)b"([A-Z0-9_]{1,32})"'
    rb'|"shape"%(w)b:%(w)b\[(%(w)b(?:%(i)b%(w)b(?:,%(w)b%(i)b%(w)b){0,31})?)\]'
    rb'|"data_offsets"%(w)b:%(w)b\[%(w)b(%(i)b)%(w)b,%(w)b(%(i)b)%(w)b\])'
) % {b"w": _W, b"i": _INTEGER}
# Three fields, and after each a comma that does not end the object, or the end of the object.
_ENTRY = re.compile(
    rb"%(w)b\{(?:%(w)b%(f)b%(w)b(?:,(?!%(w)b\})|(?=\}))){3}\}" % {b"w": _W, b"f": _FIELD}
)
_MAX_I64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """One tensor of a header.

    Attributes
    ----------
    dtype : str
        Name in ``DTYPE_BITS``.
    shape : tuple of int
        Row-major, outermost first.
    begin, end : int
        Byte range from the end of the header (``Header.data_start``).
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A parsed header.

    Attributes
    ----------
    entries : Mapping of str to HeaderEntry
        By name, in the order of their bytes.
    metadata : Mapping of str to str
        The content of ``__metadata__``.
    data_start : int
        Where the tensors' bytes begin in the file.
    """

    entries: Mapping[str, HeaderEntry]
    metadata: Mapping[str, str]
    data_start: int


def parse_header(
    descriptor: int, size: int, where: str, error: type[LarqlError] = SourceError
) -> Header:
    """Read and check the header of an open safetensors file.

    Parameters
    ----------
    descriptor : int
        File descriptor; its position is neither used nor moved.
    size : int
        Bytes of the file.
    where : str
        The file, to start messages with.
    error : type of LarqlError
        The class to raise.

    Returns
    -------
    Header
        Entries that tile the file exactly.

    Raises
    ------
    LarqlError
        Of class ``error``: a Git LFS pointer in place of the file, a header length beyond the file
        or above 100 MB, text that is not UTF-8 or not JSON of the expected form, a duplicate key,
        an unknown dtype, offsets that are negative, reversed or outside the file, a shape whose
        product overflows or whose size differs from the offsets, tensors that overlap or leave a
        hole, bytes after the last tensor.
    """
    head = read_exactly(descriptor, 0, min(size, POINTER_LIMIT), where, error)
    refuse_pointer(head, where, error)
    if size < 8:
        raise error(
            f"{where}: {size} bytes are too few for a safetensors file; it is cut short or is "
            "something else"
        )
    length = int.from_bytes(head[:8], "little")
    if length > size - 8:
        raise error(
            f"{where}: header length {length} goes beyond the file of {size} bytes; it is cut "
            "short or is not a safetensors file"
        )
    if length > MAX_HEADER_BYTES:
        raise error(
            f"{where}: header length {length} is above the limit of {MAX_HEADER_BYTES} bytes"
        )
    text = read_exactly(descriptor, 8, length, where, error)
    # Counted before parsing, which takes some 7 us a tensor. Inside a string it would be escaped.
    if text.count(b'"data_offsets"') > MAX_TENSORS:
        raise error(f"{where}: header describes more than {MAX_TENSORS} tensors")
    scanner = JsonScanner(text, f"{where}: safetensors header", error)
    if scanner.peek() != b"{":
        raise error(f"{where}: safetensors header is not a JSON object")
    entries, metadata = _scan(scanner, size - 8 - length, where, error)
    scanner.end()
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    check_tiling(ordered, size - 8 - length, where, error)
    return Header(MappingProxyType(ordered), MappingProxyType(metadata), 8 + length)


def _scan(
    scanner: JsonScanner, data_bytes: int, where: str, error: type[LarqlError]
) -> tuple[dict[str, HeaderEntry], dict[str, str]]:
    entries: dict[str, HeaderEntry] = {}
    metadata: dict[str, str] = {}
    for name in scanner.members(MAX_NAME_BYTES, MAX_TENSORS + 1):
        if name == METADATA_KEY:
            start = scanner.position
            for key in scanner.members(MAX_NAME_BYTES, MAX_TENSORS):
                metadata[key] = scanner.string(MAX_METADATA_BYTES)
                if scanner.position - start > MAX_METADATA_BYTES:
                    scanner.fail(f"metadata of at most {MAX_METADATA_BYTES} bytes")
            continue
        if not name:
            raise error(f"{where}: a tensor has an empty name")
        entries[name] = _entry(scanner, name, data_bytes, where, error)
    return entries, metadata


def _entry(
    scanner: JsonScanner, name: str, data_bytes: int, where: str, error: type[LarqlError]
) -> HeaderEntry:
    found = scanner.match(_ENTRY)
    if found is None:
        _explain_entry(scanner, name, where, error)
    dtype, axes, begin_text, end_text = found.groups()
    # Three fields filled three different alternatives, or one alternative stood twice.
    if dtype is None or axes is None or begin_text is None:
        raise error(
            f"{where}: entry of tensor {shown(name)} has a duplicate key; expected dtype, shape "
            "and data_offsets once each"
        )
    shape = tuple(map(int, axes.split(b","))) if axes.strip() else ()
    entry = HeaderEntry(dtype.decode(), shape, int(begin_text), int(end_text))
    _check_entry(entry, name, data_bytes, where, error)
    return entry


def _explain_entry(
    scanner: JsonScanner, name: str, where: str, error: type[LarqlError]
) -> NoReturn:
    scanner.peek()
    piece = scanner.data[scanner.position : scanner.position + 4096]
    piece = piece[: piece.find(b"}") + 1]
    for field in (b'"dtype"', b'"shape"', b'"data_offsets"'):
        if piece.count(field) > 1:
            raise error(
                f"{where}: entry of tensor {shown(name)} has duplicate key {field.decode()}"
            )
    raise error(
        f"{where}: entry of tensor {shown(name)} is {shown(piece.decode('utf-8', 'replace'))}, "
        "expected an object of dtype (string), shape (at most 32 integers) and data_offsets (two)"
    )


def _check_entry(
    entry: HeaderEntry, name: str, data_bytes: int, where: str, error: type[LarqlError]
) -> None:
    """Check one entry by itself: everything that does not depend on its neighbours."""
    bits = DTYPE_BITS.get(entry.dtype)
    begin, end = entry.begin, entry.end
    elements = prod(entry.shape)
    if bits is None:
        problem = f"has unknown dtype {shown(entry.dtype)}; expected one of {', '.join(DTYPE_BITS)}"
    elif begin < 0 or end < 0:
        problem = f"has negative offsets [{begin}, {end}]"
    elif begin > end:
        problem = f"has reversed offsets [{begin}, {end}]; expected begin <= end"
    elif end > data_bytes:
        problem = (
            f"ends at byte {end} of the data, but the file has {data_bytes}; it is cut short, "
            "fetch it again"
        )
    elif min(entry.shape, default=0) < 0:
        problem = f"has a negative axis in shape {list(entry.shape)}"
    elif (elements or prod(axis or 1 for axis in entry.shape)) * bits > _MAX_I64:
        problem = f"has shape {list(entry.shape)}, whose product overflows 64 bits"
    elif elements * bits != 8 * (end - begin):
        problem = (
            f"is {entry.dtype} of shape {list(entry.shape)}, {-(-elements * bits // 8)} "
            f"bytes, but its offsets hold {end - begin}"
        )
    else:
        return
    raise error(f"{where}: tensor {shown(name)} {problem}")


def check_tiling(
    entries: Mapping[str, HeaderEntry], data_bytes: int, where: str, error: type[LarqlError]
) -> None:
    """Check that ``entries``, in their order, cover the data exactly.

    Raises
    ------
    LarqlError
        Of class ``error``: two tensors overlap, there is a hole, or bytes follow the last one.
    """
    reached = 0
    last = None
    for name, entry in entries.items():
        if entry.begin < reached:
            raise error(
                f"{where}: tensors {shown(str(last))} and {shown(name)} overlap: the first ends at "
                f"byte {reached} of the data, the second begins at {entry.begin}"
            )
        if entry.begin > reached:
            raise error(
                f"{where}: hole of {entry.begin - reached} bytes before tensor {shown(name)}, "
                f"which begins at byte {entry.begin} of the data; expected {reached}"
            )
        reached = entry.end
        last = name
    if reached != data_bytes:
        raise error(
            f"{where}: {data_bytes - reached} trailing bytes after the last tensor, which ends at "
            f"byte {reached} of the data; expected none"
        )


def contiguous_entries(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
) -> dict[str, HeaderEntry]:
    """Place tensors one after another in the order given.

    Parameters
    ----------
    tensors : iterable of (name, dtype, shape)
        Tensors of a file to be written; shapes are row-major.

    Returns
    -------
    dict of str to HeaderEntry
        The entries for :func:`serialize_header`.

    Raises
    ------
    ContainerError
        If a name appears twice. What else :func:`serialize_header` refuses, it refuses.
    """
    entries: dict[str, HeaderEntry] = {}
    reached = 0
    for name, dtype, shape in tensors:
        if name in entries:
            raise ContainerError(f"tensor {shown(name)} would be written twice into one file")
        bits = prod(shape) * DTYPE_BITS.get(dtype, 8)
        entries[name] = HeaderEntry(dtype, shape, reached, reached + bits // 8)
        reached += bits // 8
    return entries


def serialize_header(
    entries: Mapping[str, HeaderEntry],
    metadata: Mapping[str, str] | None = None,
    align: int = 64,
) -> bytes:
    """Serialise a header, length field included: the same input gives the same bytes.

    Parameters
    ----------
    entries : Mapping of str to HeaderEntry
        In the order of their bytes, covering ``[0, end of the last)`` exactly.
    metadata : Mapping of str to str, optional
        Written first, sorted by key. Absent from the header when empty.
    align : int
        The JSON is padded with spaces so that the data starts at a multiple of this many bytes.

    Returns
    -------
    bytes
        What stands before the first tensor; its length is the data start.

    Raises
    ------
    ContainerError
        If :func:`parse_header` would refuse the result.
    """
    where = "safetensors header to be written"
    data_bytes = max((entry.end for entry in entries.values()), default=0)
    document: dict[str, object] = {}
    if metadata:
        document[METADATA_KEY] = dict(sorted(metadata.items()))
    for name, entry in entries.items():
        if not name or name == METADATA_KEY:
            raise ContainerError(f"{where}: a tensor cannot be named {shown(name)}")
        _check_entry(entry, name, data_bytes, where, ContainerError)
        document[name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [entry.begin, entry.end],
        }
    check_tiling(entries, data_bytes, where, ContainerError)
    try:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise ContainerError(f"{where}: a name holds half a surrogate pair") from None
    text += b" " * (-(8 + len(text)) % align)
    if len(text) > MAX_HEADER_BYTES:
        raise ContainerError(f"{where}: {len(text)} bytes, above the limit of {MAX_HEADER_BYTES}")
    return len(text).to_bytes(8, "little") + text
