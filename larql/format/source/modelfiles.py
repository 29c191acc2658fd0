"""Which files of a listing make a model: one rule for hubs, wheels and directories."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from larql.errors import LarqlError
from larql.format.json_scan import JsonScanner
from larql.format.names import check_relative_name
from larql.format.untrusted import (
    POINTER_LIMIT,
    open_regular,
    read_exactly,
    refuse_pointer,
    shown,
)

__all__ = [
    "INDEX_NAME",
    "Fetched",
    "GgufSet",
    "gguf_sets",
    "holds_weights",
    "indexed_safetensors",
    "is_about",
    "is_gguf",
    "is_licence",
    "is_safetensors",
    "safetensors_of",
    "side_files",
    "terms_and_description",
]

INDEX_NAME = "model.safetensors.index.json"

_MAX_INDEX_BYTES = 64 << 20
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".gguf")
_LICENCE = re.compile(r"(?i)(licen[cs]e|copying|notice|use[_-]?policy).*|.*terms.*")
_CODE = re.compile(r"(?i).*\.(py|pyc|pyi|so|c|h)")
_ABOUT = re.compile(r"(?i)readme\.md")
_SIDE = re.compile(
    r"(?i)config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json"
    r"|tokenizer\.model|special_tokens_map\.json|added_tokens\.json|vocab\.json|merges\.txt"
    r"|chat_template.*\.(jinja|json)|model\.safetensors\.index\.json|readme\.md"
)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.safetensors", re.I)
# llama.cpp's gguf-split: the name, the number of the file and how many there are, from 1.
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.I)


@dataclass(frozen=True)
class Fetched:
    """A model that has been brought to this machine.

    Attributes
    ----------
    path : Path
        The directory, or the one weight file, to open.
    revision : str or None
        What exactly it is: a commit of the hub, a version of the package.
    sums : mapping of str to str
        SHA-256 by file name, relative to ``path`` or, where that is a file, to its directory:
        what the origin published, and what the bytes here have.
    files : tuple of str
        All its files, named in the same way.
    notes : tuple of str
        What the user should be told of how it was had, one line each.
    """

    path: Path
    revision: str | None
    sums: Mapping[str, str]
    files: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class GgufSet:
    """One GGUF model in one or several files.

    Attributes
    ----------
    files : tuple of str
        Its files in order; the first is the one to open.
    """

    files: tuple[str, ...]


def is_gguf(name: str) -> bool:
    """Whether a file name is a GGUF file's."""
    return name.lower().endswith(".gguf")


def is_safetensors(name: str) -> bool:
    """Whether a file name is a safetensors file's."""
    return name.lower().endswith(".safetensors")


def is_about(name: str) -> bool:
    """Whether a file name is that of a page which describes a model."""
    return _ABOUT.fullmatch(name) is not None


def is_licence(name: str) -> bool:
    """Whether a file, by its base name, says under what terms the model may be used."""
    base = PurePosixPath(name).name
    return _LICENCE.fullmatch(base) is not None and _CODE.fullmatch(base) is None


def holds_weights(names: Iterable[str]) -> bool:
    """Whether a listing has, at its top, a file of a checkpoint's weights."""
    return any("/" not in name and name.endswith(_WEIGHTS) for name in names)


def terms_and_description(names: Iterable[str]) -> list[str]:
    """Return the files at the top of a listing that describe a model, or state its terms."""
    return [name for name in names if "/" not in name and (is_about(name) or is_licence(name))]


def side_files(names: Iterable[str], weights: str) -> list[str]:
    """Return the files of a listing that belong beside a model's weights.

    Looked for at the top and beside the weights. A GGUF file holds its own configuration and
    tokenizer, so only terms and description are taken with it.

    Parameters
    ----------
    names : iterable of str
        File names with forward slashes.
    weights : str
        One of the model's weight files.
    """
    places = {".", str(PurePosixPath(weights).parent)}
    wanted = _ABOUT if is_gguf(weights) else _SIDE
    return [
        name
        for name in names
        if str(PurePosixPath(name).parent) in places
        and (wanted.fullmatch(PurePosixPath(name).name) or is_licence(name))
    ]


def safetensors_of(names: Iterable[str], where: str, error: type[LarqlError]) -> list[str]:
    """Return the safetensors files at the top of a listing that make one model, sorted.

    ``model.safetensors`` alone where it stands: what lies beside it is the same model in another
    layout, or an adapter. Where there is an index it takes precedence and is the caller's to read.

    Parameters
    ----------
    names : iterable of str
        File names with forward slashes.
    where : str
        What has been listed, for the error text.
    error : type of LarqlError
        The class to raise.

    Returns
    -------
    list of str
        Empty if there is none.

    Raises
    ------
    LarqlError
        Of class ``error``: several files of which it is not known which make the model, or
        numbered shards of which one is missing.
    """
    found = sorted(name for name in names if is_safetensors(name) and "/" not in name)
    if "model.safetensors" in found:
        return ["model.safetensors"]
    if len(found) < 2 and not any(_SHARD.fullmatch(name) for name in found):
        return found
    shards = [match for name in found if (match := _SHARD.fullmatch(name))]
    if len({(match["stem"], match["count"]) for match in shards}) != 1 or len(shards) < len(found):
        raise error(
            f"{where}: {len(found)} safetensors files ({', '.join(found[:3])}...) without a "
            f"{INDEX_NAME}; cannot tell which make the model"
        )
    count = int(shards[0]["count"])
    missing = sorted(set(range(1, count + 1)) - {int(match["number"]) for match in shards})
    if missing or len(shards) != count:
        lost = f", number {missing[0]} is missing" if missing else ""
        raise error(f"{where}: {len(shards)} of {count} safetensors files{lost}")
    return found


def indexed_safetensors(index: Path, listing: Container[str], error: type[LarqlError]) -> list[str]:
    """Return the files that a ``model.safetensors.index.json`` names, sorted.

    Parameters
    ----------
    index : Path
        The index.
    listing : container of str
        The files that there are.
    error : type of LarqlError
        The class to raise.

    Raises
    ------
    LarqlError
        Of class ``error``: the index cannot be read, or names what is not there.
    """
    with open_regular(index, error) as (descriptor, status):
        if status.st_size > _MAX_INDEX_BYTES:
            raise error(f"{index}: {status.st_size} bytes, above the limit of {_MAX_INDEX_BYTES}")
        text = read_exactly(descriptor, 0, status.st_size, str(index), error)
    refuse_pointer(text[:POINTER_LIMIT], str(index), error)
    scanner = JsonScanner(text, f"{index}: index", error)
    files: set[str] = set()
    for member in scanner.members(4096, 1024):
        if member != "weight_map":
            scanner.skip()
            continue
        for _ in scanner.members(4096, 1 << 19):
            files.add(scanner.string(4096))
    scanner.end()
    for file in sorted(files):
        check_relative_name(file, str(index), error)
        if not is_safetensors(file) or file not in listing:
            raise error(f"{index}: names {shown(file)}, which is not there")
    if not files:
        raise error(f"{index}: has no weight_map with tensors")
    return sorted(files)


def gguf_sets(names: Iterable[str], where: str, error: type[LarqlError]) -> list[GgufSet]:
    """Group the GGUF files of a listing into models, sorted by name.

    Vision projectors (``mmproj…``, llama.cpp's name for them) are not models and are left out.

    Parameters
    ----------
    names : iterable of str
        File names with forward slashes.
    where : str
        What has been listed, for the error text.
    error : type of LarqlError
        The class to raise.

    Raises
    ------
    LarqlError
        Of class ``error``: a model in several files of which one is missing.
    """
    single: list[GgufSet] = []
    split: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(names):
        if not is_gguf(name) or PurePosixPath(name).name.lower().startswith("mmproj"):
            continue
        match = _SPLIT.fullmatch(name)
        if match is None:
            single.append(GgufSet((name,)))
        else:
            split.setdefault((match["stem"], int(match["count"])), {})[int(match["number"])] = name
    for (stem, count), files in split.items():
        missing = sorted(set(range(1, count + 1)) - set(files))
        if missing:
            raise error(
                f"{where}: {stem}: {len(files)} of {count} GGUF files, number {missing[0]} is "
                "missing; a model in several files needs all of them"
            )
        single.append(GgufSet(tuple(files[number] for number in range(1, count + 1))))
    return sorted(single, key=lambda model: model.files[0])
