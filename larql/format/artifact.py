"""What an ``index.json`` vouches for, whichever generation wrote it: names and hashes of files.

Who moves an artifact from place to place needs no more of it than this, so publishing and fetching
speak of no generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from larql.errors import ContainerError
from larql.format.generation import (
    Generation,
    SchemaVersion,
    generation_of,
    parse_schema_version,
    supported_text,
)
from larql.format.index import INDEX_NAME, index_from_json, load_json

__all__ = ["Artifact", "ListedFile", "artifact_of", "foreign_index"]


@dataclass(frozen=True)
class ListedFile:
    """A file that an index lists: its sha256, and its size in bytes where the index states one."""

    sha256: str
    size: int | None


@dataclass(frozen=True)
class Artifact:
    """An index that has been read.

    Attributes
    ----------
    schema : SchemaVersion
    model : str
        The model's own name; empty where its checkpoint states none.
    fingerprint : str
        The sha256 of ``index.json``.
    files : mapping of str to ListedFile
        By name relative to the index, every file that it lists; itself it does not.
    """

    schema: SchemaVersion
    model: str
    fingerprint: str
    files: Mapping[str, ListedFile]


def foreign_index(path: Path) -> str | None:
    """Return what shows that an ``index.json`` is not an artifact's, None if it may be one's.

    Of an artifact's index no more is asked than a version that is an integer, so that a damaged
    one, and one of a generation to come, is still told as what it is.
    """
    try:
        document = load_json(path)
    except ContainerError as error:
        return str(error)
    version = document.get("version")
    if type(version) is int:
        return None
    what = f"version is {version!r}" if "version" in document else "version is not stated"
    return f"an index.json whose {what}, not an integer of {supported_text()}"


def artifact_of(directory: Path, where: str | None = None) -> Artifact:
    """Read which files belong to the artifact in a directory; of these, none need be there.

    Parameters
    ----------
    directory : Path
        Holds ``index.json``.
    where : str or None
        What messages call the index; None: its path.

    Raises
    ------
    GenerationError
        If its schema version is not one that this build reads.
    ContainerError, UnsupportedRefusal
        If the index is malformed, or names a file outside its directory.
    """
    path = directory / INDEX_NAME
    where = where or str(path)
    document = load_json(path)
    schema = parse_schema_version(document.get("version"), where)
    files: dict[str, ListedFile]
    if generation_of(schema) is Generation.VINDEX2:
        from larql.format.vindex2.index import index_from_json as older_index

        older = older_index(document, where)
        model = older.model
        files = {name: ListedFile(sha256, None) for name, sha256 in older.checksums.items()}
        if not files:
            raise ContainerError(
                f"{where}: has no `checksums`, so nothing says which files belong to it; extract "
                f"the checkpoint again"
            )
    else:
        index = index_from_json(document, where)
        model = index.model
        files = {name: ListedFile(entry.sha256, entry.size) for name, entry in index.files.items()}
    fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()
    return Artifact(schema, model, fingerprint, files)
