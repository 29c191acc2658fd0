"""Schema version to generation: the only dispatch between generations in the program.

``version`` in ``index.json`` is a *schema* number. Several schema numbers belong to one
generation, so the two are different types and a bare integer is neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from larql.errors import GenerationError

__all__ = [
    "Generation",
    "SchemaVersion",
    "generation_of",
    "parse_schema_version",
    "readable_schemas",
    "require_generation",
    "supported_text",
    "written_schema",
]


class Generation(Enum):
    """A family of container layouts that one loader reads."""

    VINDEX2 = "VINDEX2"
    VINDEX3 = "VINDEX3"


@dataclass(frozen=True, order=True)
class SchemaVersion:
    """The number in the ``version`` field of ``index.json``."""

    number: int


_READS: dict[Generation, tuple[int, ...]] = {
    Generation.VINDEX2: (1, 2),
    Generation.VINDEX3: (3, 4),
}
_WRITES: dict[Generation, int] = {Generation.VINDEX2: 2, Generation.VINDEX3: 3}


def readable_schemas(generation: Generation) -> tuple[SchemaVersion, ...]:
    """Return the schema versions that a generation's loader reads, ascending."""
    return tuple(SchemaVersion(number) for number in _READS[generation])


def written_schema(generation: Generation) -> SchemaVersion:
    """Return the schema version that a generation's writer writes."""
    return SchemaVersion(_WRITES[generation])


def supported_text() -> str:
    """Return the supported schema versions in words, e.g. ``1-2 (VINDEX2), 3-4 (VINDEX3)``."""
    return ", ".join(
        f"{min(numbers)}-{max(numbers)} ({generation.value})"
        for generation, numbers in _READS.items()
    )


def parse_schema_version(value: object, where: str) -> SchemaVersion:
    """Read the ``version`` field of an index.

    Parameters
    ----------
    value : object
        The decoded JSON value, or None where the field is absent.
    where : str
        The file it came from, for the error text.

    Raises
    ------
    GenerationError
        If the value is absent, is not a plain integer, or names an unknown schema.
    """
    if value is None:
        raise GenerationError(
            f"{where}: no `version` field; expected a schema version, one of {supported_text()}"
        )
    if isinstance(value, bool) or not isinstance(value, int):
        raise GenerationError(
            f"{where}: `version` is {value!r}; expected an integer, one of {supported_text()}"
        )
    known = any(value in numbers for numbers in _READS.values())
    if not known:
        raise GenerationError(
            f"{where}: schema version {value} is not known to this build, which reads "
            f"{supported_text()}; a newer larql may read it"
        )
    return SchemaVersion(value)


def generation_of(schema: SchemaVersion) -> Generation:
    """Return the one generation that claims a schema version."""
    for generation, numbers in _READS.items():
        if schema.number in numbers:
            return generation
    raise GenerationError(
        f"schema version {schema.number} is not known to this build, which reads {supported_text()}"
    )


def require_generation(schema: SchemaVersion, wanted: Generation, where: str) -> None:
    """Refuse, by name, a directory that another generation's loader must read.

    Raises
    ------
    GenerationError
        If ``schema`` belongs to another generation than ``wanted``.
    """
    found = generation_of(schema)
    if found is not wanted:
        raise GenerationError(
            f"{where}: schema version {schema.number} requires the {found.value} loader; "
            f"this is the {wanted.value} loader"
        )
