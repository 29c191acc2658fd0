"""Typed values of GGUF metadata: checked and skipped at opening, decoded when asked for.

Value types and layouts are those of the GGUF specification (ggml docs): little-endian scalars,
strings as u64 length and UTF-8 bytes, arrays as u32 element type, u64 count and elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from mmap import mmap
from typing import NoReturn

from larql.errors import SourceError
from larql.format.untrusted import shown

__all__ = ["Cursor", "Metadata", "StoredValue"]

MAX_NAME_BYTES = 65535
MAX_ALL_NAMES_BYTES = 16 << 20
MAX_ARRAY_ITEMS = 1 << 21
MAX_DEPTH = 4

STRING = 8
ARRAY = 9
_SCALARS: Mapping[int, tuple[str, struct.Struct]] = {
    0: ("u8", struct.Struct("<B")),
    1: ("i8", struct.Struct("<b")),
    2: ("u16", struct.Struct("<H")),
    3: ("i16", struct.Struct("<h")),
    4: ("u32", struct.Struct("<I")),
    5: ("i32", struct.Struct("<i")),
    6: ("f32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<B")),
    10: ("u64", struct.Struct("<Q")),
    11: ("i64", struct.Struct("<q")),
    12: ("f64", struct.Struct("<d")),
}
_BOOL = 7
_U32 = _SCALARS[4][1]
_U64 = _SCALARS[10][1]


@dataclass(frozen=True, slots=True)
class StoredValue:
    """Where a value is stored: its type code and the offset of its first byte."""

    type_code: int
    offset: int


class Cursor:
    """Reads a GGUF header front to back, checking each length against the file first.

    Parameters
    ----------
    data : mmap
        The file.
    where : str
        The file, to start messages with.
    """

    def __init__(self, data: mmap, where: str) -> None:
        self.data = data
        self.size = len(data)
        self.where = where
        self.position = 0
        self._name_bytes = 0
        self._items = 0

    def _need(self, count: int, what: str) -> None:
        if count > self.size - self.position:
            raise SourceError(
                f"{self.where}: {what} needs {count} bytes at byte {self.position}, but the file "
                f"has {self.size}; it is cut short or malformed"
            )

    def u32(self, what: str) -> int:
        """Read a u32; ``what`` names it in messages."""
        self._need(4, what)
        (value,) = _U32.unpack_from(self.data, self.position)
        self.position += 4
        return int(value)

    def u64(self, what: str) -> int:
        """Read a u64; ``what`` names it in messages."""
        self._need(8, what)
        (value,) = _U64.unpack_from(self.data, self.position)
        self.position += 8
        return int(value)

    def name(self, what: str) -> str:
        """Read the name of a key or tensor: not empty, at most 65535 bytes, UTF-8."""
        length = self.u64(f"length of {what}")
        self._need(length, what)
        if not 0 < length <= MAX_NAME_BYTES:
            raise SourceError(
                f"{self.where}: {what} at byte {self.position} has {length} bytes; expected 1 to "
                f"{MAX_NAME_BYTES}"
            )
        self._name_bytes += length
        if self._name_bytes > MAX_ALL_NAMES_BYTES:
            raise SourceError(
                f"{self.where}: keys and tensor names take more than {MAX_ALL_NAMES_BYTES} bytes; "
                "the file is malformed"
            )
        raw = self.data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise SourceError(f"{self.where}: {what} {raw[:40]!r} is not UTF-8") from None

    def skip_value(self, key: str) -> StoredValue:
        """Step over a typed value, checking that it lies inside the file."""
        type_code = self.u32(f"type of {shown(key)}")
        start = self.position
        self._skip(type_code, key, 0)
        return StoredValue(type_code, start)

    def _skip(self, type_code: int, key: str, depth: int) -> None:
        if type_code in _SCALARS:
            self._need(_SCALARS[type_code][1].size, f"value of {shown(key)}")
            self.position += _SCALARS[type_code][1].size
        elif type_code == STRING:
            self._skip_strings(1, key)
        elif type_code == ARRAY:
            self._skip_array(key, depth)
        else:
            self._unknown_type(type_code, key)

    def _unknown_type(self, type_code: int, key: str) -> NoReturn:
        raise SourceError(
            f"{self.where}: metadata key {shown(key)} has unknown value type {type_code}; "
            "expected 0 to 12"
        )

    def _skip_array(self, key: str, depth: int) -> None:
        if depth == MAX_DEPTH:
            raise SourceError(
                f"{self.where}: metadata key {shown(key)} nests arrays more than {MAX_DEPTH} deep"
            )
        item_type = self.u32(f"array type of {shown(key)}")
        count = self.u64(f"array length of {shown(key)}")
        if item_type in _SCALARS:
            nbytes = count * _SCALARS[item_type][1].size
            self._need(nbytes, f"array {shown(key)} of {count} items")
            self.position += nbytes
            return
        if item_type not in (STRING, ARRAY):
            self._unknown_type(item_type, key)
        # The shortest string is 8 bytes of length, the shortest array 12 of type and length.
        self._need(count * 8, f"array {shown(key)} of {count} items")
        self._items += count
        if self._items > MAX_ARRAY_ITEMS:
            raise SourceError(
                f"{self.where}: metadata arrays up to {shown(key)} have more than "
                f"{MAX_ARRAY_ITEMS} strings; the file is malformed"
            )
        if item_type == STRING:
            self._skip_strings(count, key)
            return
        for _ in range(count):
            self._skip(item_type, key, depth + 1)

    def _skip_strings(self, count: int, key: str) -> None:
        data, position, last = self.data, self.position, self.size - 8
        unpack = _U64.unpack_from
        for _ in range(count):
            if position > last:
                self._outside(key)
            position += 8 + unpack(data, position)[0]
        if position > self.size:
            self._outside(key)
        self.position = position

    def _outside(self, key: str) -> NoReturn:
        raise SourceError(
            f"{self.where}: a string of metadata key {shown(key)} reaches beyond the file of "
            f"{self.size} bytes; it is cut short or malformed"
        )


class Metadata(Mapping[str, object]):
    """Metadata of a GGUF file by key; each access decodes the value anew.

    Scalars come as int, float, bool or str, arrays as (nested) lists of these. Decoding 262,144
    strings takes tens of milliseconds: keep the list rather than asking again.

    Parameters
    ----------
    data : mmap
        The file. It stays mapped as long as this object lives, also after the checkpoint closes.
    where : str
        The file, to start messages with.
    values : Mapping of str to StoredValue
        Values that a :class:`Cursor` found inside the file.
    """

    def __init__(self, data: mmap, where: str, values: Mapping[str, StoredValue]) -> None:
        self._data = data
        self._where = where
        self._values = dict(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> object:
        """Decode a value.

        Raises
        ------
        KeyError
            If there is no such key.
        SourceError
            If a string is not UTF-8 (see :meth:`raw_strings`) or a bool is neither 0 nor 1.
        """
        stored = self._values[key]
        value, _ = self._decode(stored.type_code, stored.offset, key)
        return value

    def type_name(self, key: str) -> str:
        """Return the stored type of a value: ``"u32"``, ``"string"``, ``"array of i32"``, ..."""
        stored = self._values[key]
        type_code, offset, prefix = stored.type_code, stored.offset, ""
        while type_code == ARRAY:
            type_code, count, offset = self._array(offset)
            prefix += "array of "
            if type_code == ARRAY and count == 0:
                return prefix + "array"
        return prefix + ("string" if type_code == STRING else _SCALARS[type_code][0])

    def array_length(self, key: str) -> int:
        """Return the number of items of an array without decoding it.

        Raises
        ------
        SourceError
            If the value is not an array.
        """
        return self._require_array(key)[1]

    def raw_strings(self, key: str) -> list[bytes]:
        """Return an array of strings as stored bytes, which need not be UTF-8.

        Raises
        ------
        SourceError
            If the value is not an array of strings.
        """
        item_type, count, offset = self._require_array(key)
        if item_type != STRING:
            raise SourceError(
                f"{self._where}: metadata key {shown(key)} is {self.type_name(key)}; expected "
                "array of string"
            )
        return self._strings(count, offset)[0]

    def _require_array(self, key: str) -> tuple[int, int, int]:
        stored = self._values[key]
        if stored.type_code != ARRAY:
            raise SourceError(
                f"{self._where}: metadata key {shown(key)} is {self.type_name(key)}; expected an "
                "array"
            )
        return self._array(stored.offset)

    def _array(self, offset: int) -> tuple[int, int, int]:
        """Return item type, count and the offset of the first item."""
        (item_type,) = _U32.unpack_from(self._data, offset)
        (count,) = _U64.unpack_from(self._data, offset + 4)
        return item_type, count, offset + 12

    def _strings(self, count: int, offset: int) -> tuple[list[bytes], int]:
        data, unpack = self._data, _U64.unpack_from
        strings = []
        for _ in range(count):
            start = offset + 8
            offset = start + unpack(data, offset)[0]
            strings.append(data[start:offset])
        return strings, offset

    def _decode(self, type_code: int, offset: int, key: str) -> tuple[object, int]:
        """Decode one value, returning it and the offset after it."""
        if type_code == STRING:
            strings, end = self._strings(1, offset)
            return self._text(strings, key)[0], end
        if type_code != ARRAY:
            values, end = self._scalars(type_code, 1, offset, key)
            return values[0], end
        item_type, count, offset = self._array(offset)
        if item_type == STRING:
            strings, end = self._strings(count, offset)
            return self._text(strings, key), end
        if item_type != ARRAY:
            return self._scalars(item_type, count, offset, key)
        items = []
        for _ in range(count):
            item, offset = self._decode(ARRAY, offset, key)
            items.append(item)
        return items, offset

    def _scalars(
        self, type_code: int, count: int, offset: int, key: str
    ) -> tuple[list[int] | list[float] | list[bool], int]:
        _, scalar = _SCALARS[type_code]
        end = offset + count * scalar.size
        values = list(struct.unpack_from(f"<{count}{scalar.format[1:]}", self._data, offset))
        if type_code != _BOOL:
            return values, end
        if any(value > 1 for value in values):
            raise SourceError(
                f"{self._where}: metadata key {shown(key)} holds bool {max(values)}; expected 0 "
                "or 1"
            )
        return [value == 1 for value in values], end

    def _text(self, strings: list[bytes], key: str) -> list[str]:
        try:
            return [string.decode("utf-8") for string in strings]
        except UnicodeDecodeError as problem:
            raise SourceError(
                f"{self._where}: metadata key {shown(key)} holds {problem.object[:40]!r}, which is "
                "not UTF-8"
            ) from None
