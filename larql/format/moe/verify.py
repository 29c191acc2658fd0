"""A container's manifest of routed experts, held against itself, the index and the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import BindingDefect, LarqlError
from larql.format.closure import BankPlace, Defect
from larql.format.graph import Component
from larql.format.index import INDEX_NAME, Index, load_json
from larql.format.moe.defects import manifest_defects
from larql.format.moe.from_graph import bank_files_of, manifest_of
from larql.format.moe.manifest import Manifest
from larql.format.moe.manifest_json import manifest_from_json

__all__ = ["check_manifest", "contradictions", "read_manifest", "verify_manifest"]

if TYPE_CHECKING:
    from larql.format.container import Container


def verify_manifest(
    container: Path, index: Index, components: Sequence[Component]
) -> Iterator[Defect]:
    """Hold the manifest of routed experts against itself and the graph.

    Parameters
    ----------
    container : Path
        The directory.
    index : Index
    components : sequence of Component
        Those of the graph, which route to them.
    """
    files = bank_files_of(components, index.representations)
    name = index.moe_manifest
    if name is None:
        if files:
            yield Defect(INDEX_NAME, "names no manifest, but experts are routed to")
        return
    manifest, defects = read_manifest(container, name)
    yield from defects
    if manifest is None:
        return
    yield from contradictions(manifest, index, components)


def contradictions(
    manifest: Manifest, index: Index, components: Sequence[Component]
) -> Iterator[Defect]:
    """Hold a manifest that can be read against the index and the components of the graph."""
    name = str(index.moe_manifest)
    for storage in manifest.storages:
        for file in storage.files:
            if file not in index.segments:
                yield Defect(name, f"storage {storage.key} names {file}, which is no segment")
    meant = manifest_of(components, bank_files_of(components, index.representations))
    if manifest != _cut_alike(meant, manifest):
        yield Defect(name, "is not the manifest that the graph implies")


def check_manifest(container: Container) -> None:
    """Refuse a container whose manifest of routed experts is not sound, before anything is bound.

    Raises
    ------
    ContainerError
        If the manifest is missing or has other bytes than the index vouches for.
    BindingDefect
        If it contradicts itself, the index or the graph.
    """
    name = container.index.moe_manifest
    if name is None:
        return
    container.check_bytes(name)
    for defect in verify_manifest(container.path, container.index, container.graph.components):
        raise BindingDefect(
            f"{container.path / defect.where}: {defect.problem}; the manifest and the graph must "
            f"say the same, extract the model again"
        )


def read_manifest(container: Path, name: str) -> tuple[Manifest | None, list[Defect]]:
    """Read a manifest, None if it cannot be, and say what is wrong with it in itself."""
    path = container / name
    try:
        manifest = manifest_from_json(load_json(path), str(path))
    except LarqlError as error:
        return None, [Defect(name, str(error).removeprefix(f"{path}: "))]
    return manifest, [
        Defect(
            name, defect.message, BankPlace(defect.layer, defect.bank, component=defect.component)
        )
        for defect in manifest_defects(manifest)
    ]


def _cut_alike(meant: Manifest | None, found: Manifest) -> Manifest | None:
    """Give each bank the files of another manifest, where these hold the one that is meant.

    The graph does not say into how many files a bank is cut.
    """
    if meant is None:
        return None
    cuts = {(s.key, s.bank_id, file): s for s in found.storages for file in s.files}
    storages = (cuts.get((s.key, s.bank_id, s.files[0]), s) for s in meant.storages)
    return dataclasses.replace(meant, storages=tuple(storages))
