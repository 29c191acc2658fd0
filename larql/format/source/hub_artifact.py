"""Containers on a hub: told from checkpoints, and judged, by their index alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from larql.errors import FetchError
from larql.format.artifact import Artifact, artifact_of, foreign_index
from larql.format.index import INDEX_NAME, MAX_JSON_BYTES
from larql.format.source.hub_files import Remote
from larql.format.source.hub_name import HubName
from larql.format.source.modelfiles import holds_weights, terms_and_description

__all__ = ["artifact_files", "artifact_in"]


def artifact_in(
    name: HubName, listing: Mapping[str, Remote], root: Callable[[], Path]
) -> Artifact | None:
    """Read from its index what container a repository holds, before anything else is fetched.

    Parameters
    ----------
    name : HubName
    listing : mapping of str to Remote
    root : callable
        Brings the index, and returns the directory that it is in.

    Returns
    -------
    Artifact or None
        None if it holds none.

    Raises
    ------
    GenerationError
        If this build does not read its generation or schema version.
    ContainerError, UnsupportedRefusal
        If the index is malformed, or names a file outside the repository.
    FetchError
        If its index is no container's, and there is no checkpoint beside it.
    """
    if name.file is not None or INDEX_NAME not in listing:
        return None
    label, size = f"hf://{name.repo}", listing[INDEX_NAME].size
    if size > MAX_JSON_BYTES:
        problem: str | None = f"an index.json of {size} bytes, more than {MAX_JSON_BYTES}"
    else:
        directory = root()
        problem = foreign_index(directory / INDEX_NAME)
        if problem is None:
            return artifact_of(directory, f"{label}: {INDEX_NAME}")
    if holds_weights(listing):
        return None
    raise FetchError(
        f"{label}: is no model: found {problem} and no .safetensors or .gguf file; expected a "
        "container or a checkpoint"
    )


def artifact_files(
    name: HubName, listing: Mapping[str, Remote], artifact: Artifact
) -> tuple[str, ...]:
    """Return what to fetch of an artifact, held against what the hub lists before it is.

    Raises
    ------
    FetchError
        If a file is not there, or has another size or hash there than the index states.
    """
    where = f"hf://{name.repo}: {INDEX_NAME}"
    for file, entry in artifact.files.items():
        remote = listing.get(file)
        if remote is None:
            raise FetchError(f"{where} lists {file}, which is not there; publish it again")
        if entry.size not in (None, remote.size):
            raise FetchError(
                f"{where} states {entry.size} bytes for {file}, the hub has {remote.size}; "
                "publish it again"
            )
        if remote.sha256 not in (None, entry.sha256):
            raise FetchError(
                f"{where} states sha256 {entry.sha256} for {file}, the hub has {remote.sha256}; "
                "publish it again"
            )
    about = (file for file in terms_and_description(listing) if file not in artifact.files)
    return (INDEX_NAME, *artifact.files, *about)
