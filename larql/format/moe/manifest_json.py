"""``moe_manifest.json``: a strict round trip of :mod:`larql.format.moe.manifest`.

Unknown keys, missing keys and wrong types are errors that name the place in the document, because
each key changes what is computed. What the values mean together is checked elsewhere, so that a
manifest with defects can still be read and all of them be named.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from typing import Literal, Union, get_args, get_origin

from larql.errors import ContainerError, UnsupportedRefusal
from larql.format.moe import manifest as m
from larql.format.names import check_relative_name
from larql.format.untrusted import shown

__all__ = ["manifest_from_json", "manifest_to_json"]

_SELECTIONS: dict[str, type] = {"top_k": m.TopK, "grouped_top_k": m.GroupedTopK}
_SELECTION_NAMES = {cls: name for name, cls in _SELECTIONS.items()}
_HINTS: dict[type, dict[str, object]] = {
    cls: typing.get_type_hints(cls)
    for cls in vars(m).values()
    if isinstance(cls, type) and dataclasses.is_dataclass(cls)
}
_MOST = 1 << 48


def manifest_to_json(manifest: m.Manifest) -> dict[str, object]:
    """Return the JSON document of a manifest; None fields are left out."""
    document = typing.cast("dict[str, object]", _encode(manifest))
    return {"schema": manifest.schema, **document}


def manifest_from_json(document: object, where: str) -> m.Manifest:
    """Read a manifest document.

    Parameters
    ----------
    document : object
        Decoded JSON.
    where : str
        File name for error texts.

    Raises
    ------
    ContainerError
        If the document is not a manifest, lacks a key, has an unknown key, a wrong type or a file
        name that leaves the container.
    UnsupportedRefusal
        If it has a schema, a selection or another choice that this build does not know.
    """
    if not isinstance(document, dict):
        raise ContainerError(f"{where}: expected a JSON object, found {_kind(document)}")
    schema = document.get("schema")
    if type(schema) is not int or schema != m.MANIFEST_SCHEMA:
        raise UnsupportedRefusal(
            f"{where}: manifest schema {schema!r:.60} is not known to this build, which reads "
            f"{m.MANIFEST_SCHEMA}"
        )
    manifest = typing.cast("m.Manifest", _decode_class(m.Manifest, document, "", where))
    for storage in manifest.storages:
        for name in storage.files:
            check_relative_name(name, f"{where}: storage {shown(storage.key)}", ContainerError)
    return manifest


def _encode(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        document: dict[str, object] = {}
        if type(value) in _SELECTION_NAMES:
            document["op"] = _SELECTION_NAMES[type(value)]
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if item is not None:
                document[field.name] = _encode(item)
        return document
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode_class(cls: type, raw: object, path: str, where: str) -> object:
    place = path or "the document"
    if not isinstance(raw, dict):
        raise ContainerError(f"{where}: {place} is {_kind(raw)}, expected an object")
    fields = dataclasses.fields(cls)
    known = {field.name for field in fields} | ({"op"} if cls in _SELECTION_NAMES else set())
    unknown = sorted(set(raw) - known)
    if unknown:
        raise ContainerError(f"{where}: {place} has unknown key {shown(unknown[0])}")
    values = {}
    for field in fields:
        if field.name in raw:
            inner = f"{path}.{field.name}" if path else field.name
            values[field.name] = _decode(_HINTS[cls][field.name], raw[field.name], inner, where)
        elif field.default is dataclasses.MISSING:
            raise ContainerError(f"{where}: {place} lacks key `{field.name}`")
    return cls(**values)


def _decode(hint: object, raw: object, path: str, where: str) -> object:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        if len(options) > 1:
            return _decode_selection(raw, path, where)
        return _decode(options[0], raw, path, where)
    if origin is tuple:
        if not isinstance(raw, list):
            raise ContainerError(f"{where}: {path} is {_kind(raw)}, expected an array")
        item = get_args(hint)[0]
        return tuple(_decode(item, value, f"{path}[{i}]", where) for i, value in enumerate(raw))
    if origin is Literal:
        if not isinstance(raw, str) or raw not in get_args(hint):
            raise UnsupportedRefusal(
                f"{where}: {path} is {raw!r:.60}; this build knows "
                f"{', '.join(map(repr, get_args(hint)))}"
            )
        return raw
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_class(hint, raw, path, where)
    return _decode_scalar(hint, raw, path, where)


def _decode_selection(raw: object, path: str, where: str) -> object:
    op = raw.get("op") if isinstance(raw, dict) else None
    cls = _SELECTIONS.get(op) if isinstance(op, str) else None
    if cls is None:
        raise UnsupportedRefusal(
            f"{where}: {path} is selection {op!r:.60}; this build knows {', '.join(_SELECTIONS)}"
        )
    return _decode_class(cls, raw, path, where)


def _decode_scalar(hint: object, raw: object, path: str, where: str) -> object:
    if hint is float and isinstance(raw, int | float) and not isinstance(raw, bool):
        if not abs(raw) <= sys.float_info.max:
            raise ContainerError(f"{where}: {path} is {raw!r:.60}, expected a finite number")
        return float(raw)
    if hint is int and isinstance(raw, int) and not isinstance(raw, bool):
        if not 0 <= raw < _MOST:
            raise ContainerError(f"{where}: {path} is {raw!r:.60}, expected a count")
        return raw
    if hint in (str, bool) and type(raw) is hint:
        return raw
    expected = {int: "a count", float: "a number", str: "a string", bool: "true or false"}
    wanted = expected[typing.cast("type", hint)]
    raise ContainerError(f"{where}: {path} is {_kind(raw)}, expected {wanted}")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", type(None): "null"}
    return names.get(type(value), f"{value!r:.60}")
