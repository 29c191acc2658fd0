"""Writing a slice of a VINDEX3 container: parts of files, and an index that says what is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from larql.format.banks import BANK_SCHEMA
from larql.format.container import Container
from larql.format.generation import Generation, written_schema
from larql.format.graph_json import graph_to_json
from larql.format.index import FileEntry, Index, Representation, dump_json, index_to_json
from larql.format.moe.manifest_json import manifest_to_json
from larql.format.progress import Progress
from larql.format.safetensors_header import contiguous_entries, serialize_header
from larql.format.segment import (
    SegmentTensor,
    hash_file,
    stored_shape,
    write_segment,
    write_stream,
)
from larql.format.slicing.banks import file_size, write_cut
from larql.format.slicing.made import Made, Planned, write_cut_directory
from larql.format.slicing.plan import SlicePlan
from larql.format.slicing.profiles import sliced_profiles, sliced_variants
from larql.format.source.extract import GRAPH_NAME, MANIFEST_NAME, precision_map

__all__ = ["planned_files", "write_slice"]


def _documents(container: Container, plan: SlicePlan) -> dict[str, bytes]:
    """Return graph and manifest as they stand in the slice, by name."""
    graph_name = container.index.system_graph or GRAPH_NAME
    documents = {graph_name: dump_json(graph_to_json(plan.graph))}
    if plan.manifest is not None:
        name = container.index.moe_manifest or MANIFEST_NAME
        documents[name] = dump_json(manifest_to_json(plan.manifest))
    return documents


def planned_files(container: Container, plan: SlicePlan) -> tuple[Planned, ...]:
    """Return the files that a slice will hold, by name; all but its index."""
    found = [Planned(name, container.index.files[name].size, "whole") for name in plan.linked]
    for name, values in plan.segments.items():
        entries = contiguous_entries(
            (v.tensor, v.encoding.safetensors_dtype, stored_shape(v.encoding, v.shape))
            for v in values
        )
        size = len(serialize_header(entries)) + sum(value.nbytes for value in values)
        found.append(Planned(name, size, "cut"))
    for name, cut in plan.banks.items():
        found.append(Planned(name, file_size(container.bank_file(cut.source), cut.tables), "cut"))
    for name, data in _documents(container, plan).items():
        found.append(Planned(name, len(data), "written"))
    return tuple(sorted(found, key=lambda file: file.name))


def write_slice(
    container: Container, plan: SlicePlan, output: Path, *, force: bool, progress: Progress
) -> Made:
    """Write a slice of a VINDEX3 container.

    Parameters
    ----------
    container : Container
        Is not changed.
    plan : SlicePlan
        Of this container.
    output : Path
        Directory to create.
    force : bool
        Replace a container that stands at ``output``.
    progress : Progress
        Told of the bytes that are taken over.

    Raises
    ------
    ContainerError
        If a file of the container is damaged.
    OutputError
        If the output exists or cannot be written. No partial directory is left behind.
    """

    def index(files: Mapping[str, FileEntry]) -> bytes:
        return dump_json(index_to_json(_index(container, plan, files)))

    return write_cut_directory(
        container,
        output,
        planned_files(container, plan),
        partial(_write_anew, container, plan, progress),
        index,
        force=force,
        progress=progress,
    )


def _write_anew(
    container: Container, plan: SlicePlan, progress: Progress, directory: Path
) -> Iterator[tuple[str, FileEntry]]:
    for name, values in plan.segments.items():
        container.check_bytes(name)
        segment = container.segment(name)
        for value in values:
            segment.check(value.tensor, value.encoding, value.shape)
        entry = write_segment(
            directory / name,
            [
                SegmentTensor(v.tensor, v.encoding, v.shape, segment.chunks(v.tensor))
                for v in values
            ],
        )
        progress.advance(entry.size)
        yield name, entry
    for name, cut in plan.banks.items():
        container.check_bytes(cut.source)
        write_cut(directory / name, container.bank_file(cut.source), cut.tables, progress)
        found = hash_file(directory / name)
        yield name, FileEntry(found.size, found.sha256)
    for name, data in _documents(container, plan).items():
        yield name, write_stream(directory / name, [data])


def _index(container: Container, plan: SlicePlan, files: Mapping[str, FileEntry]) -> Index:
    index = container.index
    kept = plan.representations
    main = plan.graph.components[0]
    segments = {}
    for name, entry in files.items():
        if name in plan.banks:
            extra: Mapping[str, object] = {"schema": BANK_SCHEMA}
        elif name in index.segments:
            extra = index.segments[name].extra
        else:
            continue
        segments[name] = FileEntry(entry.size, entry.sha256, extra)
    return Index(
        schema=written_schema(Generation.VINDEX3),
        model=index.model,
        family=index.family,
        hidden_size=main.hidden_size,
        num_layers=len(main.layers),
        components=tuple(component.id for component in plan.graph.components),
        system_graph=index.system_graph,
        moe_manifest=None if plan.manifest is None else index.moe_manifest or MANIFEST_NAME,
        source=index.source,
        text=index.text,
        objects=_objects(index.objects, kept),
        representations=kept,
        precision_map=precision_map(kept),
        authority="derived",
        notes=(*index.notes, *plan.notes),
        segments=segments,
        files={name: FileEntry(files[name].size, files[name].sha256) for name in sorted(files)},
        profiles=sliced_profiles(index.profiles, plan),
        variants=sliced_variants(index.variants, kept),
        derived_from_model=index.derived_from_model or container.fingerprint,
        extra=index.extra,
    )


def _objects(
    objects: Mapping[str, object], kept: Mapping[str, Representation]
) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in objects.items():
        document = cast("Mapping[str, object]", value if isinstance(value, Mapping) else {})
        listed = document.get("representations")
        ids = [i for i in listed if i in kept] if isinstance(listed, list) else []
        if ids:
            found[name] = {**document, "representations": ids}
    return found
