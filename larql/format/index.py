"""``index.json`` of a VINDEX3 container: the only root, from which everything else is named.

It holds no time, host or path, so that extracting twice gives identical bytes; its own sha256 is
the container's fingerprint. Fields this build does not know are ignored and kept on rewrite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from larql.errors import ContainerError, EncodingError, UnsupportedRefusal
from larql.format.encoding import ENCODINGS, Encoding
from larql.format.generation import (
    Generation,
    SchemaVersion,
    parse_schema_version,
    require_generation,
)
from larql.format.json_object import JsonObject
from larql.format.names import check_relative_name
from larql.format.rows import RowSelection
from larql.format.untrusted import read_json_object

__all__ = [
    "INDEX_NAME",
    "FileEntry",
    "Index",
    "Representation",
    "SourceBinding",
    "dump_json",
    "index_from_json",
    "index_to_json",
    "load_json",
    "read_index_document",
]

INDEX_NAME = "index.json"
MAX_JSON_BYTES = 32 << 20
"""Largest document of a container: 60,000 representations, and 25 times this as Python objects."""

Fidelity = Literal[
    "source-exact",
    "source-equivalent",
    "numerically-approximate",
    "structurally-approximate",
    "analysis-only",
]
_FIDELITIES: tuple[str, ...] = get_args(Fidelity)
_AUTHORITIES = ("canonical", "derived")
_FORMS = ("rows", "columns", "values_and_scales", "stacked")
_KNOWN_FIELDS = (
    "version",
    "model",
    "family",
    "hidden_size",
    "num_layers",
    "components",
    "system_graph",
    "moe_manifest",
    "source",
    "text",
    "objects",
    "representations",
    "precision_map",
    "profiles",
    "variants",
    "authority",
    "derived_from_model",
    "notes",
    "segments",
    "files",
)


@dataclass(frozen=True)
class SourceBinding:
    """Where a representation's bytes came from.

    Attributes
    ----------
    tensor : str
        The checkpoint's own name.
    encoding : str
        Encoding of the tensor in the checkpoint.
    sha256 : str
        Of the bytes in the checkpoint: the tensor's, or those of the rows that were taken.
    rows : RowSelection or None
        Which rows of the tensor were taken; None: all.
    shape : tuple of int or None
        The tensor's own shape; None: the operand's, or that of one entry where ``tensor`` holds
        ``{e}`` for the entry's number.
    form : {"rows", "columns", "values_and_scales", "stacked"}
        Whether the operand's rows are the tensor's rows, its columns in each entry, blocks that
        were joined from values and scales, or in each entry the rows of two tensors.
    scales : str or None
        The tensor of scales, where ``tensor`` is that of values.
    behind : str or None
        The tensor whose rows stand behind those of ``tensor`` in each entry.
    extra : mapping
        Fields that this build does not know.
    """

    tensor: str
    encoding: str
    sha256: str
    rows: RowSelection | None = None
    shape: tuple[int, ...] | None = None
    form: str = "rows"
    scales: str | None = None
    behind: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Representation:
    """One stored encoding of one operand; ``extra`` keeps fields this build does not know.

    ``packs`` is the id of the representation whose rows a packed one interleaves.
    """

    id: str
    operand: str
    encoding: Encoding
    fidelity: str
    shape: tuple[int, ...]
    segment: str
    tensor: str
    source: SourceBinding
    requested: str | None = None
    packs: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict, compare=False)

    @property
    def nbytes(self) -> int:
        """Stored size in bytes."""
        return self.encoding.nbytes(self.shape)

    @property
    def elements(self) -> int:
        """Number of logical elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and sha256 of one file; ``extra`` keeps fields this build does not know."""

    size: int
    sha256: str
    extra: Mapping[str, object] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Index:
    """The content of ``index.json``, typed; ``extra`` keeps fields this build does not know."""

    schema: SchemaVersion
    model: str
    family: str
    hidden_size: int
    num_layers: int
    components: tuple[str, ...]
    system_graph: str | None
    moe_manifest: str | None
    source: Mapping[str, object]
    text: Mapping[str, object]
    objects: Mapping[str, object]
    representations: Mapping[str, Representation]
    precision_map: Mapping[str, object]
    authority: str
    notes: tuple[str, ...]
    segments: Mapping[str, FileEntry]
    files: Mapping[str, FileEntry]
    profiles: Mapping[str, object] = field(default_factory=dict)
    variants: Mapping[str, object] = field(default_factory=dict)
    derived_from_model: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    def holds_banks(self, segment: str) -> bool:
        """Return whether a segment is a file of expert banks and not one of tensors.

        Raises
        ------
        UnsupportedRefusal
            If it is neither.
        """
        entry = self.segments.get(segment)
        schema = "safetensors" if entry is None else entry.extra.get("schema", "safetensors")
        if schema not in ("safetensors", "lyrw"):
            raise UnsupportedRefusal(
                f"segment {segment} has schema {schema!r:.60}; this build knows safetensors and "
                f"lyrw"
            )
        return schema == "lyrw"

    def by_operand(self) -> dict[str, Representation]:
        """Return the representation bound to each operand when none is asked for by name."""
        bound: dict[str, Representation] = {}
        for representation in self.representations.values():
            bound.setdefault(representation.operand, representation)
        return bound


def dump_json(document: object) -> bytes:
    """Serialise a document the one way containers do: UTF-8, one space of indent, final newline."""
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
    return (text + "\n").encode()


def load_json(path: Path) -> Mapping[str, object]:
    """Read a JSON file of a container.

    Raises
    ------
    ContainerError
        If it is missing, unreadable, absurdly large, not UTF-8, not strict JSON, not an object, or
        has a key twice.
    """
    return read_json_object(path, ContainerError, limit=MAX_JSON_BYTES, infinity=False)


def read_index_document(directory: Path) -> tuple[SchemaVersion, Mapping[str, object]]:
    """Read a directory's ``index.json`` far enough to know its schema version.

    Raises
    ------
    ContainerError, GenerationError
        If it is not JSON, not an object, or of an unknown schema version.
    """
    path = directory / INDEX_NAME
    document = load_json(path)
    return parse_schema_version(document.get("version"), str(path)), document


def index_to_json(index: Index) -> dict[str, object]:
    """Return the JSON document of an index."""
    document: dict[str, object] = {
        "version": index.schema.number,
        "model": index.model,
        "family": index.family,
        "hidden_size": index.hidden_size,
        "num_layers": index.num_layers,
        "components": list(index.components),
        "system_graph": index.system_graph,
        "moe_manifest": index.moe_manifest,
        "source": dict(index.source),
        "text": dict(index.text),
        "objects": dict(index.objects),
        "representations": {
            key: _representation_json(value) for key, value in index.representations.items()
        },
        "precision_map": dict(index.precision_map),
        "profiles": dict(index.profiles),
        "variants": dict(index.variants),
        "authority": index.authority,
        "derived_from_model": index.derived_from_model,
        "notes": list(index.notes),
        "segments": {
            name: {"schema": "safetensors", **_file_json(entry)}
            for name, entry in index.segments.items()
        },
        "files": {name: _file_json(entry) for name, entry in index.files.items()},
    }
    document.update(index.extra)
    return document


def _file_json(entry: FileEntry) -> dict[str, object]:
    return {"size": entry.size, "sha256": entry.sha256, **entry.extra}


def _representation_json(value: Representation) -> dict[str, object]:
    document: dict[str, object] = {
        "operand": value.operand,
        "encoding": value.encoding.name,
        "fidelity": value.fidelity,
        "shape": list(value.shape),
        "segment": value.segment,
        "tensor": value.tensor,
        "source": {
            "tensor": value.source.tensor,
            "encoding": value.source.encoding,
            "sha256": value.source.sha256,
            **_layout_json(value.source),
            **value.source.extra,
        },
    }
    if value.requested is not None:
        document["requested"] = value.requested
    if value.packs is not None:
        document["packs"] = value.packs
    document.update(value.extra)
    return document


def _layout_json(source: SourceBinding) -> dict[str, object]:
    """Return how a tensor's bytes became the operand's; what is as usual is left out."""
    document: dict[str, object] = {}
    if source.rows is not None:
        rows = source.rows
        document["rows"] = [rows.first, rows.length, rows.stride, rows.runs]
    if source.shape is not None:
        document["shape"] = list(source.shape)
    if source.form != "rows":
        document["form"] = source.form
    if source.scales is not None:
        document["scales"] = source.scales
    if source.behind is not None:
        document["behind"] = source.behind
    return document


def index_from_json(document: Mapping[str, object], where: str) -> Index:
    """Read a VINDEX3 index document.

    Raises
    ------
    GenerationError
        If the schema version is unknown or belongs to VINDEX2.
    UnsupportedRefusal
        If a representation has an encoding that this build does not know.
    ContainerError
        If a field is missing, of the wrong type, or names a file outside the container.
    """
    schema = parse_schema_version(document.get("version"), where)
    require_generation(schema, Generation.VINDEX3, where)
    top = JsonObject(document, "", where)
    graph = None if document.get("system_graph") is None else top.file_name("system_graph")
    manifest = None if document.get("moe_manifest") is None else top.file_name("moe_manifest")
    if graph is None and manifest is None:
        raise ContainerError(f"{where}: neither `system_graph` nor `moe_manifest` is present")
    files = _files(top, "files")
    segments = _files(top, "segments")
    representations = {
        key: _representation(key, JsonObject(value, f"representations.{key}", where))
        for key, value in top.mapping("representations").items()
    }
    notes = top.texts("notes") if "notes" in document else ()
    return Index(
        schema=schema,
        model=top.text("model"),
        family=top.text("family"),
        hidden_size=top.count("hidden_size"),
        num_layers=top.count("num_layers"),
        components=top.texts("components"),
        system_graph=graph,
        moe_manifest=manifest,
        source=top.optional_object("source"),
        text=top.optional_object("text"),
        objects=top.optional_object("objects"),
        representations=representations,
        precision_map=top.optional_object("precision_map"),
        authority=_choice(top, "authority", _AUTHORITIES),
        notes=notes,
        segments=segments,
        files=files,
        profiles=top.optional_object("profiles"),
        variants=top.optional_object("variants"),
        derived_from_model=top.optional_text("derived_from_model"),
        extra=top.rest(*_KNOWN_FIELDS),
    )


def _files(top: JsonObject, key: str) -> dict[str, FileEntry]:
    entries = {}
    parent = top.child(key)
    for name in parent.document:
        check_relative_name(name, f"{top.where}: {key}", ContainerError)
        entry = parent.child(name)
        entries[name] = FileEntry(
            entry.count("size"), entry.sha256("sha256"), entry.rest("size", "sha256")
        )
    return entries


def _choice(reader: JsonObject, key: str, choices: tuple[str, ...]) -> str:
    value = reader.text(key)
    if value not in choices:
        raise reader.fail(key, " or ".join(choices))
    return value


def _representation(key: str, reader: JsonObject) -> Representation:
    name = reader.text("encoding")
    if name not in ENCODINGS:
        raise UnsupportedRefusal(
            f"{reader.where}: {reader.path} has encoding {name!r}, unknown to this build"
        )
    shape = reader.extents("shape")
    try:
        ENCODINGS[name].nbytes(shape)
    except EncodingError as error:
        raise ContainerError(f"{reader.where}: {reader.path}: {error}") from None
    source = reader.child("source")
    return Representation(
        id=key,
        operand=reader.text("operand"),
        encoding=ENCODINGS[name],
        fidelity=_choice(reader, "fidelity", _FIDELITIES),
        shape=shape,
        segment=reader.file_name("segment"),
        tensor=reader.text("tensor"),
        source=SourceBinding(
            source.text("tensor"),
            source.text("encoding"),
            source.sha256("sha256"),
            source.rows("rows"),
            source.extents("shape") if "shape" in source.document else None,
            _choice(source, "form", _FORMS) if "form" in source.document else "rows",
            source.optional_text("scales"),
            source.optional_text("behind"),
            source.rest(
                "tensor", "encoding", "sha256", "rows", "shape", "form", "scales", "behind"
            ),
        ),
        requested=reader.optional_text("requested"),
        packs=reader.optional_text("packs"),
        extra=reader.rest(
            "operand",
            "encoding",
            "fidelity",
            "shape",
            "segment",
            "tensor",
            "source",
            "requested",
            "packs",
        ),
    )
