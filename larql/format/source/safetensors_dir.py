"""Checkpoints in safetensors files: one file, or shards with or without an index."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

from larql.errors import SourceError
from larql.format.encoding import ENCODINGS
from larql.format.json_scan import JsonScanner
from larql.format.names import check_relative_name
from larql.format.safetensors_header import parse_header
from larql.format.source.checkpoint import (
    TEXT_FILES,
    Checkpoint,
    SourceTensor,
    find_side_files,
    visible_names,
)
from larql.format.source.weight_file import WeightFile
from larql.format.tokenizer.files import LICENCE_FILES
from larql.format.untrusted import (
    POINTER_LIMIT,
    exists,
    open_regular,
    read_exactly,
    read_json_object,
    refuse_pointer,
    shown,
)

__all__ = ["SafetensorsCheckpoint", "open_safetensors"]

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
CONFIG_NAME = "config.json"
MAX_INDEX_BYTES = 32 << 20
MAX_INDEX_TENSORS = 1 << 18
MAX_NAME_BYTES = 4096
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_ENCODING_OF_DTYPE = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


class SafetensorsCheckpoint(Checkpoint):
    """A checkpoint in safetensors files, with ``config.json`` beside them."""

    format: Literal["safetensors", "gguf"] = "safetensors"

    @cached_property
    def config(self) -> Mapping[str, object]:
        """The content of ``config.json``, read on first use.

        Raises
        ------
        SourceError
            If it is missing, or is not a strict JSON object.
        """
        path = self.root / CONFIG_NAME
        if not exists(path):
            raise SourceError(
                f"{self.root}: has no {CONFIG_NAME}; it says what the model computes, put it "
                "beside the weights"
            )
        return read_json_object(path, SourceError)


def open_safetensors(path: Path) -> SafetensorsCheckpoint:
    """Open a checkpoint directory, or one ``.safetensors`` file beside its ``config.json``.

    Parameters
    ----------
    path : Path
        The directory or file.

    Returns
    -------
    SafetensorsCheckpoint
        All headers are read; no weights file is left open.

    Raises
    ------
    SourceError
        If the index names a file outside the directory, a shard is missing, shards and index
        disagree, a tensor stands in two shards, or a header is malformed.
    """
    if path.is_dir():
        root = path
        shards, weight_map = _directory_files(path)
    else:
        root = path.parent
        shards, weight_map = [path.name], None
        shard = _SHARD.fullmatch(path.name)
        if shard and int(shard["count"]) > 1:
            raise SourceError(
                f"{path}: is one shard of {int(shard['count'])}; give the directory {root} instead"
            )
    files: dict[str, WeightFile] = {}
    tensors: dict[str, SourceTensor] = {}
    for shard_name in shards:
        files[shard_name] = _read_shard(root, shard_name, weight_map, tensors)
    for name, shard_name in (weight_map or {}).items():
        if name not in tensors:
            raise SourceError(
                f"{root / shard_name}: tensor {shown(name)} is missing, which {INDEX_NAME} "
                "promises in this shard; fetch the checkpoint again"
            )
    return SafetensorsCheckpoint(
        root, files, tensors, find_side_files(root, TEXT_FILES + LICENCE_FILES)
    )


def _read_shard(
    root: Path,
    shard_name: str,
    weight_map: Mapping[str, str] | None,
    tensors: dict[str, SourceTensor],
) -> WeightFile:
    """Read the header of one shard and add its tensors to ``tensors``."""
    path = root / shard_name
    with open_regular(path, SourceError) as (descriptor, status):
        header = parse_header(descriptor, status.st_size, str(path), SourceError)
    for name, entry in header.entries.items():
        if name in tensors:
            raise SourceError(
                f"{path}: tensor {shown(name)} also stands in {tensors[name].file}; expected each "
                "tensor in one shard"
            )
        if weight_map is not None and weight_map.get(name) != shard_name:
            promised = weight_map.get(name)
            expected = f"which it places in {promised}" if promised else "which it does not list"
            raise SourceError(
                f"{path}: holds tensor {shown(name)}, {expected}, by {INDEX_NAME}; shards and "
                "index are of different checkpoints"
            )
        encoding_name = _ENCODING_OF_DTYPE.get(entry.dtype)
        tensors[name] = SourceTensor(
            name=name,
            shape=entry.shape,
            dtype=entry.dtype,
            known_encoding=ENCODINGS[encoding_name] if encoding_name else None,
            file=shard_name,
            offset=header.data_start + entry.begin,
            nbytes=entry.end - entry.begin,
        )
    return WeightFile(path, status)


def _directory_files(directory: Path) -> tuple[list[str], dict[str, str] | None]:
    """Return the shards of a directory and, if it has an index, tensor name to shard."""
    try:
        names = [name for name in visible_names(directory) if name.endswith(".safetensors")]
        has_index = exists(directory / INDEX_NAME)
    except OSError as problem:
        raise SourceError(f"{directory}: cannot read: {problem.strerror}") from None
    if has_index:
        weight_map = _read_weight_map(directory / INDEX_NAME)
        shards = sorted(set(weight_map.values()))
        if SINGLE_NAME in names and SINGLE_NAME not in shards:
            raise SourceError(
                f"{directory}: holds {SINGLE_NAME} and an {INDEX_NAME} that names other files; "
                "remove one of the two, or name the file"
            )
        for shard in shards:
            if not exists(directory / shard):
                raise SourceError(
                    f"{directory / shard}: shard is missing, which {INDEX_NAME} names; fetch the "
                    "checkpoint again"
                )
        return shards, weight_map
    if SINGLE_NAME in names:
        return [SINGLE_NAME], None
    numbered = [match for name in names if (match := _SHARD.fullmatch(name))]
    if numbered and len(numbered) == len(names):
        return _numbered_shards(directory, numbered), None
    if len(names) == 1:
        return names, None
    raise SourceError(
        f"{directory}: holds {len(names)} safetensors files, but no {SINGLE_NAME}, {INDEX_NAME} or "
        "complete set of numbered shards; name the file that you mean"
    )


def _numbered_shards(directory: Path, numbered: list[re.Match[str]]) -> list[str]:
    stem, count = numbered[0]["stem"], int(numbered[0]["count"])
    if any(match["stem"] != stem or int(match["count"]) != count for match in numbered):
        raise SourceError(
            f"{directory}: holds shards of different sets ({numbered[0][0]}, {numbered[-1][0]}) "
            f"and no {INDEX_NAME}; keep one set"
        )
    present = {int(match["number"]) for match in numbered}
    for number in range(1, count + 1):
        if number not in present:
            raise SourceError(
                f"{directory / f'{stem}-{number:05}-of-{count:05}.safetensors'}: shard is missing "
                f"({len(present)} of {count} are here); fetch the checkpoint again"
            )
    if len(present) != count:
        raise SourceError(
            f"{directory}: holds {len(present)} shards numbered as if of {count}; keep one set"
        )
    return [match[0] for match in numbered]


def _read_weight_map(path: Path) -> dict[str, str]:
    """Read the index, validating every file name before any of them is used."""
    where = str(path)
    with open_regular(path, SourceError) as (descriptor, status):
        if status.st_size > MAX_INDEX_BYTES:
            raise SourceError(
                f"{where}: {status.st_size} bytes, above the limit of {MAX_INDEX_BYTES}"
            )
        text = read_exactly(descriptor, 0, status.st_size, where, SourceError)
    refuse_pointer(text[:POINTER_LIMIT], where, SourceError)
    scanner = JsonScanner(text, f"{where}: index", SourceError)
    weight_map: dict[str, str] = {}
    checked: dict[str, str] = {}
    for member in scanner.members(MAX_NAME_BYTES, 1024):
        if member != "weight_map":
            scanner.skip()
            continue
        for name in scanner.members(MAX_NAME_BYTES, MAX_INDEX_TENSORS):
            shard = scanner.string(MAX_NAME_BYTES)
            if shard not in checked:
                checked[shard] = check_relative_name(
                    shard, f"{where}: weight_map of tensor {shown(name)}", SourceError
                )
            weight_map[name] = checked[shard]
    scanner.end()
    if not weight_map:
        raise SourceError(f"{where}: has no weight_map with tensors; expected name to shard")
    return weight_map
