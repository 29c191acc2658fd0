"""Frozen dataclasses as JSON and back, strictly.

None fields are left out. A dataclass that may stand where others may carries its kind in ``op``.
Unknown keys, missing keys and wrong types are errors that name the path inside the document.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Literal, TypeVar, Union, get_args, get_origin

from larql.errors import ContainerError, UnsupportedRefusal
from larql.format.untrusted import shown

__all__ = ["StrictJson", "kind_of"]

_MOST = 1 << 48
_WORDS = {int: "a count", float: "a number", str: "a string", bool: "true or false"}

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class StrictJson:
    """How the dataclasses of one document are written.

    Attributes
    ----------
    kinds : mapping
        Value of ``op`` to the dataclass that carries it.
    noun : str
        What these are called in error texts.
    """

    kinds: Mapping[str, type]
    noun: str

    @cached_property
    def _names(self) -> Mapping[type, str]:
        return {cls: name for name, cls in self.kinds.items()}

    def encode(self, value: object) -> object:
        """Return a dataclass, tuple or scalar as JSON."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            document: dict[str, object] = {}
            name = self._names.get(type(value))
            if name is not None:
                document["op"] = name
            for field in dataclasses.fields(value):
                item = getattr(value, field.name)
                if item is not None:
                    document[field.name] = self.encode(item)
            return document
        if isinstance(value, tuple):
            return [self.encode(item) for item in value]
        return value

    def decode_class(self, cls: type[T], raw: object, path: str, where: str) -> T:
        """Read a dataclass.

        Parameters
        ----------
        cls : type
        raw : object
            Decoded JSON.
        path : str
            Where it stands in the document; empty: it is the document.
        where : str
            File name for error texts.

        Raises
        ------
        ContainerError
            If it lacks a key, has an unknown key or a wrong type.
        UnsupportedRefusal
            If a kind, or another choice among words, is not known to this build.
        """
        place = path or "the document"
        if not isinstance(raw, dict):
            raise ContainerError(f"{where}: {place} is {kind_of(raw)}, expected an object")
        fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        hints = _hints(cls)  # type: ignore[arg-type]
        known = set(fields) | ({"op"} if cls in self._names else set())
        unknown = sorted(set(raw) - known)
        if unknown:
            raise ContainerError(f"{where}: {place} has unknown key {shown(unknown[0])}")
        values = {}
        for name, field in fields.items():
            if name in raw:
                inner = f"{path}.{name}" if path else name
                values[name] = self.decode(hints[name], raw[name], inner, where)
            elif field.default is dataclasses.MISSING:
                raise ContainerError(f"{where}: {place} lacks key `{name}`")
        return cls(**values)

    def decode(self, hint: object, raw: object, path: str, where: str) -> object:
        """Read a value of an annotated type; parameters and errors as :meth:`decode_class`."""
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            options = [option for option in get_args(hint) if option is not type(None)]
            if len(options) == 1:
                return self.decode(options[0], raw, path, where)
            return self._decode_kind(tuple(options), raw, path, where)
        if origin is tuple:
            if not isinstance(raw, list):
                raise ContainerError(f"{where}: {path} is {kind_of(raw)}, expected an array")
            inner = get_args(hint)[0]
            return tuple(
                self.decode(inner, item, f"{path}[{i}]", where) for i, item in enumerate(raw)
            )
        if origin is Literal:
            if not isinstance(raw, str) or raw not in get_args(hint):
                raise UnsupportedRefusal(
                    f"{where}: {path} is {raw!r:.60}; this build knows "
                    f"{', '.join(map(repr, get_args(hint)))}"
                )
            return raw
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            if hint in self._names:
                return self._decode_kind((hint,), raw, path, where)
            return self.decode_class(hint, raw, path, where)
        return _decode_scalar(hint, raw, path, where)

    def _decode_kind(
        self, options: tuple[object, ...], raw: object, path: str, where: str
    ) -> object:
        if not isinstance(raw, dict):
            raise ContainerError(f"{where}: {path} is {kind_of(raw)}, expected an object")
        op = raw.get("op")
        cls = self.kinds.get(op) if isinstance(op, str) else None
        if cls is None:
            raise UnsupportedRefusal(
                f"{where}: {path} is {self.noun} {op!r:.60}; this build knows "
                f"{', '.join(sorted(self.kinds))}"
            )
        if cls not in options:
            raise ContainerError(f"{where}: {path} cannot be a {op}")
        return self.decode_class(cls, raw, path, where)


@cache
def _hints(cls: type) -> Mapping[str, object]:
    return typing.get_type_hints(cls)


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
    wanted = _WORDS[typing.cast("type", hint)]
    raise ContainerError(f"{where}: {path} is {kind_of(raw)}, expected {wanted}")


def kind_of(value: object) -> str:
    """Return what a decoded value is, in words for an error."""
    names = {dict: "an object", list: "an array", str: "a string", type(None): "null"}
    return names.get(type(value), f"{value!r:.60}")
