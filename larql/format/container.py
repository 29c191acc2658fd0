"""A VINDEX3 container: opened from headers only, verified file by file and operand by operand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import BindingDefect, ContainerError, LarqlError, SourceError, UsageError
from larql.format.atomic import recover
from larql.format.closure import Defect, check_closure, check_geometry
from larql.format.digest import sha256_of
from larql.format.generation import Generation, generation_of
from larql.format.graph import Component, Graph
from larql.format.graph_json import graph_from_json
from larql.format.index import (
    INDEX_NAME,
    FileEntry,
    Index,
    Representation,
    index_from_json,
    load_json,
    read_index_document,
)
from larql.format.progress import Progress
from larql.format.segment import Segment

if TYPE_CHECKING:
    from larql.format.banks import EntryRegions
    from larql.format.lyrw.v2 import BankFile
    from larql.format.moe.manifest import Storage
    from larql.format.moe.profiles import Selection

__all__ = [
    "Container",
    "EncodingShare",
    "is_container",
    "open_container",
    "verify_container",
    "verify_hashes",
]


def is_container(directory: Path) -> bool:
    """Return whether a directory has an index of a schema that this build knows.

    Of the index no more is asked than what tells it from another program's ``index.json``, so that
    a damaged container still is one.
    """
    try:
        _schema, document = read_index_document(directory)
    except LarqlError:
        return False
    return {"model", "hidden_size", "num_layers"} <= document.keys()


@dataclass(frozen=True)
class EncodingShare:
    """How much of a container is stored in one encoding."""

    encoding: str
    tensors: int
    elements: int
    nbytes: int


def open_container(path: Path) -> Container:
    """Open a directory of either generation, as its schema version says.

    Raises
    ------
    ContainerError, GenerationError, UnsupportedRefusal
        If the index is missing, malformed or newer than this build.
    """
    _recovered(path)
    schema, _document = read_index_document(path)
    if generation_of(schema) is Generation.VINDEX2:
        from larql.format.vindex2.container import Vindex2

        return Vindex2(path)
    return Container(path)


def _recovered(path: Path) -> None:
    """Put back a directory that a killed replacement left moved aside; refuse where there is none.

    Raises
    ------
    ContainerError
        If no directory is there.
    """
    try:
        recover(path)
        present = path.is_dir()
    except OSError as error:
        raise ContainerError(f"{path}: cannot be opened: {error.strerror}") from None
    if not present:
        raise ContainerError(f"{path}: is not a directory; expected a container")


class Container:
    """A container directory whose index has been read; nothing else has.

    Parameters
    ----------
    path : Path
        The directory.

    Raises
    ------
    ContainerError, GenerationError, UnsupportedRefusal
        If the index is missing, malformed, of another generation or newer than this build.
    """

    def __init__(self, path: Path) -> None:
        _recovered(path)
        self.path = path
        self._segments: dict[str, Segment] = {}
        self._bank_files: dict[str, BankFile] = {}
        self._checked: set[str] = set()
        _schema, document = read_index_document(path)
        self.index: Index = self._read_index(document)

    def _read_index(self, document: Mapping[str, object]) -> Index:
        return index_from_json(document, str(self.path / INDEX_NAME))

    @property
    def generation(self) -> Generation:
        """The generation of the container's schema version."""
        return generation_of(self.index.schema)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of ``index.json``, which names every other file by its hash."""
        return hashlib.sha256((self.path / INDEX_NAME).read_bytes()).hexdigest()

    @cached_property
    def graph(self) -> Graph:
        """The system graph.

        Raises
        ------
        ContainerError, UnsupportedRefusal
            If it is missing, malformed or newer than this build.
        """
        if self.index.system_graph is None:
            raise ContainerError(f"{self.path}: has no system graph; it cannot be executed")
        path = self.path / self.index.system_graph
        document = load_json(path)
        self.check_bytes(self.index.system_graph)
        return graph_from_json(document, str(path))

    def check_bytes(self, name: str) -> None:
        """Refuse a file whose bytes are not those that the index vouches for.

        The hash of a file that has not changed since is remembered between runs, so that a
        container is hashed once and not at every command.

        Parameters
        ----------
        name : str
            As the index lists it.

        Raises
        ------
        ContainerError
            If the file is missing, unreadable, unlisted, or has other bytes.
        """
        if name in self._checked:
            return
        entry = self.index.files.get(name)
        if entry is None:
            raise ContainerError(f"{self.path / name}: is not listed in the index's `files`")
        try:
            found = sha256_of(self.path / name)
        except SourceError as error:
            raise ContainerError(str(error)) from None
        if found != entry.sha256:
            packed = any(v.packs and v.segment == name for v in self.index.representations.values())
            remedy = "pack the container again" if packed else "extract the model again"
            raise ContainerError(
                f"{self.path / name}: has sha256 {found}, the index vouches for {entry.sha256}; "
                f"the file is damaged, {remedy}"
            )
        self._checked.add(name)

    def beside(self, name: str) -> str | None:
        """Return a component's id; None: it is the graph's first, the model proper."""
        return None if name == self.graph.components[0].id else name

    def component(self, name: str) -> Component:
        """Return a component by id.

        Raises
        ------
        UsageError
            If the container has no such component.
        BindingDefect
            If the component's own numbers contradict each other.
        """
        for component in self.graph.components:
            if component.id == name:
                for defect in check_geometry(component):
                    raise BindingDefect(f"{self.path}: {defect.line()}")
                return component
        known = ", ".join(component.id for component in self.graph.components)
        why = "" if (left := self.draft_head_left_behind) is None else f"; {left}"
        raise UsageError(f"{self.path}: no component {name!r}; it has {known}{why}")

    @property
    def draft_head_left_behind(self) -> str | None:
        """Why a draft head that the checkpoint has was not carried; None where none was left."""
        for note in self.index.notes:
            if "draft head was left behind" in note:
                return note.removeprefix("warning: ")
        return None

    @cached_property
    def operands(self) -> Mapping[str, Representation]:
        """The baseline of each operand, whatever a profile selects; a run uses :meth:`select`."""
        return self.index.by_operand()

    def select(self, profile: str | None) -> Selection:
        """Return which representation serves each operand of a run, and what is left out.

        Parameters
        ----------
        profile : str or None
            None: the profile ``default``, or the document where it has none of that name.

        Raises
        ------
        UsageError
            If there is no such profile, naming those that there are.
        ContainerError, UnsupportedRefusal
            If the profile is malformed or speaks of what is not there, or the graph cannot be read.
        """
        from larql.format.moe.profiles import selection_of

        return selection_of(self.index, self.graph.components, profile, str(self.path))

    def segment(self, name: str) -> Segment:
        """Open a segment by the name under which the index lists it.

        Raises
        ------
        ContainerError
            If the file is missing or malformed.
        """
        if name not in self._segments:
            self._segments[name] = Segment(self.path / name)
        return self._segments[name]

    def bank_file(self, name: str) -> BankFile:
        """Open a file of expert banks by the name under which the index lists it.

        Some of its regions may be unusable, which is told when one is asked for.

        Raises
        ------
        ContainerError, GenerationError, UnsupportedRefusal
            If the file is missing or malformed.
        """
        from larql.format.lyrw.v2 import BankFile

        if name not in self._bank_files:
            path = self.path / name
            self._bank_files[name] = BankFile(path, self.index.schema, tolerant=True)
        return self._bank_files[name]

    @cached_property
    def storages(self) -> Mapping[str, Storage]:
        """By file of banks, the storage that it is one file of.

        Raises
        ------
        ContainerError, UnsupportedRefusal
            If the manifest cannot be read.
        """
        if self.index.moe_manifest is None:
            return {}
        from larql.format.moe.manifest_json import manifest_from_json

        path = self.path / self.index.moe_manifest
        manifest = manifest_from_json(load_json(path), str(path))
        return {name: item for item in manifest.storages for name in item.files}

    def holds_bank(self, value: Representation) -> bool:
        """Return whether an operand lies in a file of expert banks, an entry for each expert.

        Raises
        ------
        UnsupportedRefusal
            If its file is of a kind that this build does not know.
        """
        return self.index.holds_banks(value.segment)

    def bank_names(self, name: str) -> tuple[str, ...]:
        """Return the files of which one holds a part of a bank, that one first.

        Raises
        ------
        ContainerError, GenerationError, UnsupportedRefusal
            If the file is malformed, or is one of several and the manifest cannot be read.
        """
        if not self.bank_file(name).tables.one_of_several:
            return (name,)
        storage = self.storages.get(name)
        others = () if storage is None else storage.files
        return (name, *(other for other in others if other != name))

    def entries(self, value: Representation) -> EntryRegions:
        """Return where the regions of an operand of experts are.

        Raises
        ------
        ContainerError, GenerationError, UnsupportedRefusal
            As :func:`~larql.format.banks.entry_regions`, or if a file is missing or malformed.
        """
        from larql.format.banks import entry_regions

        names = self.bank_names(value.segment)
        return entry_regions([self.bank_file(name) for name in names], value)

    def text_files(self) -> dict[str, Path]:
        """Return the container's files outside segments, graph and manifest, by name."""
        own = {self.index.system_graph, self.index.moe_manifest, *self.index.segments}
        return {name: self.path / name for name in self.index.files if name not in own}

    def facts(self) -> Mapping[str, object]:
        """Return what else the index says that a reader should be shown."""
        return {}

    def census(self) -> tuple[EncodingShare, ...]:
        """Return what is stored in each encoding, largest share of elements first."""
        shares: dict[str, list[int]] = {}
        for representation in self.index.representations.values():
            share = shares.setdefault(representation.encoding.name, [0, 0, 0])
            share[0] += 1
            share[1] += representation.elements
            share[2] += representation.nbytes
        ordered = sorted(shares.items(), key=lambda item: (-item[1][1], item[0]))
        return tuple(EncodingShare(name, *share) for name, share in ordered)


def verify_container(
    container: Container, progress: Progress, threads: int | None = None
) -> list[Defect]:
    """Check every hash of a container, and whether its operands will bind.

    Nothing is executed. Defects come in canonical order: files by name, then operands in
    execution order.

    Parameters
    ----------
    container : Container
    progress : Progress
    threads : int or None
        To hash with; None: one for each core. What is found does not depend on it.

    Returns
    -------
    list of Defect
        Empty if the container is whole.
    """
    index = container.index
    if container.generation is Generation.VINDEX2:
        from larql.format.vindex2.verify import verify_vindex2

        return verify_vindex2(container, progress, threads)
    defects = list(_verify_files(container, progress, threads))
    if index.system_graph is None:
        return _with_banks(container, defects)
    try:
        graph = container.graph
    except LarqlError as error:
        path = container.path / index.system_graph
        unreadable = Defect(index.system_graph, str(error).removeprefix(f"{path}: "))
        known = any(defect.where == index.system_graph for defect in defects)
        return defects if known else [*defects, unreadable]
    for name, stated, meant in (
        ("hidden_size", index.hidden_size, graph.components[0].hidden_size),
        ("num_layers", index.num_layers, len(graph.components[0].layers)),
    ):
        if stated != meant:
            defects.append(Defect(INDEX_NAME, f"{name} is {stated}, the graph says {meant}"))
    from larql.format.moe.profiles import select

    left_out: Callable[[str], bool] = lambda _operand: False  # noqa: E731
    with suppress(LarqlError):  # told below, with the other profiles
        left_out = select(index, None, str(container.path)).elsewhere
    for component in graph.components:
        if component.id not in index.components:
            defects.append(Defect(component.id, "component is not listed in the index"))
        defects.extend(check_closure(component, container.operands, left_out))
    for name in index.components:
        if name not in {component.id for component in graph.components}:
            defects.append(Defect(name, "component is listed in the index but not in the graph"))
    from larql.format.moe.verify import verify_manifest

    defects.extend(verify_manifest(container.path, index, graph.components))
    damaged = {defect.where for defect in defects}
    for representation in index.representations.values():
        defect = _verify_representation(container, representation)
        if defect is not None and representation.segment not in damaged:
            defects.append(defect)
    defects.extend(_verify_profiles(container))
    defects.extend(_verify_packed(container, {defect.where for defect in defects}, progress))
    return _with_banks(container, defects)


def _with_banks(container: Container, defects: list[Defect]) -> list[Defect]:
    """Add what is wrong with expert banks, and say of what is known which bank is meant."""
    if container.index.moe_manifest is None:
        return defects
    from larql.format.moe.bank_view import verify_banks, with_places

    damaged = {defect.where for defect in defects}
    return with_places(container, [*defects, *verify_banks(container, damaged)])


def _verify_profiles(container: Container) -> Iterator[Defect]:
    for name in container.index.profiles:
        try:
            selection = container.select(name)
        except LarqlError as error:
            yield Defect(INDEX_NAME, str(error).removeprefix(f"{container.path}: "))
            continue
        for operand, ids in selection.contradictions.items():
            yield Defect(operand, f"profile {name} selects {', '.join(ids)} for it at once")


def _verify_packed(container: Container, damaged: set[str], progress: Progress) -> Iterator[Defect]:
    """Unpack what was packed from something else, and compare."""
    known = container.index.representations.values()
    values = [value for value in known if value.packs or value.encoding.unpacked]
    values = [value for value in values if value.segment not in damaged]
    if not values:
        return
    from larql.format.siblings import sibling_problem

    progress.start("unpack", sum(value.nbytes for value in values))
    for value in values:
        other = container.index.representations.get(str(value.packs))
        if other is None or other.segment not in damaged:
            problem = sibling_problem(container, value)
            if problem is not None:
                yield Defect(value.segment, f"operand {value.operand}: {value.id} {problem}")
        progress.advance(value.nbytes)
    progress.finish()


def _verify_files(
    container: Container, progress: Progress, threads: int | None
) -> Iterator[Defect]:
    index = container.index
    for name in sorted(set(index.segments) | {r.segment for r in index.representations.values()}):
        if name not in index.files:
            yield Defect(name, "segment is not listed in `files`, so nothing vouches for it")
        elif name in index.segments and index.segments[name] != index.files[name]:
            yield Defect(name, "`segments` and `files` state different sizes or hashes")
    for kind, document in (("graph", index.system_graph), ("manifest", index.moe_manifest)):
        if document is not None and document not in index.files:
            yield Defect(document, f"{kind} is not listed in `files`, so nothing vouches for it")
    if INDEX_NAME in index.files:
        yield Defect(INDEX_NAME, "lists itself in `files`; its own hash is the fingerprint")
    yield from verify_hashes(container.path, index.files, progress, threads)


def verify_hashes(
    directory: Path, files: Mapping[str, FileEntry], progress: Progress, threads: int | None
) -> Iterator[Defect]:
    """Yield which files of a directory are missing, or not of the size and hash that is stated."""
    from larql.format.hash_files import hash_files

    sizes = {name: entry.size for name, entry in files.items()}
    hashes = hash_files(directory, sizes, threads, progress)
    for name in sorted(files):
        entry, found = files[name], hashes[name]
        if isinstance(found, ContainerError):
            yield Defect(name, str(found).removeprefix(f"{directory / name}: "))
        elif found.size != entry.size:
            yield Defect(name, f"is {found.size} bytes, expected {entry.size}")
        elif found.sha256 != entry.sha256:
            yield Defect(name, f"sha256 is {found.sha256}, expected {entry.sha256}")


def _verify_representation(container: Container, value: Representation) -> Defect | None:
    try:
        if not container.index.holds_banks(value.segment):
            segment = container.segment(value.segment)
            segment.check(value.tensor, value.encoding, value.shape)
    except LarqlError as error:
        text = str(error).removeprefix(f"{container.path}/")
        return Defect(value.segment, f"operand {value.operand}: {text}")
    return None
