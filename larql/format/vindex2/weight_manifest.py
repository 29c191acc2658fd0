"""``weight_manifest.json``: which tensors the files without headers hold, and where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from larql.errors import ContainerError, EncodingError, UnsupportedRefusal
from larql.format.encoding import ENCODINGS, Encoding
from larql.format.index import load_json
from larql.format.json_object import JsonObject

__all__ = [
    "WeightEntry",
    "manifest_to_json",
    "packed_entries",
    "read_manifest",
    "weights_from_json",
]

_ALIGN = 64
_MAX_TENSORS = 1 << 17
_KINDS = ("tensor", "vector")
_FIELDS = ("key", "kind", "dtype", "shape", "file", "offset", "length", "requested")


@dataclass(frozen=True)
class WeightEntry:
    """One tensor of a file without a header.

    Attributes
    ----------
    key : str
        The operand that it is, ``<object>/<tensor>``.
    dtype : Encoding
    shape : tuple of int
    file : str
    offset, length : int
        Bytes.
    requested : str or None
        The encoding that was asked for, where another one had to be taken.
    extra : mapping
        Fields that this build does not know.
    """

    key: str
    dtype: Encoding
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int
    requested: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict, compare=False)

    @property
    def kind(self) -> str:
        """``vector`` for one axis, else ``tensor``."""
        return "vector" if len(self.shape) == 1 else "tensor"


def packed_entries(entries: Iterable[WeightEntry]) -> list[WeightEntry]:
    """Return the tensors of one file one after another, each at a multiple of 64 bytes."""
    found: list[WeightEntry] = []
    end = 0
    for entry in entries:
        offset = -(-end // _ALIGN) * _ALIGN
        found.append(replace(entry, offset=offset))
        end = offset + entry.length
    return found


def manifest_to_json(entries: Iterable[WeightEntry]) -> dict[str, object]:
    """Return the JSON document of a manifest."""
    return {
        "tensors": [
            {
                "key": entry.key,
                "kind": entry.kind,
                "dtype": entry.dtype.name,
                "shape": list(entry.shape),
                "file": entry.file,
                "offset": entry.offset,
                "length": entry.length,
                **({} if entry.requested is None else {"requested": entry.requested}),
                **entry.extra,
            }
            for entry in entries
        ]
    }


def read_manifest(path: Path) -> tuple[WeightEntry, ...]:
    """Read a manifest file.

    Raises
    ------
    ContainerError, UnsupportedRefusal
        As :func:`weights_from_json`, or if it cannot be read.
    """
    return weights_from_json(load_json(path), str(path))


def weights_from_json(document: Mapping[str, object], where: str) -> tuple[WeightEntry, ...]:
    """Read a manifest document.

    Raises
    ------
    UnsupportedRefusal
        If a tensor has an encoding or kind that this build does not know.
    ContainerError
        If a field is missing or wrong, a tensor is listed twice, its length contradicts its shape,
        or two tensors of a file overlap.
    """
    top = JsonObject(document, "", where)
    raw = top.document.get("tensors")
    if not isinstance(raw, list) or len(raw) > _MAX_TENSORS:
        raise top.fail("tensors", f"an array of at most {_MAX_TENSORS} objects")
    entries = tuple(
        _entry(JsonObject(item, f"tensors[{position}]", where)) for position, item in enumerate(raw)
    )
    seen: set[str] = set()
    for entry in entries:
        if entry.key in seen:
            raise ContainerError(f"{where}: tensor {entry.key!r:.120} is listed twice")
        seen.add(entry.key)
    _refuse_overlaps(entries, where)
    return entries


def _entry(reader: JsonObject) -> WeightEntry:
    name = reader.text("dtype")
    kind = reader.text("kind")
    key = reader.text("key")
    if name not in ENCODINGS:
        raise UnsupportedRefusal(
            f"{reader.where}: {reader.path} ({key!r:.120}) has dtype {name!r:.60}, unknown to this "
            f"build; use a newer larql"
        )
    if kind not in _KINDS:
        raise UnsupportedRefusal(
            f"{reader.where}: {reader.path} ({key!r:.120}) is of kind {kind!r:.60}, expected "
            f"{' or '.join(_KINDS)}; use a newer larql"
        )
    shape = reader.extents("shape")
    if (kind == "vector") != (len(shape) == 1):
        raise reader.fail("shape", f"the shape of a {kind}")
    try:
        nbytes = ENCODINGS[name].nbytes(shape)
    except EncodingError as error:
        raise ContainerError(f"{reader.where}: {reader.path}: {error}") from None
    length = reader.count("length")
    if length != nbytes:
        raise reader.fail("length", f"{nbytes}, the bytes of {list(shape)} in {name}")
    offset = reader.count("offset")
    if offset + length >= 1 << 62:
        raise reader.fail("offset", "an offset inside a file")
    return WeightEntry(
        key,
        ENCODINGS[name],
        shape,
        reader.file_name("file"),
        offset,
        length,
        reader.optional_text("requested"),
        reader.rest(*_FIELDS),
    )


def _refuse_overlaps(entries: Iterable[WeightEntry], where: str) -> None:
    ends: dict[str, tuple[int, str]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.file, entry.offset, entry.length)):
        end, other = ends.get(entry.file, (0, ""))
        if entry.offset < end:
            raise ContainerError(
                f"{where}: tensor {entry.key!r:.120} begins at byte {entry.offset} of {entry.file},"
                f" inside {other!r:.120}, which ends at {end}"
            )
        ends[entry.file] = entry.offset + entry.length, entry.key
