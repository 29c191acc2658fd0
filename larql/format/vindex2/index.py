"""``index.json`` of a VINDEX2 directory: schema 1 with defaults, and schema 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import TypeVar

from larql.errors import ContainerError, UnsupportedRefusal
from larql.format.encoding import ENCODINGS, Encoding
from larql.format.generation import (
    Generation,
    SchemaVersion,
    parse_schema_version,
    require_generation,
)
from larql.format.json_object import JsonObject
from larql.format.names import check_relative_name
from larql.format.vindex2.layout import FfnLayout, Level

__all__ = ["DEFAULT_TOP_K", "LayerFeatures", "Vindex2Index", "index_from_json", "index_to_json"]

DEFAULT_TOP_K = 10
_DTYPES = ("f32", "f16")
_MAX_TOP_K = 255
_MAX_LAYERS = 1 << 16
_KNOWN = (
    "version",
    "model",
    "family",
    "dtype",
    "source",
    "checksums",
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "embed_scale",
    "extract_level",
    "has_model_weights",
    "down_top_k",
    "layer_bands",
    "layers",
    "model_config",
    "quant",
    "ffn_layout",
    "notes",
    "remote",
    "experts",
    "derived_from_model",
)
Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True)
class LayerFeatures:
    """The gate vectors of one layer: ``num_features`` rows of ``hidden_size``.

    Attributes
    ----------
    layer : int
    num_features : int
        Of the dense network; experts are not searched in this generation.
    offset, length : int
        Bytes in ``gate_vectors.bin``.
    extra : mapping
        Fields that this build does not know.
    """

    layer: int
    num_features: int
    offset: int
    length: int
    extra: Mapping[str, object] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Vindex2Index:
    """The content of ``index.json``, typed.

    Attributes
    ----------
    schema : SchemaVersion
        1 or 2.
    model, family : str
    dtype : Encoding
        Of ``gate_vectors.bin`` and ``embeddings.bin``: f32 or f16.
    source : mapping
        ``repo``, ``revision``, ``sha``, ``extracted_at``, ``tool_version`` and what else is known.
    checksums : mapping of str to str
        The sha256 of each file but the index.
    num_layers, hidden_size, intermediate_size, vocab_size : int
    embed_scale : float
        What a row of the embeddings is multiplied with.
    level : Level
    has_model_weights : bool
        Whether there is enough to run layers: attention and feed-forward weights.
    down_top_k : int
        Tokens of each record of ``down_meta.bin``.
    layer_bands : mapping or None
        Named ranges of layers, where somebody has determined them.
    layers : tuple of LayerFeatures
        Ascending; layers without dense features may be left out.
    model_config : mapping
        What the model computes; see :mod:`larql.format.vindex2.container`.
    quant : str or None
        Encoding that matrices were re-encoded to.
    ffn_layout : FfnLayout or None
    notes : tuple of str
    remote : tuple of str
        Objects and operands of the model that a slice left out, and that are to be had elsewhere.
    experts : (int, int) or None
        Half-open range of the experts of each layer that a slice has; None: all.
    derived_from_model : str or None
        Fingerprint of the directory that a slice was cut from.
    extra : mapping
        Fields that this build does not know; they survive a rewrite.
    """

    schema: SchemaVersion
    model: str
    family: str
    dtype: Encoding
    source: Mapping[str, object]
    checksums: Mapping[str, str]
    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    embed_scale: float
    level: Level
    has_model_weights: bool
    down_top_k: int
    layer_bands: Mapping[str, object] | None
    layers: tuple[LayerFeatures, ...]
    model_config: Mapping[str, object]
    quant: str | None
    ffn_layout: FfnLayout | None
    notes: tuple[str, ...] = ()
    remote: tuple[str, ...] = ()
    experts: tuple[int, int] | None = None
    derived_from_model: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    def features(self, layer: int) -> LayerFeatures | None:
        """Return the gate vectors of a layer, None where it has none."""
        return next((entry for entry in self.layers if entry.layer == layer), None)

    @property
    def feature_counts(self) -> tuple[int, ...]:
        """Dense features of every layer, 0 where it has none."""
        counts = [0] * self.num_layers
        for entry in self.layers:
            counts[entry.layer] = entry.num_features
        return tuple(counts)


def index_to_json(index: Vindex2Index) -> dict[str, object]:
    """Return the JSON document of an index."""
    document: dict[str, object] = {
        "version": index.schema.number,
        "model": index.model,
        "family": index.family,
        "dtype": index.dtype.name,
        "source": dict(index.source),
        "checksums": dict(index.checksums),
        "num_layers": index.num_layers,
        "hidden_size": index.hidden_size,
        "intermediate_size": index.intermediate_size,
        "vocab_size": index.vocab_size,
        "embed_scale": index.embed_scale,
        "extract_level": index.level.value,
        "has_model_weights": index.has_model_weights,
        "down_top_k": index.down_top_k,
        "layer_bands": None if index.layer_bands is None else dict(index.layer_bands),
        "layers": [
            {
                "layer": entry.layer,
                "num_features": entry.num_features,
                "offset": entry.offset,
                "length": entry.length,
                **entry.extra,
            }
            for entry in index.layers
        ],
        "model_config": dict(index.model_config),
        "quant": index.quant,
        "ffn_layout": None if index.ffn_layout is None else index.ffn_layout.value,
        "notes": list(index.notes),
    }
    if index.derived_from_model is not None:
        document["derived_from_model"] = index.derived_from_model
        document["remote"] = list(index.remote)
    if index.experts is not None:
        document["experts"] = list(index.experts)
    document.update(index.extra)
    return document


def index_from_json(document: Mapping[str, object], where: str) -> Vindex2Index:
    """Read a VINDEX2 index document.

    In schema 1 only what nothing can be read without has to be there: model, sizes and number of
    layers. The rest takes the values that directories had before the fields existed: f32, level
    ``browse``, no checksums.

    Raises
    ------
    GenerationError
        If the schema version is unknown or belongs to VINDEX3.
    UnsupportedRefusal
        If dtype or layout of the feed-forward networks is not known to this build.
    ContainerError
        If a field is missing or wrong, or the gate vectors overlap or contradict the sizes.
    """
    schema = parse_schema_version(document.get("version"), where)
    require_generation(schema, Generation.VINDEX2, where)
    top = JsonObject(document, "", where)
    legacy = schema.number == 1
    read = _Reader(top, legacy)
    dtype = read.text("dtype", "f32")
    if dtype not in _DTYPES:
        raise UnsupportedRefusal(
            f"{where}: `dtype` is {dtype!r:.60}, expected {' or '.join(_DTYPES)}; use a newer larql"
        )
    hidden = _positive(top, "hidden_size")
    num_layers = _positive(top, "num_layers")
    if num_layers > _MAX_LAYERS:
        raise top.fail("num_layers", f"at most {_MAX_LAYERS}")
    layers = _layers(top, legacy, num_layers, hidden, ENCODINGS[dtype])
    widest = max((entry.num_features for entry in layers), default=0)
    top_k = read.count("down_top_k", DEFAULT_TOP_K)
    if not 1 <= top_k <= _MAX_TOP_K:
        raise top.fail("down_top_k", f"1 to {_MAX_TOP_K}")
    level = read.choice("extract_level", Level, Level.BROWSE)
    layout = document.get("ffn_layout")
    if layout is not None and layout not in list(FfnLayout):
        raise UnsupportedRefusal(
            f"{where}: `ffn_layout` is {layout!r:.60}, expected {', '.join(FfnLayout)} or null; "
            f"use a newer larql"
        )
    has_weights = document.get("has_model_weights", level.includes(Level.INFERENCE))
    if not isinstance(has_weights, bool):
        raise top.fail("has_model_weights", "true or false")
    bands = document.get("layer_bands")
    return Vindex2Index(
        schema=schema,
        model=top.text("model"),
        family=read.text("family", "unknown"),
        dtype=ENCODINGS[dtype],
        source=top.optional_object("source"),
        checksums=_checksums(top, legacy),
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=read.count("intermediate_size", widest),
        vocab_size=_positive(top, "vocab_size"),
        embed_scale=_scale(top, legacy),
        level=level,
        has_model_weights=has_weights,
        down_top_k=top_k,
        layer_bands=None if bands is None else top.mapping("layer_bands"),
        layers=layers,
        model_config=top.optional_object("model_config"),
        quant=top.optional_text("quant"),
        ffn_layout=None if layout is None else FfnLayout(str(layout)),
        notes=top.texts("notes") if "notes" in document else (),
        remote=top.texts("remote") if "remote" in document else (),
        experts=_experts(top),
        derived_from_model=top.optional_text("derived_from_model"),
        extra=top.rest(*_KNOWN),
    )


def _experts(top: JsonObject) -> tuple[int, int] | None:
    value = top.document.get("experts")
    if value is None:
        return None
    counts = [v for v in value if type(v) is int] if isinstance(value, list) else []
    if not isinstance(value, list) or len(value) != 2 or len(counts) != 2:
        raise top.fail("experts", "a half-open range, [first, end], or null")
    first, end = counts
    if not 0 <= first < end:
        raise top.fail("experts", "a half-open range with 0 <= first < end")
    return first, end


class _Reader:
    """Reads fields that schema 1 may lack."""

    def __init__(self, top: JsonObject, legacy: bool) -> None:
        self._top = top
        self._legacy = legacy

    def _absent(self, key: str) -> bool:
        return self._legacy and key not in self._top.document

    def text(self, key: str, default: str) -> str:
        return default if self._absent(key) else self._top.text(key)

    def count(self, key: str, default: int) -> int:
        return default if self._absent(key) else self._top.count(key)

    def choice(self, key: str, choices: type[Choice], default: Choice) -> Choice:
        text = self.text(key, default.value)
        if text not in list(choices):
            raise self._top.fail(key, " or ".join(choices))
        return choices(text)


def _positive(top: JsonObject, key: str) -> int:
    value = top.count(key)
    if not 1 <= value < 1 << 48:
        raise top.fail(key, "a positive integer")
    return value


def _scale(top: JsonObject, legacy: bool) -> float:
    if legacy and "embed_scale" not in top.document:
        return 1.0
    value = top.document.get("embed_scale")
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise top.fail("embed_scale", "a number")
    return float(value)


def _checksums(top: JsonObject, legacy: bool) -> dict[str, str]:
    if legacy and "checksums" not in top.document:
        return {}
    top.mapping("checksums")
    parent = top.child("checksums")
    for name in parent.document:
        check_relative_name(name, f"{top.where}: checksums", ContainerError)
    return {name: parent.sha256(name) for name in sorted(parent.document)}


def _layers(
    top: JsonObject, legacy: bool, num_layers: int, hidden: int, dtype: Encoding
) -> tuple[LayerFeatures, ...]:
    if legacy and "layers" not in top.document:
        return ()
    raw = top.document.get("layers")
    if not isinstance(raw, list):
        raise top.fail("layers", "an array")
    found: list[LayerFeatures] = []
    end = 0
    for position, item in enumerate(raw):
        path = f"layers[{position}]"
        reader = JsonObject(item, path, top.where)
        known = ("layer", "num_features", "offset", "length")
        layer, count, offset, length = (reader.count(key) for key in known)
        entry = LayerFeatures(layer, count, offset, length, reader.rest(*known))
        if entry.layer >= num_layers or (found and entry.layer <= found[-1].layer):
            raise reader.fail("layer", f"ascending numbers below {num_layers}")
        meant = entry.num_features * dtype.row_bytes(hidden)
        if entry.length != meant:
            raise reader.fail(
                "length", f"{meant}, {entry.num_features} rows of {hidden} in {dtype.name}"
            )
        if entry.offset < end:
            raise reader.fail("offset", f"at least {end}, where the layer before ends")
        if entry.offset + entry.length >= 1 << 62:
            raise reader.fail("offset", "an offset inside a file")
        end = entry.offset + entry.length
        found.append(entry)
    return tuple(found)
