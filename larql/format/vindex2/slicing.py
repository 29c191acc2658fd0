"""Cutting a VINDEX2 directory: files by their parts, and of files that are cut the ranges kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from larql.errors import ContainerError, UsageError
from larql.format.container import Container
from larql.format.generation import Generation, written_schema
from larql.format.graph import Component, Graph, Layer
from larql.format.graph_json import graph_to_json
from larql.format.index import FileEntry, dump_json
from larql.format.lyrw.v1 import LayerWeights
from larql.format.lyrw.v1_writer import shard_of
from larql.format.progress import Progress
from larql.format.segment import write_stream
from larql.format.slicing.made import Made, Planned, write_cut_directory
from larql.format.slicing.parts import operand_uses
from larql.format.slicing.plan import (
    Request,
    check_named,
    check_range,
    left_out,
    shallower,
    texts_of,
)
from larql.format.slicing.presets import DOWN_META, Part
from larql.format.untrusted import chunks_at, open_regular
from larql.format.vindex2.container import Vindex2
from larql.format.vindex2.down_meta import cut_records
from larql.format.vindex2.index import LayerFeatures, Vindex2Index, index_to_json
from larql.format.vindex2.layout import (
    GATE,
    MANIFEST,
    TENSOR_FILES,
    FfnLayout,
    Level,
    is_data,
    is_layer_file,
    part_of,
)
from larql.format.vindex2.placement import routed_of, widest_network
from larql.format.vindex2.weight_manifest import WeightEntry, manifest_to_json, packed_entries

__all__ = ["Vindex2Cut", "plan_vindex2_slice"]

Piece = bytes | tuple[int, int]
"""Bytes as they are, or offset and length of a range of the directory's own file."""


@dataclass(frozen=True)
class Vindex2Cut:
    """What a slice will hold.

    Attributes
    ----------
    directory : Vindex2
        That it is cut from.
    index : Vindex2Index
        Of the slice; its hashes are added when its files are written.
    whole : tuple of str
        Files that are kept as they are.
    anew : mapping
        File that is written anew, to its pieces.
    operands : int
    remote, notes : tuple of str
        What is left out, and what the user should know.
    """

    directory: Vindex2
    index: Vindex2Index
    whole: tuple[str, ...]
    anew: Mapping[str, Sequence[Piece]]
    operands: int
    remote: tuple[str, ...]
    notes: tuple[str, ...]

    def files(self) -> tuple[Planned, ...]:
        """Return the files that it will hold, by name; all but its index."""
        sizes = self.directory.index.files
        found = [Planned(name, sizes[name].size, "whole") for name in self.whole]
        for name, pieces in self.anew.items():
            size = sum(len(p) if isinstance(p, bytes) else p[1] for p in pieces)
            found.append(Planned(name, size, "written" if name == MANIFEST else "cut"))
        return tuple(sorted(found, key=lambda file: file.name))

    def write(self, output: Path, *, force: bool, progress: Progress) -> Made:
        """Write it.

        Raises
        ------
        ContainerError
            If a file that is taken from is damaged.
        OutputError
            If the output exists or cannot be written. No partial directory is left behind.
        """
        return write_cut_directory(
            self.directory,
            output,
            self.files(),
            partial(self._write_anew, progress),
            self._index_bytes,
            force=force,
            progress=progress,
        )

    def _write_anew(self, progress: Progress, to: Path) -> Iterator[tuple[str, FileEntry]]:
        for name, pieces in self.anew.items():
            self.directory.check_bytes(name)
            entry = write_stream(to / name, _bytes_of(self.directory.path / name, pieces))
            progress.advance(entry.size)
            yield name, entry

    def _index_bytes(self, files: Mapping[str, FileEntry]) -> bytes:
        hashes = {name: files[name].sha256 for name in sorted(files)}
        return dump_json(index_to_json(replace(self.index, checksums=hashes)))


def _bytes_of(path: Path, pieces: Iterable[Piece]) -> Iterator[bytes]:
    with open_regular(path, ContainerError) as (descriptor, _status):
        for piece in pieces:
            if isinstance(piece, bytes):
                yield piece
            else:
                yield from chunks_at(descriptor, *piece, str(path), ContainerError)


def plan_vindex2_slice(container: Container, wanted: Request) -> Vindex2Cut:
    """Decide what a slice holds.

    Raises
    ------
    UsageError
        If a range is outside the model, or a part that was named is not in it, or nothing is left.
    ContainerError, UnsupportedRefusal
        If the graph, the manifest or a table cannot be read.
    """
    assert isinstance(container, Vindex2)
    return _Planning(container, wanted).run()


class _Planning:
    """One slice on its way."""

    def __init__(self, directory: Vindex2, wanted: Request) -> None:
        self._directory = directory
        self._wanted = wanted
        self._details = directory.details
        self._graph: Graph | None = None
        self._notes: tuple[str, ...] = ()
        if directory.index.system_graph is not None:
            self._graph, self._notes = shallower(directory, wanted.draft_depth)
        elif wanted.draft_depth is not None:
            directory.graph  # noqa: B018 - raises that nothing says what is computed
        self._layers = self._details.num_layers
        if self._main is not None:
            self._layers = len(self._main.layers)
        check_range("--layers", wanted.layers, self._layers, "layers")
        first, end = wanted.layers or (0, self._layers)
        self._kept = range(first, end)
        self._cuts = len(self._kept) < self._details.num_layers
        self._routed = {layer.index for layer in self._old_layers() if routed_of(layer) is not None}
        self._parts = {name: self._part(name) for name in directory.listed}

    @property
    def _main(self) -> Component | None:
        return None if self._graph is None else self._graph.components[0]

    def _old_layers(self) -> Sequence[Layer]:
        if self._graph is None:
            return ()
        return self._directory.graph.components[0].layers

    def _part(self, name: str) -> Part | None:
        if is_layer_file(name) and self._graph is not None:
            return part_of(name, routed=_layer_number(name) in self._routed)
        return part_of(name, routed=Part.ROUTER in self._directory.parts)

    def run(self) -> Vindex2Cut:
        """Return what the slice will hold."""
        directory, wanted = self._directory, self._wanted
        check_named(directory, wanted, self._present_parts())
        names = [n for n in directory.listed if is_data(n) and self._parts[n] in wanted.parts]
        names = [n for n in names if not is_layer_file(n) or _layer_number(n) in self._kept]
        if not names:
            raise UsageError(f"{directory.path}: nothing of the model is left; ask for more parts")
        whole = [*texts_of(directory, wanted)]
        anew: dict[str, Sequence[Piece]] = {}
        layers = self._features()
        experts = self._experts(names)
        for name in names:
            pieces = self._pieces(name, layers, experts)
            if pieces is None:
                whole.append(name)
            elif pieces:
                anew[name] = pieces
        self._manifest(names, whole, anew)
        stored = self._stored(frozenset([*whole, *anew]))
        remote = tuple(self._remote(stored))
        index = self._index(names, layers, experts, remote)
        return Vindex2Cut(directory, index, tuple(whole), anew, len(stored), remote, self._notes)

    def _present_parts(self) -> set[Part]:
        found = {part for part in self._parts.values() if part is not None}
        if self._graph is not None:
            found |= {use.part for c in self._graph.components for use in operand_uses(c)}
        return found

    def _features(self) -> tuple[LayerFeatures, ...]:
        """Return the gate vectors of the layers that are kept, as they will lie."""
        if not self._cuts:
            return self._details.layers
        found: list[LayerFeatures] = []
        offset = 0
        for entry in self._details.layers:
            if entry.layer >= self._layers:
                continue
            here = entry.layer in self._kept
            count, length = (entry.num_features, entry.length) if here else (0, 0)
            found.append(LayerFeatures(entry.layer, count, offset, length, entry.extra))
            offset += length
        return tuple(found)

    def _experts(self, names: Sequence[str]) -> tuple[int, int] | None:
        """Return which experts the slice has; None: all."""
        asked, held = self._wanted.experts, self._details.experts
        files = [n for n in names if self._parts[n] is Part.EXPERT_LAYERS]
        if asked is None:
            return held if files else None
        if not files:
            raise UsageError(
                f"--experts {asked[0]}:{asked[1]}: the slice has no experts to choose among"
            )
        counts = {self._open(name).shape.num_entries for name in files}
        for count in counts:
            check_range("--experts", asked, count, "experts")
        first, end = held or (0, min(counts))
        both = max(first, asked[0]), min(end, asked[1])
        if both[0] >= both[1]:
            raise UsageError(
                f"--experts {asked[0]}:{asked[1]}: {self._directory.path} is a shard with the "
                f"experts {first}:{end}"
            )
        return None if counts == {both[1] - both[0]} else both

    def _open(self, name: str) -> LayerWeights:
        return self._directory.layer_weights(_layer_number(name))

    def _pieces(
        self, name: str, layers: Sequence[LayerFeatures], experts: tuple[int, int] | None
    ) -> Sequence[Piece] | None:
        """Return of what a file is made anew; None: it is kept whole, and empty: it is not."""
        if is_layer_file(name):
            if self._parts[name] is not Part.EXPERT_LAYERS or experts == self._details.experts:
                return None
            assert experts is not None
            head, ranges = shard_of(self._directory.layer_weights(_layer_number(name)), *experts)
            return [head, *ranges]
        if not self._cuts:
            return None
        if name == GATE:
            kept = [e for e in self._details.layers if e.layer in self._kept]
            return [(e.offset, e.length) for e in kept if e.length] or [b""]
        if name == DOWN_META:
            records = self._directory.down_meta
            return cut_records(records, self._layers, self._kept)
        if name in TENSOR_FILES:
            return self._tensors(name)
        return None

    def _tensors(self, name: str) -> Sequence[Piece] | None:
        old = [entry for entry in self._directory.manifest if entry.file == name]
        kept = [entry for entry in old if self._keeps(entry)]
        if len(kept) == len(old):
            return None
        pieces: list[Piece] = []
        at = 0
        for before, after in zip(kept, packed_entries(kept), strict=True):
            pieces += [bytes(after.offset - at), (before.offset, before.length)]
            at = after.offset + after.length
        return pieces

    def _keeps(self, entry: WeightEntry) -> bool:
        place = self._directory.bound.places.get(entry.key)
        if place is None:
            raise ContainerError(
                f"{self._directory.path / MANIFEST}: nothing says to which layer {entry.key} "
                f"belongs, so layers cannot be cut; leave --layers out"
            )
        layer = place.contract.layer
        return layer is None or layer in self._kept

    def _manifest(
        self, names: Sequence[str], whole: list[str], anew: dict[str, Sequence[Piece]]
    ) -> None:
        """Add the manifest of the tensors that are kept, where there are any."""
        files = {name for name in names if name in TENSOR_FILES}
        if not files or MANIFEST not in self._directory.listed:
            return
        old = self._directory.manifest
        kept: list[WeightEntry] = []
        for name in dict.fromkeys(entry.file for entry in old):
            if name in whole:
                kept += [entry for entry in old if entry.file == name]
            elif name in anew:
                kept += packed_entries([e for e in old if e.file == name and self._keeps(e)])
        if kept == list(old):
            whole.append(MANIFEST)
        else:
            anew[MANIFEST] = [dump_json(manifest_to_json(kept))]

    def _stored(self, files: frozenset[str]) -> frozenset[str]:
        bound = self._directory.bound
        found = set()
        for name, value in bound.representations.items():
            layer = bound.places[name].contract.layer
            if value.segment in files and (layer is None or layer in self._kept):
                found.add(name)
        return frozenset(found)

    def _remote(self, stored: frozenset[str]) -> Iterator[str]:
        if self._graph is not None:
            uses = (use.operand for c in self._graph.components for use in operand_uses(c))
            yield from left_out(dict.fromkeys(uses), stored)

    def _index(
        self,
        names: Sequence[str],
        layers: tuple[LayerFeatures, ...],
        experts: tuple[int, int] | None,
        remote: tuple[str, ...],
    ) -> Vindex2Index:
        details, main = self._details, self._main
        level = self._level({part for n in names if (part := self._parts[n]) is not None})
        config = dict(details.model_config)
        width = details.intermediate_size
        if self._graph is not None and self._layers < details.num_layers and main is not None:
            config["system_graph"] = graph_to_json(self._graph)
            width = widest_network(main, (e for e in details.layers if e.layer < self._layers))
        return replace(
            details,
            schema=written_schema(Generation.VINDEX2),
            num_layers=self._layers,
            intermediate_size=width,
            level=level,
            has_model_weights=details.has_model_weights and level.includes(Level.INFERENCE),
            layers=layers,
            model_config=config,
            notes=(*details.notes, *self._notes),
            remote=remote,
            experts=experts,
            derived_from_model=details.derived_from_model or self._directory.fingerprint,
        )

    def _level(self, kept: set[Part]) -> Level:
        """Return the highest level of which everything is here that running needs."""
        every = {part for part in self._parts.values() if part is not None}
        running = {Part.EMBED, Part.FFN, Part.EXPERT_LAYERS, Part.ROUTER}
        if self._details.ffn_layout is not FfnLayout.PER_LAYER:
            running |= {Part.GATE}
        found = Level.BROWSE
        for level, parts in (
            (Level.ATTENTION, {Part.NORMS, Part.ATTN}),
            (Level.INFERENCE, running & every),
            (Level.ALL, {Part.HEAD} & every),
        ):
            if not parts <= kept or not self._details.level.includes(level):
                break
            found = level
        return found


def _layer_number(name: str) -> int:
    digits = name.removeprefix("layers/layer_").removesuffix(".weights")
    return int(digits) if digits.isascii() and digits.isdigit() else -1
