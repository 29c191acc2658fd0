"""A small deterministic GGUF writer for tests, independent of the reader under test.

``header_bytes`` and ``tensor_bytes`` are the pieces that hostile variants are put together from.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TYPE_CODES = {
    "u8": 0,
    "i8": 1,
    "u16": 2,
    "i16": 3,
    "u32": 4,
    "i32": 5,
    "f32": 6,
    "bool": 7,
    "string": 8,
    "array": 9,
    "u64": 10,
    "i64": 11,
    "f64": 12,
}
_FORMATS = {
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "f32": "f",
    "bool": "?",
    "u64": "Q",
    "i64": "q",
    "f64": "d",
}
GGML_F32 = 0
GGML_F16 = 1
GGML_Q4_1 = 3
GGML_Q8_0 = 8
GGML_BF16 = 30

Tensor = tuple[str, tuple[int, ...], int, bytes]
"""Name, row-major shape, ggml type code, stored bytes."""


@dataclass(frozen=True)
class Typed:
    """A metadata value with an explicit type: ``Typed("u16", 3)``, ``Typed("i32", [1, 2])``.

    A list is an array of that type; ``Typed("array", [Typed(...), ...])`` is an array of arrays.
    """

    kind: str
    value: object


def u32(value: int) -> Typed:
    return Typed("u32", value)


def f32(value: float) -> Typed:
    return Typed("f32", value)


def _infer(value: object) -> Typed:
    if isinstance(value, Typed):
        return value
    if isinstance(value, bool):
        return Typed("bool", value)
    if isinstance(value, int):
        return Typed("u32" if 0 <= value < 1 << 32 else "i64", value)
    if isinstance(value, float):
        return Typed("f32", value)
    if isinstance(value, str | bytes):
        return Typed("string", value)
    if isinstance(value, Sequence) and value:
        kinds = {_infer(item).kind for item in value}
        if kinds <= {"u32", "i64"}:
            return Typed("i32", value)
        (kind,) = kinds
        return Typed(kind, value)
    raise TypeError(f"no GGUF type for {value!r}; use Typed")


def string_bytes(text: str | bytes) -> bytes:
    raw = text.encode("utf-8") if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _payload(kind: str, value: object) -> bytes:
    if kind == "string":
        assert isinstance(value, str | bytes)
        return string_bytes(value)
    return struct.pack("<" + _FORMATS[kind], value)


def _array(kind: str, items: Sequence[object]) -> bytes:
    if kind == "array":
        body = b"".join(_value(item)[4:] for item in items)
    else:
        body = b"".join(_payload(kind, item) for item in items)
    return struct.pack("<IQ", TYPE_CODES[kind], len(items)) + body


def _value(value: object) -> bytes:
    """Type code and payload of a value."""
    typed = _infer(value)
    if isinstance(typed.value, list | tuple):
        return struct.pack("<I", TYPE_CODES["array"]) + _array(typed.kind, typed.value)
    return struct.pack("<I", TYPE_CODES[typed.kind]) + _payload(typed.kind, typed.value)


def key_bytes(key: str | bytes, value: object) -> bytes:
    return string_bytes(key) + _value(value)


def row_bytes(name: str | bytes, dims: Sequence[int], ggml_type: int, offset: int) -> bytes:
    """One row of the tensor table; ``dims`` in GGUF order, contiguous axis first."""
    return (
        string_bytes(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", ggml_type, offset)
    )


def header_bytes(
    keys: Sequence[bytes],
    rows: Sequence[bytes],
    *,
    version: int = 3,
    key_count: int | None = None,
    tensor_count: int | None = None,
    magic: bytes = b"GGUF",
) -> bytes:
    counts = struct.pack(
        "<IQQ",
        version,
        len(rows) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    return magic + counts + b"".join(keys) + b"".join(rows)


def _pad(data: bytes, alignment: int) -> bytes:
    return data + b"\0" * (-len(data) % alignment)


def _file_bytes(
    metadata: Mapping[str, object], tensors: Sequence[Tensor], version: int, alignment: int
) -> bytes:
    rows, offset = [], 0
    for name, shape, ggml_type, data in tensors:
        rows.append(row_bytes(name, shape[::-1], ggml_type, offset))
        offset += len(_pad(data, alignment))
    keys = [key_bytes(key, value) for key, value in metadata.items()]
    header = header_bytes(keys, rows, version=version)
    return _pad(header, alignment) + b"".join(_pad(data, alignment) for *_, data in tensors)


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Sequence[Tensor],
    *,
    version: int = 3,
    alignment: int = 32,
    parts: int = 1,
) -> tuple[Path, ...]:
    """Write a GGUF model and return the files written.

    With ``parts`` above 1, ``<stem>-0000i-of-0000N.gguf`` files beside ``path`` instead of it: the
    metadata in the first, the tensors cut into runs of nearly equal count.
    """
    if alignment != 32:
        metadata = {**metadata, "general.alignment": u32(alignment)}
    if parts == 1:
        path.write_bytes(_file_bytes(metadata, tensors, version, alignment))
        return (path,)
    files = []
    for number in range(parts):
        split = {
            "split.no": Typed("u16", number),
            "split.count": Typed("u16", parts),
            "split.tensors.count": Typed("i32", len(tensors)),
        }
        aligned = {"general.alignment": u32(alignment)} if alignment != 32 else {}
        keys = {**metadata, **split} if number == 0 else {**aligned, **split}
        run = tensors[len(tensors) * number // parts : len(tensors) * (number + 1) // parts]
        file = path.with_name(f"{path.stem}-{number + 1:05}-of-{parts:05}.gguf")
        file.write_bytes(_file_bytes(keys, run, version, alignment))
        files.append(file)
    return tuple(files)
