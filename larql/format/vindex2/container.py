"""A VINDEX2 directory, opened.

>>> from larql.format.container import open_container
>>> directory = open_container(path)          # a Vindex2 where `version` says so
>>> directory.details.num_layers              # index.json, typed: see Vindex2Index
>>> directory.parts                           # {Part.GATE: ("gate_vectors.bin",), …}
>>> gate = directory.gate(3)                  # Matrix: encoding, shape [features, hidden], bytes
>>> gate.rows(0, 16)                          # float32 [16, hidden]; nothing else is converted
>>> directory.embeddings().shape              # (vocab, hidden)
>>> directory.down_meta.layer(3)["token"]     # u32 [features]: the token that each writes most
>>> list(directory.down_meta.tokens(3, 17))   # [(token, score), …] of one feature
>>> directory.tensor(key)                     # a tensor of weight_manifest.json, e.g. a router's
>>> directory.layer_weights(3).gate(5)        # expert 5's gate rows as stored (LYRW version 1)

It is a :class:`~larql.format.container.Container`: what it computes stands in ``model_config``, as
``system_graph`` (a graph document as in VINDEX3), and its files are bound as operands of the same
plan. ``model_config.end_of_text_ids`` are the tokens that end a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import ContainerError, GenerationError, LarqlError, UsageError
from larql.format.banks import EntryRegions
from larql.format.container import Container
from larql.format.encoding import Encoding
from larql.format.graph import Component, Graph
from larql.format.graph_json import graph_from_json
from larql.format.index import INDEX_NAME, FileEntry, Index, Representation
from larql.format.lyrw.v1 import LayerWeights, layer_file_name
from larql.format.moe.profiles import DEFAULT
from larql.format.safetensors_header import Header, HeaderEntry
from larql.format.segment import Segment, stored_shape
from larql.format.slicing.presets import Part
from larql.format.vindex2.binding import Bound, bind_operands, byte_ranges
from larql.format.vindex2.down_meta import DownMeta
from larql.format.vindex2.entries import layer_regions, vector_regions
from larql.format.vindex2.index import Vindex2Index, index_from_json
from larql.format.vindex2.layout import (
    DOWN_META,
    EMBEDDINGS,
    GATE,
    MANIFEST,
    TENSOR_FILES,
    TEXT_FILES,
    is_data,
    parts_of,
)
from larql.format.vindex2.placement import Form
from larql.format.vindex2.weight_manifest import WeightEntry, read_manifest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from larql.format.lyrw.v2 import BankFile
    from larql.format.moe.profiles import Selection

__all__ = ["Matrix", "Vindex2"]


@dataclass(frozen=True)
class Matrix:
    """Stored rows.

    Attributes
    ----------
    encoding : Encoding
    shape : tuple of int
    data : uint8 ``[nbytes]``
        Read-only view of the mapped file.
    """

    encoding: Encoding
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def rows(self, first: int, end: int) -> npt.NDArray[np.float32]:
        """Return some rows decoded, float32 ``[end - first, columns]``."""
        import numpy as np

        from larql.format.codec import decode

        stored = self.data.reshape(self.shape[0], -1)[first:end]
        return np.asarray(decode(self.encoding, stored, self.shape[-1]))


class Vindex2(Container):
    """A directory of the older generation whose index has been read.

    Of the other files, the manifest is read with it and the headers of layer files; if one is
    missing or damaged, the operands that hang on it are not there, and the rest can be used.

    Attributes
    ----------
    details : Vindex2Index
        ``index.json`` as it is; ``index`` says the same in the terms of a container.
    """

    details: Vindex2Index

    def _read_index(self, document: Mapping[str, object]) -> Index:
        self.details = index_from_json(document, str(self.path / INDEX_NAME))
        self._layer_files: dict[str, LayerWeights] = {}
        details = self.details
        bound = self.bound
        files = {name: self._file_entry(name) for name in self.listed}
        ends = details.model_config.get("end_of_text_ids")
        return Index(
            schema=details.schema,
            model=details.model,
            family=details.family,
            hidden_size=details.hidden_size,
            num_layers=details.num_layers,
            components=() if self._component is None else (self._component.id,),
            system_graph=None if self._component is None else INDEX_NAME,
            moe_manifest=None,
            source=details.source,
            text={} if ends is None else {"end_of_text_ids": ends},
            objects={},
            representations=bound.representations,
            precision_map={},
            authority="canonical" if details.derived_from_model is None else "derived",
            notes=details.notes,
            segments={n: e for n, e in files.items() if is_data(n)},
            files=files,
            profiles={DEFAULT: {"remote": list(details.remote)}} if details.remote else {},
            derived_from_model=details.derived_from_model,
        )

    @cached_property
    def listed(self) -> tuple[str, ...]:
        """The files that the index vouches for; without checksums, the known ones that exist."""
        if self.details.checksums:
            return tuple(self.details.checksums)
        names = [name for name in _known_names(self.details) if (self.path / name).is_file()]
        return tuple(sorted(names))

    def _file_entry(self, name: str) -> FileEntry:
        try:
            size = (self.path / name).stat().st_size
        except OSError:
            size = 0
        return FileEntry(size, self.details.checksums.get(name, ""))

    @property
    def parts(self) -> dict[Part, tuple[str, ...]]:
        """The listed files of each part by which slices are made."""
        return parts_of(self.listed)

    @cached_property
    def graph(self) -> Graph:
        """The system graph, from ``model_config``.

        Raises
        ------
        ContainerError, UnsupportedRefusal
            If it is not stated, malformed or newer than this build.
        """
        where = f"{self.path / INDEX_NAME}: model_config.system_graph"
        if "system_graph" not in self.details.model_config:
            raise ContainerError(
                f"{where}: is not stated, so nothing says what the model computes; its features "
                f"can be searched, and to run it the checkpoint has to be extracted again"
            )
        graph = graph_from_json(self.details.model_config["system_graph"], where)
        component = graph.components[0]
        for name, stated, meant in (
            ("hidden_size", self.details.hidden_size, component.hidden_size),
            ("num_layers", self.details.num_layers, len(component.layers)),
            ("vocab_size", self.details.vocab_size, component.embed.vocab),
        ):
            if stated != meant:
                raise ContainerError(
                    f"{self.path / INDEX_NAME}: {name} is {stated}, model_config says {meant}"
                )
        return graph

    @cached_property
    def _component(self) -> Component | None:
        try:
            return self.graph.components[0]
        except LarqlError:
            return None

    @cached_property
    def _manifest_or_problem(self) -> tuple[tuple[WeightEntry, ...], LarqlError | None]:
        if MANIFEST not in self.listed:
            return (), None
        try:
            return read_manifest(self.path / MANIFEST), None
        except LarqlError as error:
            return (), error

    @property
    def manifest(self) -> tuple[WeightEntry, ...]:
        """The tensors that :data:`~larql.format.vindex2.layout.MANIFEST` lists.

        Raises
        ------
        ContainerError, UnsupportedRefusal
            If it is malformed.
        """
        entries, problem = self._manifest_or_problem
        if problem is not None:
            raise problem
        return entries

    @cached_property
    def bound(self) -> Bound:
        """Which operands are here, and of the others why not."""
        component = self._component
        if component is None:
            return Bound()
        entries, problem = self._manifest_or_problem
        found = bind_operands(self.details, component, entries, self.listed, self._open_layer)
        if problem is None:
            return found
        absent = {
            name: str(problem)
            if found.places[name].form is Form.LISTED and found.places[name].file in self.listed
            else why
            for name, why in found.absent.items()
        }
        return replace(found, absent=absent, faults=((MANIFEST, str(problem)), *found.faults))

    def select(self, profile: str | None) -> Selection:
        """Return which representation serves each operand; of profiles a slice has ``default``.

        Raises
        ------
        UsageError
            If a profile is asked for.
        ContainerError, UnsupportedRefusal
            If the graph cannot be read.
        """
        if profile is not None and profile not in self.index.profiles:
            raise UsageError(
                f"{self.path}: there is no profile {profile!r}; a {self.generation.value} "
                f"directory has none"
            )
        if self._component is None:
            self.graph  # noqa: B018 - raises what is the matter with it
        return replace(super().select(None), absent=self.bound.absent)

    def check_bytes(self, name: str) -> None:
        """Refuse a file whose bytes are not those that the index vouches for, if it does.

        Raises
        ------
        ContainerError
            If the file is missing, unreadable, unlisted, or has other bytes.
        """
        if self.details.checksums:
            super().check_bytes(name)

    def segment(self, name: str) -> Segment:
        """Open a file without a header, of which the index or the manifest says what it holds.

        Raises
        ------
        ContainerError
            If it is missing, or shorter than that.
        """
        if name not in self._segments:
            entries = {
                tensor: HeaderEntry(
                    value.encoding.safetensors_dtype,
                    stored_shape(value.encoding, value.stored_shape),
                    begin,
                    end,
                )
                for tensor, value, begin, end in byte_ranges(
                    self.bound, self.details, self.manifest, self._open_layer, name
                )
            }
            self._segments[name] = Segment(self.path / name, Header(entries, {}, 0))
        return self._segments[name]

    def bank_file(self, name: str) -> BankFile:
        """Refuse: the expert banks of VINDEX3 are not in this generation.

        Raises
        ------
        GenerationError
            Always.
        """
        raise GenerationError(
            f"{self.path / name}: expert banks of VINDEX3 are asked for; this is a "
            f"{self.generation.value} directory"
        )

    def holds_bank(self, value: Representation) -> bool:
        """Return whether an operand has an entry for each expert."""
        place = self.bound.places.get(value.operand)
        return place is not None and place.contract.chosen is not None

    def bank_names(self, name: str) -> tuple[str, ...]:
        """Return the one file that an operand of experts lies in."""
        return (name,)

    def entries(self, value: Representation) -> EntryRegions:
        """Return where the regions of an operand of experts are.

        Raises
        ------
        ContainerError
            If the file is missing or malformed.
        """
        place = self.bound.places[value.operand]
        layer = place.contract.layer
        assert layer is not None  # experts are a layer's
        if place.form is Form.EXPERTS:
            file = self._open_layer(value.segment)
            return layer_regions(file, layer, value.tensor, value.shape, value.stored_shape[-1])
        segment = self.segment(value.segment)
        segment.check(value.tensor, value.encoding, value.shape)
        return vector_regions(segment, value.tensor, layer, value.encoding, value.shape)

    def text_files(self) -> dict[str, Path]:
        """Return the listed files that are neither data nor their manifest, by name."""
        return {
            name: self.path / name for name in self.listed if not is_data(name) and name != MANIFEST
        }

    def facts(self) -> Mapping[str, object]:
        """Return level, dtype and what else a reader should be shown."""
        details = self.details
        return {
            "level": details.level.value,
            "dtype": details.dtype.name,
            "quant": details.quant,
            "ffn_layout": None if details.ffn_layout is None else details.ffn_layout.value,
            "features": sum(details.feature_counts),
            "down_top_k": details.down_top_k,
            "absent_operands": len(self.bound.absent),
        }

    def gate(self, layer: int) -> Matrix:
        """Return a layer's gate vectors, ``[features, hidden]``.

        Raises
        ------
        UsageError
            If there is no such layer, or it has no dense features.
        ContainerError
            If the file is missing, damaged or too short.
        """
        features = self.details.features(layer)
        if features is None or not features.num_features:
            raise UsageError(
                f"{self.path}: layer {layer} has no gate vectors; the index lists "
                f"{[e.layer for e in self.details.layers if e.num_features]}"
            )
        shape = features.num_features, self.details.hidden_size
        return self._mapped(GATE, self.details.dtype, shape, features.offset, alone=True)

    def embeddings(self) -> Matrix:
        """Return the embeddings, ``[vocab, hidden]``.

        Raises
        ------
        ContainerError
            If the file is missing, damaged or too short.
        """
        shape = self.details.vocab_size, self.details.hidden_size
        return self._mapped(EMBEDDINGS, self.details.dtype, shape, 0)

    @cached_property
    def down_meta(self) -> DownMeta:
        """The tokens that features write.

        Raises
        ------
        ContainerError, UnsupportedRefusal
            If the file is missing, damaged, newer than this build or contradicts the index.
        """
        self.check_bytes(DOWN_META)
        details = self.details
        return DownMeta(
            self.path / DOWN_META, details.feature_counts, details.down_top_k, details.vocab_size
        )

    def tensor(self, key: str) -> Matrix:
        """Return a tensor that the manifest lists.

        Raises
        ------
        UsageError
            If it lists none of that name.
        ContainerError
            If a file is missing, damaged or too short.
        """
        for entry in self.manifest:
            if entry.key == key:
                return self._mapped(entry.file, entry.dtype, entry.shape, entry.offset)
        raise UsageError(f"{self.path}: {MANIFEST} lists no tensor {key!r}")

    def layer_weights(self, layer: int) -> LayerWeights:
        """Open the layer file of a layer: its experts, or its dense network as one entry.

        Raises
        ------
        ContainerError, GenerationError
            If it is missing, damaged or of another generation.
        """
        name = layer_file_name(layer)
        self.check_bytes(name)
        return self._open_layer(name)

    def _open_layer(self, name: str) -> LayerWeights:
        if name not in self._layer_files:
            self._layer_files[name] = LayerWeights(self.path / name)
        return self._layer_files[name]

    def _mapped(
        self,
        name: str,
        encoding: Encoding,
        shape: tuple[int, ...],
        offset: int,
        *,
        alone: bool = False,
    ) -> Matrix:
        """Map a range of a file; ``alone``: what lies around it is not read with it."""
        self.check_bytes(name)
        end = offset + encoding.nbytes(shape)
        entry = HeaderEntry(encoding.safetensors_dtype, stored_shape(encoding, shape), offset, end)
        segment = Segment(self.path / name, Header({"": entry}, {}, 0))
        data = segment.bytes_of("")
        if alone:
            segment.alone("")
        return Matrix(encoding, shape, data)


def _known_names(details: Vindex2Index) -> tuple[str, ...]:
    fixed = (GATE, EMBEDDINGS, DOWN_META, MANIFEST, *TENSOR_FILES)
    layers = tuple(layer_file_name(layer) for layer in range(details.num_layers))
    return (*fixed, *TEXT_FILES, *layers)
