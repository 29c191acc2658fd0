"""``moe_manifest.json``: a strict round trip of :mod:`larql.format.moe.manifest`.

Unknown keys, missing keys and wrong types are errors that name the place in the document, because
each key changes what is computed. What the values mean together is checked elsewhere, so that a
manifest with defects can still be read and all of them be named.
"""

from __future__ import annotations

import typing

from larql.errors import ContainerError, UnsupportedRefusal
from larql.format.moe import manifest as m
from larql.format.names import check_relative_name
from larql.format.strict_json import StrictJson, kind_of
from larql.format.untrusted import shown

__all__ = ["manifest_from_json", "manifest_to_json"]

_JSON = StrictJson({"top_k": m.TopK, "grouped_top_k": m.GroupedTopK}, "selection")


def manifest_to_json(manifest: m.Manifest) -> dict[str, object]:
    """Return the JSON document of a manifest; None fields are left out."""
    document = typing.cast("dict[str, object]", _JSON.encode(manifest))
    return {"schema": manifest.schema, **document}


def manifest_from_json(document: object, where: str) -> m.Manifest:
    """Read a manifest document.

    Parameters
    ----------
    document : object
        Decoded JSON.
    where : str
        File name for error texts.

    Raises
    ------
    ContainerError
        If the document is not a manifest, lacks a key, has an unknown key, a wrong type or a file
        name that leaves the container.
    UnsupportedRefusal
        If it has a schema, a selection or another choice that this build does not know.
    """
    if not isinstance(document, dict):
        raise ContainerError(f"{where}: expected a JSON object, found {kind_of(document)}")
    schema = document.get("schema")
    if type(schema) is not int or schema != m.MANIFEST_SCHEMA:
        raise UnsupportedRefusal(
            f"{where}: manifest schema {schema!r:.60} is not known to this build, which reads "
            f"{m.MANIFEST_SCHEMA}"
        )
    manifest = _JSON.decode_class(m.Manifest, document, "", where)
    for storage in manifest.storages:
        for name in storage.files:
            check_relative_name(name, f"{where}: storage {shown(storage.key)}", ContainerError)
    return manifest
