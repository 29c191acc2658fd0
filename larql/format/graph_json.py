"""The system graph as JSON: a strict round trip of the dataclasses in :mod:`larql.format.graph`.

Every object that may be one of several kinds carries its kind in ``op``. Unknown keys, missing
keys and wrong types are errors that name the path inside the document, because each key of a
graph changes what is computed.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from typing import Literal, TypeVar, Union, get_args, get_origin

from larql.errors import ContainerError, UnsupportedRefusal
from larql.format import graph as g
from larql.format.untrusted import shown

__all__ = ["GRAPH_SCHEMA", "graph_from_json", "graph_to_json"]

GRAPH_SCHEMA = 1

_OPS: dict[str, type] = {
    "norm": g.Norm,
    "linear": g.Linear,
    "rope": g.Rope,
    "embed": g.Embed,
    "latent_attention": g.LatentAttention,
    "softmax_attention": g.SoftmaxAttention,
    "gated_delta": g.GatedDelta,
    "kda": g.Kda,
    "ssm": g.Ssm,
    "short_convolution": g.ShortConvolution,
    "convolution": g.Convolution,
    "dense_ffn": g.DenseFfn,
    "routed_ffn": g.RoutedFfn,
    "per_layer_embedding": g.PerLayerEmbedding,
    "per_layer_table": g.PerLayerTable,
    "head": g.Head,
    "draft_input": g.DraftInput,
    "kv_rows": g.KvRows,
    "latent_rows": g.LatentRows,
    "recurrent": g.Recurrent,
    "convolution_rows": g.ConvolutionRows,
}
_NAMES = {cls: name for name, cls in _OPS.items()}
_HINTS: dict[type, dict[str, object]] = {
    cls: typing.get_type_hints(cls)
    for cls in vars(g).values()
    if isinstance(cls, type) and dataclasses.is_dataclass(cls)
}

T = TypeVar("T")


def graph_to_json(graph: g.Graph) -> dict[str, object]:
    """Return the JSON document of a graph; None fields are left out."""
    components = []
    for component in graph.components:
        document = typing.cast("dict[str, object]", _encode(component))
        document["state"] = [_encode(region) for region in g.state_schema(component)]
        components.append(document)
    return {
        "schema": GRAPH_SCHEMA,
        "components": components,
        "edges": [_encode(edge) for edge in graph.edges],
    }


def graph_from_json(document: object, where: str) -> g.Graph:
    """Read a graph document.

    Parameters
    ----------
    document : object
        Decoded JSON.
    where : str
        File name for error texts.

    Raises
    ------
    ContainerError
        If the document is not a graph, lacks a key, has an unknown key or a wrong type, or if a
        component's stated continuation state is not the one that its operations keep.
    UnsupportedRefusal
        If it uses a schema or an operation that this build does not know.
    """
    if not isinstance(document, dict):
        raise ContainerError(f"{where}: expected a JSON object, found {_kind(document)}")
    schema = document.get("schema")
    if type(schema) is not int or schema != GRAPH_SCHEMA:
        raise UnsupportedRefusal(
            f"{where}: graph schema {schema!r:.60} is not known to this build, which reads "
            f"{GRAPH_SCHEMA}"
        )
    unknown = sorted(set(document) - {"schema", "components", "edges"})
    if unknown:
        raise ContainerError(f"{where}: the document has unknown key {shown(unknown[0])}")
    raw_components = document.get("components")
    if not isinstance(raw_components, list) or not raw_components:
        raise ContainerError(f"{where}: `components` must be a non-empty array")
    components = []
    for position, raw in enumerate(raw_components):
        path = f"components[{position}]"
        if not isinstance(raw, dict):
            raise ContainerError(f"{where}: {path} is {_kind(raw)}, expected an object")
        component = _decode_class(
            g.Component, {k: v for k, v in raw.items() if k != "state"}, path, where
        )
        _check_component(component, path, where)
        stated = _decode(tuple[g.StateSpec, ...], raw.get("state"), f"{path}.state", where)
        if stated != g.state_schema(component):
            raise ContainerError(
                f"{where}: {path}.state contradicts the state that the component's operations keep"
            )
        components.append(component)
    ids = [component.id for component in components]
    if len(set(ids)) != len(ids):
        raise ContainerError(f"{where}: two components have the same id in {ids}")
    edges = typing.cast(
        "tuple[g.Edge, ...]",
        _decode(tuple[g.Edge, ...], document.get("edges", []), "edges", where),
    )
    for edge in edges:
        for end in (edge.producer, edge.consumer):
            if end not in ids:
                raise ContainerError(f"{where}: an edge names component {shown(end)}, not in {ids}")
    return g.Graph(components=tuple(components), edges=edges)


def _check_component(component: g.Component, path: str, where: str) -> None:
    indices = [layer.index for layer in component.layers]
    if indices != list(range(len(indices))) or not indices:
        raise ContainerError(
            f"{where}: {path}.layers must be numbered 0, 1, … in order, found {indices[:8]}"
        )


def _encode(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        document: dict[str, object] = {}
        name = _NAMES.get(type(value))
        if name is not None:
            document["op"] = name
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if item is not None:
                document[field.name] = _encode(item)
        return document
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode_class(cls: type[T], raw: object, path: str, where: str) -> T:
    if not isinstance(raw, dict):
        raise ContainerError(f"{where}: {path} is {_kind(raw)}, expected an object")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _HINTS[cls]
    known = set(fields) | ({"op"} if cls in _NAMES else set())
    unknown = sorted(set(raw) - known)
    if unknown:
        raise ContainerError(f"{where}: {path} has unknown key {shown(unknown[0])}")
    values = {}
    for name, field in fields.items():
        if name in raw:
            values[name] = _decode(hints[name], raw[name], f"{path}.{name}", where)
        elif field.default is dataclasses.MISSING:
            raise ContainerError(f"{where}: {path} lacks key `{name}`")
    return cls(**values)


def _decode(hint: object, raw: object, path: str, where: str) -> object:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        if len(options) == 1:
            return _decode(options[0], raw, path, where)
        return _decode_tagged(tuple(options), raw, path, where)
    if origin is tuple:
        if not isinstance(raw, list):
            raise ContainerError(f"{where}: {path} is {_kind(raw)}, expected an array")
        item_hint = get_args(hint)[0]
        return tuple(_decode(item_hint, item, f"{path}[{i}]", where) for i, item in enumerate(raw))
    if origin is Literal:
        if raw not in get_args(hint):
            raise UnsupportedRefusal(
                f"{where}: {path} is {raw!r:.60}; this build knows "
                f"{', '.join(map(repr, get_args(hint)))}"
            )
        return raw
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if hint in _NAMES:
            return _decode_tagged((hint,), raw, path, where)
        return _decode_class(hint, raw, path, where)
    return _decode_scalar(hint, raw, path, where)


def _decode_tagged(options: tuple[object, ...], raw: object, path: str, where: str) -> object:
    if not isinstance(raw, dict):
        raise ContainerError(f"{where}: {path} is {_kind(raw)}, expected an object")
    op = raw.get("op")
    cls = _OPS.get(op) if isinstance(op, str) else None
    if cls is None:
        raise UnsupportedRefusal(
            f"{where}: {path} is operation {op!r:.60}; this build knows {', '.join(sorted(_OPS))}"
        )
    if cls not in options:
        raise ContainerError(f"{where}: {path} cannot be a {op}")
    return _decode_class(cls, raw, path, where)


def _decode_scalar(hint: object, raw: object, path: str, where: str) -> object:
    if hint is float and isinstance(raw, int | float) and not isinstance(raw, bool):
        if not abs(raw) <= sys.float_info.max:
            raise ContainerError(f"{where}: {path} is {raw!r:.60}, expected a finite number")
        return float(raw)
    if hint is int and isinstance(raw, int) and not isinstance(raw, bool):
        if not 0 <= raw < 1 << 48:
            raise ContainerError(f"{where}: {path} is {raw!r:.60}, expected a count")
        return raw
    if hint in (str, bool) and type(raw) is hint:
        return raw
    expected = getattr(hint, "__name__", str(hint))
    raise ContainerError(f"{where}: {path} is {_kind(raw)}, expected {expected}")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", type(None): "null"}
    return names.get(type(value), f"{value!r:.60}")
