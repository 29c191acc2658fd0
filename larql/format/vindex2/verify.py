"""Whether a VINDEX2 directory's bytes are what its index says, and hold what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from larql.errors import ContainerError, LarqlError
from larql.format.closure import Defect
from larql.format.container import Container, verify_hashes
from larql.format.index import INDEX_NAME
from larql.format.lyrw.v1 import LayerWeights
from larql.format.progress import Progress
from larql.format.vindex2.container import Vindex2
from larql.format.vindex2.layout import (
    DOWN_META,
    EMBEDDINGS,
    GATE,
    MANIFEST,
    TENSOR_FILES,
    is_layer_file,
    needed_level,
)
from larql.format.vindex2.weight_manifest import WeightEntry

__all__ = ["verify_vindex2"]


def verify_vindex2(container: Container, progress: Progress, threads: int | None) -> list[Defect]:
    """Check the hash of every listed file, and that what is inside fits the index.

    Nothing is executed. Defects come in canonical order: files by name, first those that are
    missing or changed, then those whose content contradicts index or model, then operands that are
    not there although the level promises them.

    Returns
    -------
    list of Defect
        Empty if the directory is whole.
    """
    assert isinstance(container, Vindex2)
    defects = list(_hashes(container, progress, threads))
    damaged = {defect.where for defect in defects}
    inside = [*_contents(container, damaged), *_faults(container)]
    for defect in inside:
        if defect.where not in damaged:
            damaged.add(defect.where)
            defects.append(defect)
    return [*defects, *_operands(container, damaged)]


def _hashes(container: Vindex2, progress: Progress, threads: int | None) -> Iterator[Defect]:
    checksums = container.details.checksums
    if not checksums:
        yield Defect(INDEX_NAME, "has no `checksums`, so nothing vouches for any file")
        return
    if INDEX_NAME in checksums:
        yield Defect(INDEX_NAME, "lists itself in `checksums`; its own hash is the fingerprint")
    yield from verify_hashes(container.path, container.index.files, progress, threads)


def _contents(container: Vindex2, damaged: set[str]) -> Iterator[Defect]:
    """Open each file that is not damaged as whoever reads it will."""
    for name in sorted(set(container.listed) - damaged):
        check = _check_of(container, name)
        if check is None:
            continue
        path = container.path / name
        try:
            check()
        except LarqlError as error:
            yield Defect(name, _without(str(error), path))


def _check_of(container: Vindex2, name: str) -> Callable[[], object] | None:
    path = container.path / name
    details = container.details
    if name == MANIFEST:
        return lambda: container.manifest
    if name == DOWN_META:
        return lambda: [container.down_meta.layer(layer) for layer in range(details.num_layers)]
    if name == GATE:
        last = max(details.layers, key=lambda entry: entry.offset + entry.length, default=None)
        return lambda: _at_least(path, 0 if last is None else last.offset + last.length)
    if name == EMBEDDINGS:
        shape = details.vocab_size, details.hidden_size
        return lambda: _at_least(path, details.dtype.nbytes(shape))
    if name in TENSOR_FILES:
        ends = [e.offset + e.length for e in _manifest(container) if e.file == name]
        return lambda: _at_least(path, max(ends, default=0))
    if is_layer_file(name):
        return lambda: LayerWeights(path)
    return None


def _manifest(container: Vindex2) -> tuple[WeightEntry, ...]:
    try:
        return container.manifest
    except LarqlError:
        return ()


def _at_least(path: Path, size: int) -> None:
    found = path.stat().st_size
    if found < size:
        raise ContainerError(f"{path}: has {found} bytes, but is said to hold {size}")


def _faults(container: Vindex2) -> Iterator[Defect]:
    """Yield what contradicts the model, and a graph that cannot be read."""
    if "system_graph" in container.details.model_config:
        try:
            container.graph  # noqa: B018 - raises what is the matter with it
        except LarqlError as error:
            yield Defect(INDEX_NAME, _without(str(error), container.path / INDEX_NAME))
    for name, problem in sorted(container.bound.faults):
        yield Defect(name, _without(problem, container.path / name))


def _operands(container: Vindex2, damaged: set[str]) -> Iterator[Defect]:
    level, bound = container.details.level, container.bound
    if not bound.absent:
        return
    try:
        left_out = container.select(None).elsewhere
    except LarqlError as error:
        yield Defect(INDEX_NAME, _without(str(error), container.path))
        return
    for name, why in bound.absent.items():
        file = bound.places[name].file
        if file not in damaged and not left_out(name) and level.includes(needed_level(file)):
            yield Defect(name, f"is not in the directory: {why}")


def _without(problem: str, path: Path) -> str:
    return problem.removeprefix(f"{path}: ")
