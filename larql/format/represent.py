"""A container with further representations of what it holds: rows packed for wide vectors.

Everything that the container held stays as it is and keeps serving; the packed rows are siblings
that a profile selects. They are derived from stored bytes by a bijection, and each slab is unpacked
again and compared before it is written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from larql.errors import ContainerError, EncodingError, LarqlError, UsageError
from larql.format.atomic import check_output, write_directory
from larql.format.closure import operand_contracts
from larql.format.container import Container, is_container
from larql.format.digest import remember_sha256
from larql.format.encoding import Encoding, packed_form
from larql.format.graph import Component, LatentAttention
from larql.format.index import (
    INDEX_NAME,
    FileEntry,
    Index,
    Representation,
    dump_json,
    index_to_json,
)
from larql.format.moe.profiles import DEFAULT, Selection
from larql.format.progress import Progress
from larql.format.segment import SegmentTensor, write_segment, write_stream
from larql.format.siblings import packed_fidelity, stored_slabs
from larql.format.source.extract import check_beside, precision_map

__all__ = ["PACKED", "Packing", "pack_container"]

PACKED = "packed"
"""Name of the variant, of the profile that selects it, and of the folder of its segments."""

_CHUNK = 4 << 20
# What a file system says where it cannot link: another device, no links at all, too many.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES, errno.ENOSYS)


@dataclass(frozen=True)
class Packing:
    """What packing wrote.

    Attributes
    ----------
    path : Path
        The container.
    fingerprint : str
        The sha256 of its index.
    nbytes, added : int
        Size of all its files, and of those that were written anew.
    packed : mapping
        Operand to the representation that was added.
    left : mapping
        Operand that was not packed to the reason.
    """

    path: Path
    fingerprint: str
    nbytes: int
    added: int
    packed: Mapping[str, Representation]
    left: Mapping[str, str]


def pack_container(
    container: Container, output: Path, *, force: bool, progress: Progress
) -> Packing:
    """Write a container that holds a container's matrices packed as well.

    Packed is what the container serves by itself, so that a run under the profile computes the
    same numbers. Memory holds a few slabs of one tensor.

    Parameters
    ----------
    container : Container
        Opened; it is not changed. Its files are linked where the file system allows it.
    output : Path
        Directory to create.
    force : bool
        Replace a container that stands at ``output``.
    progress : Progress
        Told of the bytes packed.

    Raises
    ------
    UsageError
        If the container is packed already, or nothing in it can be packed.
    OutputError
        If the output exists or cannot be written. No partial directory is left behind.
    ContainerError
        If a file of the container is missing or has other bytes than the index says.
    """
    check_beside(output, container.path)
    check_output(output, force=force, replaceable=is_container)
    _check_unpacked(container)
    chosen, left = _choose(container)
    if not chosen:
        reasons = ", ".join(dict.fromkeys(left.values()))
        raise UsageError(f"{container.path}: nothing in it can be packed: {reasons}")
    index = container.index
    with write_directory(output, force=force, replaceable=is_container) as directory:
        linked = _carry(container, directory)
        segments = _write(container, directory, chosen, progress)
        made = _index(index, chosen, segments)
        entry = write_stream(directory / INDEX_NAME, [dump_json(index_to_json(made))])
    for name, file in made.files.items():
        remember_sha256(output / name, file.sha256)
        if name in linked:  # a link changes the change time, under which a digest is remembered
            remember_sha256(container.path / name, file.sha256)
    return Packing(
        path=output,
        fingerprint=entry.sha256,
        nbytes=entry.size + sum(file.size for file in made.files.values()),
        added=sum(file.size for file in segments.values()),
        packed={value.operand: value for _, value in chosen},
        left=left,
    )


def _check_unpacked(container: Container) -> None:
    index = container.index
    for value in index.representations.values():
        if value.encoding.unpacked is not None:
            raise UsageError(
                f"{container.path}: operand {value.operand} is packed already, as {value.id}; use "
                f"the container as it is"
            )
    for kind, names in (("profile", index.profiles), ("variant", index.variants)):
        if PACKED in names:
            raise UsageError(
                f"{container.path}: has a {kind} {PACKED!r} of its own; take the container that "
                f"it was made from"
            )


def _choose(
    container: Container,
) -> tuple[list[tuple[Representation, Representation]], dict[str, str]]:
    """Return each representation to pack with what it becomes, and why the others are left."""
    selection = container.select(None)
    components = container.graph.components
    by_heads = {name for component in components for name in _read_by_heads(component)}
    names = [c.name for component in components for c in operand_contracts(component)]
    chosen: list[tuple[Representation, Representation]] = []
    left: dict[str, str] = {}
    for operand in dict.fromkeys([*names, *selection.bound]):
        found = _served(container, selection, operand)
        if isinstance(found, str):
            left[operand] = found
            continue
        enc = packed_form(found.encoding)
        reason = _reason(container, found, enc, by_heads)
        if reason is not None or enc is None:
            left[operand] = str(reason)
        else:
            chosen.append((found, _packed(container.index, found, enc)))
    return chosen, left


def _served(container: Container, selection: Selection, operand: str) -> Representation | str:
    try:
        return selection.serving(operand, str(container.path))
    except LarqlError:
        if operand in selection.bound:
            return f"the profile {selection.profile} does not serve it"
        return "it is not in the container"


def _read_by_heads(component: Component) -> Iterator[str]:
    """Yield matrices of which an operation reads rows by themselves, and not a product."""
    for layer in component.layers:
        for block in layer.blocks:
            if isinstance(block.mixer, LatentAttention):
                yield block.mixer.k_up.weight
                yield block.mixer.v_up.weight


def _reason(
    container: Container, value: Representation, enc: Encoding | None, by_heads: set[str]
) -> str | None:
    """Return why a representation is not packed, None where it is."""
    if container.index.holds_banks(value.segment):
        return "experts of banks, which are never packed"
    if len(value.shape) == 1:
        return "vectors"
    if len(value.shape) != 2:
        return f"{len(value.shape)} axes, where a matrix has 2"
    if enc is None:
        return f"{value.encoding.name} has no packed form"
    if value.shape[0] % enc.slab_rows:
        return f"{value.shape[0]} rows are not a multiple of {enc.slab_rows}"
    if value.operand in by_heads:
        return "latent attention reads it head by head, and not as a product"
    return None


def _packed(index: Index, value: Representation, enc: Encoding) -> Representation:
    segment = f"segments/{PACKED}/{value.segment.removeprefix('segments/')}"
    id_ = f"{value.id}@{PACKED}"
    if id_ in index.representations or segment in index.files:
        raise UsageError(f"{id_}: the container has a representation or file {segment} already")
    return replace(
        value,
        id=id_,
        encoding=enc,
        fidelity=packed_fidelity(value),
        segment=segment,
        packs=value.id,
    )


def _carry(container: Container, directory: Path) -> frozenset[str]:
    """Put the container's files into the directory; return those that were linked."""
    linked = set()
    for name, entry in container.index.files.items():
        container.check_bytes(name)
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source = os.path.realpath(container.path / name)
        try:
            os.link(source, target)
            linked.add(name)
            continue
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
        with open(source, "rb") as stream:  # noqa: PTH123 - realpath gives a string
            copied = write_stream(target, iter(lambda: stream.read(_CHUNK), b""))
        if (copied.size, copied.sha256) != (entry.size, entry.sha256):
            raise ContainerError(f"{container.path / name}: changed while it was copied")
    return frozenset(linked)


def _write(
    container: Container,
    directory: Path,
    chosen: list[tuple[Representation, Representation]],
    progress: Progress,
) -> dict[str, FileEntry]:
    grouped: dict[str, list[tuple[Representation, Representation]]] = {}
    for value, packed in chosen:
        grouped.setdefault(packed.segment, []).append((value, packed))
    progress.start("pack", sum(packed.nbytes for _, packed in chosen))
    segments = {}
    for name, pairs in grouped.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = [
            SegmentTensor(p.tensor, p.encoding, p.shape, _slabs(container, v, p, progress))
            for v, p in pairs
        ]
        segments[name] = write_segment(path, tensors)
    progress.finish()
    return segments


def _slabs(
    container: Container, value: Representation, packed: Representation, progress: Progress
) -> Iterator[bytes]:
    """Yield the packed bytes of a tensor, some slabs at a time, each compared with what it is of.

    Raises
    ------
    ContainerError
        If the tensor is not stored as the index says.
    EncodingError
        If what is unpacked is not what was packed.
    """
    import numpy as np

    from larql.format.codec import pack, unpack

    enc, columns = packed.encoding, value.shape[-1]
    for rows in stored_slabs(container, value, enc.slab_rows):
        made = pack(enc, rows, columns)
        if not np.array_equal(unpack(enc, made, columns), rows):
            raise EncodingError(
                f"{container.path / value.segment}: tensor {value.tensor} packed as {enc.name} "
                f"does not unpack to itself; this is a defect of larql, please report it"
            )
        progress.advance(made.nbytes)
        yield made.tobytes()


def _index(
    index: Index,
    chosen: list[tuple[Representation, Representation]],
    segments: Mapping[str, FileEntry],
) -> Index:
    added = {packed.id: packed for _, packed in chosen}
    representations = {**index.representations, **added}
    files = {**index.files, **segments}
    return replace(
        index,
        representations=representations,
        objects=_objects(index, chosen),
        precision_map=precision_map(representations),
        segments={**index.segments, **segments},
        files={name: files[name] for name in sorted(files)},
        variants={
            **index.variants,
            PACKED: {"representations": {p.operand: p.id for p in added.values()}},
        },
        profiles={
            **index.profiles,
            PACKED: {
                "inherits": DEFAULT if DEFAULT in index.profiles else None,
                "variants": [PACKED],
            },
        },
    )


def _objects(
    index: Index, chosen: list[tuple[Representation, Representation]]
) -> dict[str, object]:
    """Return the objects with the packed representations after those that they list."""
    beside = {value.id: packed.id for value, packed in chosen}
    objects = dict(index.objects)
    for name, document in objects.items():
        listed = document.get("representations") if isinstance(document, Mapping) else None
        if isinstance(document, Mapping) and isinstance(listed, list):
            more = [beside[id_] for id_ in listed if id_ in beside]
            objects[name] = {**document, "representations": [*listed, *more]}
    return objects
