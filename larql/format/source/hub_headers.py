"""The headers of a model on a hub, by ranged requests: what a verdict needs, and no weights.

A directory is made in which each weights file has its true size and its true header and is a hole
otherwise, so that a checkpoint is opened from it as from any other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from larql.errors import FetchError, SourceError
from larql.format.index import INDEX_NAME as ARTIFACT_INDEX
from larql.format.progress import Progress
from larql.format.safetensors_header import MAX_HEADER_BYTES
from larql.format.source.gguf_header import read_gguf_header
from larql.format.source.hub import choose_files, fetch_cached
from larql.format.source.hub_artifact import artifact_in
from larql.format.source.hub_client import UnreachableError, endpoint, explained, quiet_hub
from larql.format.source.hub_client import is_offline as hub_is_offline
from larql.format.source.hub_files import Remote, download, list_files
from larql.format.source.hub_name import HubName
from larql.format.source.modelfiles import INDEX_NAME, indexed_safetensors, is_gguf, is_licence

__all__ = ["RemoteHeaders", "hub_headers"]

_FIRST = 256 << 10  # most headers are shorter, so that one request does
_MOST_GGUF = 256 << 20  # of a file's header: vocabularies take some megabytes
_UNNEEDED = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")


@dataclass(frozen=True)
class RemoteHeaders:
    """A model of which the headers are here.

    Attributes
    ----------
    path : Path
        What to open, for the length of the ``with`` block.
    revision : str or None
        The commit.
    nbytes : int
        Bytes of weights files that were fetched.
    place : Path or None
        The directory that was made for them; None where all of the model was cached before.
    notes : tuple of str
        What a user should be told.
    """

    path: Path
    revision: str | None
    nbytes: int
    place: Path | None
    notes: tuple[str, ...]


@contextmanager
def hub_headers(name: HubName, progress: Progress) -> Iterator[RemoteHeaders]:
    """Bring the headers and the configuration of a model, and give a place to open it.

    Parameters
    ----------
    name : HubName
    progress : Progress
        Told of the files whose headers were fetched.

    Yields
    ------
    RemoteHeaders

    Raises
    ------
    FetchError
        If they cannot be had, the repository holds a container, or the hub serves no ranges.
    """
    label = f"hf://{name.repo}"
    with quiet_hub():
        if hub_is_offline():
            cached = fetch_cached(name, f"{label}: HF_HUB_OFFLINE is set", progress)
        else:
            try:
                commit, listing = list_files(name)
            except UnreachableError as error:
                reason = str(error).removesuffix("; try again later")
                cached = fetch_cached(name, reason, progress)
            else:
                with TemporaryDirectory(prefix="larql-plan-") as place:
                    yield _from_hub(name, commit, listing, Path(place), progress)
                return
    yield RemoteHeaders(cached.path, cached.revision, 0, None, cached.notes)


def _from_hub(
    name: HubName, commit: str, listing: dict[str, Remote], place: Path, progress: Progress
) -> RemoteHeaders:
    fetch = partial(download, name, commit, listing=listing, progress=progress)
    if artifact_in(name, listing, lambda: fetch([ARTIFACT_INDEX])) is not None:
        raise FetchError(f"hf://{name.repo}: holds a container already; describe it by larql show")
    indexed: list[str] = []
    if name.file is None and INDEX_NAME in listing:
        indexed = indexed_safetensors(fetch([INDEX_NAME]) / INDEX_NAME, listing, FetchError)
    weights, others = choose_files(name, listing, indexed)
    wanted = [
        file for file in others if not file.endswith(_UNNEEDED) and not is_licence(Path(file).name)
    ]
    if wanted:
        root = fetch(wanted)
        for file in wanted:
            target = place / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to((root / file).resolve())
    progress.start("Reading headers", len(weights))
    total = 0
    for file in weights:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        ranges = _Ranges(name, commit, file, listing[file].size, place / file)
        total += ranges.gguf_header() if is_gguf(file) else ranges.safetensors_header()
        progress.advance(1)
    progress.finish()
    path = place / weights[0] if is_gguf(weights[0]) else place
    return RemoteHeaders(path, commit, total, place, ())


class _Ranges:
    """Fetches the beginning of one file of a repository into a file with a hole."""

    def __init__(self, name: HubName, commit: str, file: str, size: int, target: Path) -> None:
        self._name = name
        self._commit = commit
        self._file = file
        self._size = size
        self._target = target
        self._have = 0
        try:
            with target.open("wb") as stream:
                stream.truncate(size)
        except OSError as error:
            raise FetchError(
                f"{target.parent}: has no room for a hole of {size} bytes ({error.strerror}); set "
                "TMPDIR to another file system"
            ) from None

    def safetensors_header(self) -> int:
        """Fetch the header; return how many bytes were fetched."""
        head = self._fetch(min(_FIRST, self._size))
        length = int.from_bytes(head[:8], "little")
        if length <= MAX_HEADER_BYTES:  # one above is refused by whoever reads the file
            self._fetch(min(8 + length, self._size))
        return self._have

    def gguf_header(self) -> int:
        """Fetch ever more until the header is whole; return how many bytes were fetched."""
        most = min(self._size, _MOST_GGUF)
        wanted = min(4 * _FIRST, most)
        self._fetch(wanted)
        # What is not here yet reads as zeros, and is no header. What is wrong with a file that is
        # here as far as it may go, is said by whoever reads it next.
        while wanted < most and not self._is_whole():
            wanted = min(4 * wanted, most)
            self._fetch(wanted)
        return self._have

    def _is_whole(self) -> bool:
        try:
            return read_gguf_header(self._target).data_start <= self._have
        except SourceError:
            return False

    def _fetch(self, end: int) -> bytes:
        """Fetch what is missing of the first ``end`` bytes and return the new ones."""
        if end <= self._have:
            return b""
        data = _ranged(self._name, self._commit, self._file, self._have, end)
        descriptor = os.open(self._target, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, self._have)
        finally:
            os.close(descriptor)
        self._have = end
        return data


def _ranged(name: HubName, commit: str, file: str, begin: int, end: int) -> bytes:
    """Return a range of a file of a repository.

    Raises
    ------
    FetchError
        If the hub does not give it, or gives something else.
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
    )

    from larql import __version__

    label = f"hf://{name.repo}: {file}"
    url = hf_hub_url(name.repo, file, revision=commit, endpoint=endpoint())
    headers = build_hf_headers(library_name="larql", library_version=__version__)
    headers["Range"] = f"bytes={begin}-{end - 1}"
    headers["Accept-Encoding"] = "identity"
    parts: list[bytes] = []
    got = 0
    with (
        explained(name.repo, name.revision),
        get_session().stream("GET", url, headers=headers, follow_redirects=True) as response,
    ):
        hf_raise_for_status(response)
        if response.status_code != 206 and begin:
            raise FetchError(f"{label}: {endpoint()} serves no ranges; fetch it with larql pull")
        for part in response.iter_bytes():
            parts.append(part)
            got += len(part)
            if got >= end - begin:  # a hub without ranges would go on to the end of the file
                break
    if got < end - begin:
        raise FetchError(f"{label}: ended after {begin + got} bytes, expected {end}; try again")
    return b"".join(parts)[: end - begin]
