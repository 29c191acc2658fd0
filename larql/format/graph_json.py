"""The system graph as JSON: a strict round trip of the dataclasses in :mod:`larql.format.graph`.

Every object that may be one of several kinds carries its kind in ``op``. Unknown keys, missing
keys and wrong types are errors that name the path inside the document, because each key of a
graph changes what is computed.
"""

from __future__ import annotations

import typing

from larql.errors import ContainerError, UnsupportedRefusal
from larql.format import graph as g
from larql.format.strict_json import StrictJson, kind_of
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
    "distance_bias": g.DistanceBias,
    "position_scale": g.PositionScale,
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
_JSON = StrictJson(_OPS, "operation")


def graph_to_json(graph: g.Graph) -> dict[str, object]:
    """Return the JSON document of a graph; None fields are left out."""
    components = []
    for component in graph.components:
        document = typing.cast("dict[str, object]", _JSON.encode(component))
        document["state"] = [_JSON.encode(region) for region in g.state_schema(component)]
        components.append(document)
    return {
        "schema": GRAPH_SCHEMA,
        "components": components,
        "edges": [_JSON.encode(edge) for edge in graph.edges],
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
        raise ContainerError(f"{where}: expected a JSON object, found {kind_of(document)}")
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
            raise ContainerError(f"{where}: {path} is {kind_of(raw)}, expected an object")
        component = _JSON.decode_class(
            g.Component, {k: v for k, v in raw.items() if k != "state"}, path, where
        )
        _check_component(component, path, where)
        stated = _JSON.decode(tuple[g.StateSpec, ...], raw.get("state"), f"{path}.state", where)
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
        _JSON.decode(tuple[g.Edge, ...], document.get("edges", []), "edges", where),
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
