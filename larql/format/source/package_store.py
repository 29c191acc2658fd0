"""Packages in the cache: ``models/pypi/<package>-<version>/``, each with a ``source.json``."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from larql.errors import FetchError, PlatformError, SourceError
from larql.format.cache import cache_root, sha256_of
from larql.format.names import check_relative_name
from larql.format.progress import Progress
from larql.format.source.modelfiles import Fetched, gguf_sets, is_safetensors
from larql.format.untrusted import read_json_object

__all__ = [
    "PackageName",
    "cached_packages",
    "clear_leftovers",
    "find_package",
    "opened",
    "package_home",
    "write_source",
]

SOURCE_NAME = "source.json"

# What write_directory leaves of <package>-<version> when it is killed.
_LEFTOVER = re.compile(r"\.(?P<package>.+)-[^-]+\.(tmp|old)-[0-9a-f]+")


@dataclass(frozen=True)
class PackageName:
    """A package, as the user names it.

    Attributes
    ----------
    package : str
        Normalised name.
    version : str or None
        The one version that is meant; None for the newest.
    """

    package: str
    version: str | None

    @property
    def requirement(self) -> str:
        """The name as pip takes it."""
        return self.package if self.version is None else f"{self.package}=={self.version}"


def package_home() -> Path:
    """Return the directory of all packages in the cache; it need not exist."""
    return cache_root() / "models" / "pypi"


def cached_packages() -> list[tuple[PackageName, Path]]:
    """Return the packages in the cache, best version of each last: newest, final before others.

    A cache that cannot be read holds none.
    """
    from packaging.version import InvalidVersion, Version

    found: list[tuple[tuple[bool, Version], PackageName, Path]] = []
    try:
        paths = [path for path in package_home().iterdir() if not path.name.startswith(".")]
    except (OSError, PlatformError):
        return []
    for path in paths:
        package, _, text = path.name.rpartition("-")
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        key = (not version.is_prerelease, version)
        found.append((key, PackageName(package, str(version)), path))
    return [(name, path) for _, name, path in sorted(found, key=lambda entry: entry[0])]


def find_package(name: PackageName, progress: Progress) -> Fetched | None:
    """Return a package from the cache, or None; without a version, the newest, and say so.

    Raises
    ------
    FetchError
        If what is cached is not what was fetched.
    """
    from packaging.version import Version

    wanted = None if name.version is None else Version(name.version)
    for cached, path in reversed(cached_packages()):
        # As versions, not as text: 1.0 and 1.0.0 are one.
        if cached.package != name.package or wanted not in (None, Version(cached.version or "0")):
            continue
        notes: tuple[str, ...] = ()
        if name.version is None:
            notes = (
                f"pypi://{name.package}: using version {cached.version} from the cache; "
                f"'larql pull --refresh pypi://{name.package}' asks for a newer one",
            )
        return opened(path, cached, _read_source(path, cached, progress), notes)
    return None


def opened(
    path: Path, name: PackageName, sums: Mapping[str, str], notes: tuple[str, ...]
) -> Fetched:
    """Return a stored package: its one GGUF model, or the directory for everything else."""
    sets = (
        [] if any(is_safetensors(file) for file in sums) else gguf_sets(sums, str(path), FetchError)
    )
    first = path / sets[0].files[0] if len(sets) == 1 else path
    return Fetched(first, name.version, sums, tuple(sorted(sums)), notes)


def write_source(directory: Path, name: PackageName, files: Mapping[str, tuple[int, str]]) -> None:
    """Write ``source.json``: what the files of a directory are, with sizes and sums."""
    document = {
        "package": name.package,
        "version": name.version,
        "files": {
            file: {"size": size, "sha256": digest} for file, (size, digest) in sorted(files.items())
        },
    }
    (directory / SOURCE_NAME).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _read_source(path: Path, name: PackageName, progress: Progress) -> dict[str, str]:
    """Return the sums in a ``source.json``, each held against the file."""
    advice = f"run 'larql pull --refresh pypi://{name.requirement}'"
    files = read_json_object(path / SOURCE_NAME, FetchError).get("files")
    if not isinstance(files, dict) or not files:
        raise FetchError(f"{path / SOURCE_NAME}: names no files; {advice}")
    sums: dict[str, str] = {}
    for file, entry in files.items():
        check_relative_name(file, str(path / SOURCE_NAME), FetchError)
        expected = entry.get("sha256") if isinstance(entry, dict) else None
        if not isinstance(expected, str):
            raise FetchError(f"{path / SOURCE_NAME}: has no sha256 of {file}; {advice}")
        try:
            found = sha256_of(path / file, progress)
        except SourceError as error:
            raise FetchError(f"{str(error).rpartition(';')[0]}; {advice}") from None
        if found != expected:
            raise FetchError(
                f"{path / file}: sha256 is {found}, fetched was {expected}; it has been altered, "
                f"{advice}"
            )
        sums[file] = expected
    return sums


def clear_leftovers(home: Path, package: str) -> None:
    """Delete what killed fetches of one package left; the caller holds that package's lock."""
    for path in home.iterdir():
        match = _LEFTOVER.fullmatch(path.name)
        if path.name == f".{package}.partial" or (match and match["package"] == package):
            shutil.rmtree(path, ignore_errors=True)
