"""Typed access to the objects of a document that is not trusted."""

from __future__ import annotations

from larql.errors import ContainerError, LarqlError
from larql.format.names import check_relative_name
from larql.format.rows import RowSelection

__all__ = ["JsonObject"]


class JsonObject:
    """Typed access to one JSON object; every refusal names file, path and type."""

    def __init__(
        self,
        document: object,
        path: str,
        where: str,
        error: type[LarqlError] = ContainerError,
    ) -> None:
        self.path = path
        self.where = where
        self.error = error
        if not isinstance(document, dict):
            raise error(f"{where}: {path or 'the document'} is not a JSON object")
        self.document: dict[str, object] = document

    def fail(self, key: str, expected: str) -> LarqlError:
        """Return the error for a key, which names what was expected."""
        found = self.document.get(key)
        shown = "missing" if key not in self.document else f"{found!r:.60}"
        name = f"{self.path}.{key}" if self.path else key
        return self.error(f"{self.where}: `{name}` is {shown}, expected {expected}")

    def text(self, key: str) -> str:
        """Return a string."""
        value = self.document.get(key)
        if not isinstance(value, str):
            raise self.fail(key, "a string")
        return value

    def optional_text(self, key: str) -> str | None:
        """Return a string, or None where the key is absent or null."""
        return None if self.document.get(key) is None else self.text(key)

    def count(self, key: str) -> int:
        """Return an integer of at least 0."""
        value = self.document.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.fail(key, "a count")
        return value

    def rows(self, key: str) -> RowSelection | None:
        """Return a selection of rows, or None where the key is absent or null."""
        if self.document.get(key) is None:
            return None
        found = RowSelection(*self.counts(key, 4))
        if not found.fits(found.end):
            raise self.fail(key, "runs of rows that do not overlap")
        return found

    def extents(self, key: str) -> tuple[int, ...]:
        """Return the extents of a shape."""
        value = self.document.get(key)
        if (
            not isinstance(value, list)
            or not value
            or not all(type(extent) is int and 0 < extent < 1 << 48 for extent in value)
        ):
            raise self.fail(key, "an array of positive integers")
        return tuple(value)

    def counts(self, key: str, length: int) -> list[int]:
        """Return an array of so many counts."""
        value = self.document.get(key)
        if not isinstance(value, list) or len(value) != length:
            raise self.fail(key, f"an array of {length} counts")
        if not all(type(v) is int and 0 <= v < 1 << 48 for v in value):
            raise self.fail(key, f"an array of {length} counts")
        return value

    def mapping(self, key: str) -> dict[str, object]:
        """Return an object as a dictionary."""
        value = self.document.get(key)
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return value

    def optional_object(self, key: str) -> dict[str, object]:
        """Return an object, empty where the key is absent or null."""
        return {} if self.document.get(key) is None else self.mapping(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of strings."""
        value = self.document.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "an array of strings")
        return tuple(value)

    def child(self, key: str) -> JsonObject:
        """Return an object as one of this kind."""
        name = f"{self.path}.{key}" if self.path else key
        return JsonObject(self.document.get(key), name, self.where, self.error)

    def file_name(self, key: str) -> str:
        """Return a name that stays inside the directory."""
        name = f"{self.path}.{key}" if self.path else key
        return check_relative_name(self.document.get(key), f"{self.where}: {name}", self.error)

    def rest(self, *known: str) -> dict[str, object]:
        """Return the fields outside ``known``."""
        return {key: value for key, value in self.document.items() if key not in known}

    def sha256(self, key: str) -> str:
        """Return 64 hexadecimal digits."""
        value = self.text(key)
        if len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise self.fail(key, "64 hexadecimal digits")
        return value
