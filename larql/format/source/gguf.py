"""Checkpoints in GGUF: one file, or several parts ``<name>-00001-of-0000N.gguf``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from larql.errors import SourceError
from larql.format.source.checkpoint import (
    Checkpoint,
    SourceTensor,
    find_side_files,
)
from larql.format.source.gguf_header import GgufHeader, read_gguf_header
from larql.format.source.gguf_metadata import Metadata
from larql.format.source.weight_file import WeightFile
from larql.format.tokenizer.files import LICENCE_FILES
from larql.format.untrusted import exists, shown

__all__ = ["GgufCheckpoint", "PartName", "open_gguf", "split_part_name"]

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
NUMBER_KEY = "split.no"
COUNT_KEY = "split.count"
TENSORS_KEY = "split.tensors.count"


class GgufCheckpoint(Checkpoint):
    """A checkpoint in one GGUF file or several parts.

    Attributes
    ----------
    metadata : Metadata
        All metadata (of the first part), with the stored types and raw strings.
    version : int
        GGUF version of the (first) file.
    """

    format: Literal["safetensors", "gguf"] = "gguf"

    def __init__(
        self,
        root: Path,
        files: Mapping[str, WeightFile],
        tensors: Mapping[str, SourceTensor],
        side_files: Mapping[str, Path],
        first: GgufHeader,
    ) -> None:
        super().__init__(root, files, tensors, side_files)
        self.metadata: Metadata = first.metadata
        self.version = first.version

    @property
    def config(self) -> Mapping[str, object]:
        """All metadata, decoded on access."""
        return self.metadata


@dataclass(frozen=True)
class PartName:
    """A file name of the form ``<stem>-<number>-of-<count>.gguf``, five digits each."""

    stem: str
    number: int
    count: int

    @property
    def file_name(self) -> str:
        """The file name."""
        return f"{self.stem}-{self.number:05}-of-{self.count:05}.gguf"


def split_part_name(name: str) -> PartName | None:
    """Return the parts of a file name that follows the naming of split GGUF models, else None."""
    found = _PART.fullmatch(name)
    return PartName(found["stem"], int(found["number"]), int(found["count"])) if found else None


def open_gguf(path: Path) -> GgufCheckpoint:
    """Open a GGUF file, and with it all parts of its model.

    Side files are licences only: the tokenizer and chat template are in the metadata, and a
    ``tokenizer.json`` that happens to lie in the same directory may be another model's.

    Parameters
    ----------
    path : Path
        The file; of a model in parts, any one.

    Returns
    -------
    GgufCheckpoint
        All headers are read; no weights file is left open.

    Raises
    ------
    SourceError
        If a part is missing, the parts contradict each other, or a header is malformed (see
        :func:`~larql.format.source.gguf_header.read_gguf_header`).
    UnsupportedRefusal
        If a tensor has an encoding that this build does not decode.
    """
    headers = [read_gguf_header(path)]
    count = _split_value(headers[0], COUNT_KEY)
    part = split_part_name(path.name)
    if part is None and count is not None and count > 1:
        raise SourceError(
            f"{path}: is one part of {count} ({COUNT_KEY}), but its name does not end in "
            f"-0000N-of-{count:05}.gguf; restore the names of all parts"
        )
    if part is not None and (part.count > 1 or (count or 1) > 1):
        headers = _read_parts(path.parent, part)
    files: dict[str, WeightFile] = {}
    tensors: dict[str, SourceTensor] = {}
    for header in headers:
        files[header.file.path.name] = header.file
        for tensor in header.tensors:
            if tensor.name in tensors:
                raise SourceError(
                    f"{header.file.path}: tensor {shown(tensor.name)} also stands in "
                    f"{tensors[tensor.name].file}; expected each tensor in one part"
                )
            tensors[tensor.name] = tensor
    promised = _split_value(headers[0], TENSORS_KEY)
    if promised is not None and promised != len(tensors):
        raise SourceError(
            f"{headers[0].file.path}: {TENSORS_KEY} is {promised}, but the {len(headers)} parts "
            f"hold {len(tensors)} tensors; the parts are of different models"
        )
    return GgufCheckpoint(
        path.parent, files, tensors, find_side_files(path.parent, LICENCE_FILES), headers[0]
    )


def _read_parts(directory: Path, part: PartName) -> list[GgufHeader]:
    """Read the headers of all parts, checking that each says what its name says."""
    names = [PartName(part.stem, number, part.count) for number in range(1, part.count + 1)]
    for name in names:
        if not exists(directory / name.file_name):
            raise SourceError(
                f"{directory / name.file_name}: part {name.number} of {name.count} is missing; "
                "fetch it into the same directory"
            )
    headers: list[GgufHeader] = []
    for name in names:
        path = directory / name.file_name
        header = read_gguf_header(path)
        for key, expected in ((COUNT_KEY, name.count), (NUMBER_KEY, name.number - 1)):
            found = _split_value(header, key)
            if found != expected:
                raise SourceError(
                    f"{path}: {key} is {'absent' if found is None else found}, expected {expected} "
                    "by its name; the file is not this part"
                )
        headers.append(header)
        _check_same_model(headers[0], header)
    return headers


def _check_same_model(first: GgufHeader, other: GgufHeader) -> None:
    if other.alignment != first.alignment:
        raise SourceError(
            f"{other.file.path}: alignment is {other.alignment}, but {first.alignment} in "
            f"{first.file.path.name}; expected one alignment in all parts"
        )
    for key in other.metadata:
        if key == NUMBER_KEY:
            continue
        if key not in first.metadata or first.metadata[key] != other.metadata[key]:
            raise SourceError(
                f"{other.file.path}: metadata key {shown(key)} differs from "
                f"{first.file.path.name}; the parts are of different models"
            )


def _split_value(header: GgufHeader, key: str) -> int | None:
    value = header.metadata.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise SourceError(
            f"{header.file.path}: {key} is {header.metadata.type_name(key)}; expected an integer"
        )
    return value
