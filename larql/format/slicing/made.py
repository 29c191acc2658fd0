"""Writing a slice's directory: whole files shared, others written anew, an index over both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from larql.format.atomic import check_output, write_directory
from larql.format.container import Container, is_container
from larql.format.digest import remember_sha256
from larql.format.index import INDEX_NAME, FileEntry
from larql.format.progress import Progress
from larql.format.segment import hash_file, write_stream
from larql.format.slicing.share import share_file
from larql.format.source.extract import check_beside

__all__ = ["Made", "Planned", "check_slice_output", "write_cut_directory"]


@dataclass(frozen=True)
class Planned:
    """One file of a slice.

    Attributes
    ----------
    name : str
    size : int
        Bytes.
    how : {"whole", "cut", "written"}
        The container's own file, a part of one, or a document that is written anew.
    """

    name: str
    size: int
    how: Literal["whole", "cut", "written"]


@dataclass(frozen=True)
class Made:
    """What was written.

    Attributes
    ----------
    path : Path
    fingerprint : str
    nbytes : int
        Size of all its files.
    stored : int
        Bytes that the file system had to store for it.
    shared : mapping
        How many files were cloned, linked or copied.
    """

    path: Path
    fingerprint: str
    nbytes: int
    stored: int
    shared: Mapping[str, int]


def check_slice_output(container: Container, output: Path, *, force: bool) -> None:
    """Refuse an output before any work is done.

    Raises
    ------
    OutputError
        If it is the container, holds it, lies in it, or exists and must not be replaced.
    """
    check_beside(output, container.path)
    check_output(output, force=force, replaceable=is_container)


def write_cut_directory(
    container: Container,
    output: Path,
    planned: Sequence[Planned],
    anew: Callable[[Path], Iterable[tuple[str, FileEntry]]],
    index: Callable[[Mapping[str, FileEntry]], bytes],
    *,
    force: bool,
    progress: Progress,
) -> Made:
    """Write a slice.

    Every file that is taken from is hashed before, unless it is known to be as it was.

    Parameters
    ----------
    container : Container
        Is not changed.
    output : Path
        Directory to create.
    planned : sequence of Planned
        All its files; those that are whole are shared with the container.
    anew : callable
        Writes the others into a directory, and gives their names, sizes and hashes.
    index : callable
        From what all files are to the bytes of ``index.json``.
    force : bool
        Replace a container that stands at ``output``.
    progress : Progress
        Told of the bytes that are taken over.

    Raises
    ------
    ContainerError
        If a file of the container is damaged.
    OutputError
        If the output exists or cannot be written. No partial directory is left behind.
    """
    check_slice_output(container, output, force=force)
    progress.start("slice", sum(file.size for file in planned))
    shared = {"cloned": 0, "linked": 0, "copied": 0}
    with write_directory(output, force=force, replaceable=is_container) as directory:
        for file in planned:
            (directory / file.name).parent.mkdir(parents=True, exist_ok=True)
        files: dict[str, FileEntry] = {}
        stored = 0
        for name in _whole(planned):
            container.check_bytes(name)
            entry = container.index.files[name]
            if not entry.sha256:  # an old index vouches for nothing
                entry = hash_file(container.path / name)
            how = share_file(container.path / name, directory / name, entry)
            # A link changes the times of the file, by which its hash is remembered.
            remember_sha256(container.path / name, entry.sha256)
            shared[how] += 1
            stored += entry.size if how == "copied" else 0
            files[name] = entry
            progress.advance(entry.size)
        for name, entry in anew(directory):
            files[name] = entry
            stored += entry.size
        own = write_stream(directory / INDEX_NAME, [index(files)])
    progress.finish()
    for name, entry in files.items():
        remember_sha256(output / name, entry.sha256)
    nbytes = own.size + sum(entry.size for entry in files.values())
    return Made(output, own.sha256, nbytes, stored + own.size, shared)


def _whole(planned: Iterable[Planned]) -> Iterator[str]:
    return (file.name for file in planned if file.how == "whole")
