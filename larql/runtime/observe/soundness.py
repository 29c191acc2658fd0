"""Checks of what a record's lines say beyond their own form: a record may come from anywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from larql.errors import RecordError
from larql.runtime.observe.events import (
    CarrierWrite,
    End,
    Event,
    PositionDone,
    Readout,
    Restored,
    Truncated,
)
from larql.runtime.observe.sites import EMBED

__all__ = ["check_event", "check_header", "fingerprint"]


def fingerprint(identity: Mapping[str, object]) -> str:
    """Return the sha256 of an identity as JSON with sorted keys and no spaces."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def check_header(header: Mapping[str, Any]) -> None:
    """Refuse a header without the fields that readers of records use.

    Raises
    ------
    RecordError
        Naming the field.
    """
    if header.keys() != {"run_id", "provenance_fingerprint", "identity", "sites"}:
        raise RecordError("is a header, but has other fields than run_id, identity and sites")
    if not isinstance(header["run_id"], str):
        raise RecordError("run_id: expected a text")
    if not _are_sites(header["sites"]):
        raise RecordError("sites: expected a list of [layer, site], the first of them embed")
    identity = header["identity"]
    if not _is_identity(identity):
        raise RecordError("identity: lacks container, tokens, layers, or what is observed")
    if header["provenance_fingerprint"] != fingerprint(identity):
        raise RecordError("provenance_fingerprint: is not the hash of the identity")


def check_event(header: Mapping[str, Any], event: Event) -> None:
    """Refuse an event that does not belong to the header's run.

    Raises
    ------
    RecordError
        If its site does not exist, or a readout of the lens is not what was declared.
    """
    if isinstance(event, PositionDone | Restored | Truncated | End):
        return
    if event.write >= len(header["sites"]):
        raise RecordError(
            f"write: the run has {len(header['sites'])} sites, found number {event.write}"
        )
    observed = header["identity"]["observed"]
    if isinstance(event, CarrierWrite):
        basis = observed["basis"]
        if len(event.projection) != (0 if basis is None else basis["dims"]):
            raise RecordError("projection: does not fit the basis of the header")
    if isinstance(event, Readout) and event.reader == "lens":
        _check_lens(observed["readers"].get("lens"), event.values)


def _are_sites(sites: object) -> bool:
    if not isinstance(sites, list) or not sites or sites[0] != [None, EMBED]:
        return False
    return all(
        isinstance(site, list)
        and len(site) == 2
        and _is_count(site[0])
        and site[1] in ("attention", "ffn", "per_layer")
        for site in sites[1:]
    )


def _is_identity(identity: object) -> bool:
    if not isinstance(identity, dict):
        return False
    container, observed = identity.get("container"), identity.get("observed")
    layers = identity.get("executed_layers")
    return (
        isinstance(container, dict)
        and isinstance(container.get("fingerprint"), str)
        and isinstance(container.get("profile", ""), str | None)
        and all(
            isinstance(identity.get(name), str)
            for name in ("backend", "activations", "kv", "tokens_sha256")
        )
        and isinstance(identity.get("tokens"), list)
        and isinstance(layers, list)
        and len(layers) > 0
        and all(map(_is_count, layers))
        and _is_count(identity.get("vocab"))
        and isinstance(observed, dict)
        and _is_observed(observed, identity["vocab"])
    )


def _is_observed(observed: Mapping[str, Any], vocab: int) -> bool:
    basis, made = observed.get("basis"), observed.get("interventions")
    readers = observed.get("readers")
    return (
        (basis is None or (isinstance(basis, dict) and _is_count(basis.get("dims"))))
        and (
            made is None
            or (
                isinstance(made, dict)
                and isinstance(made.get("declared"), list)
                and isinstance(made.get("sha256"), str)
            )
        )
        and isinstance(readers, dict)
        and ("lens" not in readers or _is_lens(readers["lens"], vocab))
    )


def _is_lens(lens: object, vocab: int) -> bool:
    return (
        isinstance(lens, dict)
        and all(
            isinstance(lens.get(name), list) and all(map(_is_count, lens[name]))
            for name in ("layers", "tokens")
        )
        and isinstance(lens.get("attention"), bool)
        and _is_count(lens.get("top"))
        and lens["top"] <= vocab
    )


def _check_lens(lens: Mapping[str, Any] | None, values: Mapping[str, Any]) -> None:
    top = values.get("top")
    sound = (
        lens is not None
        and isinstance(top, list)
        and 0 < len(top) <= lens["top"]
        and all(
            isinstance(entry, list)
            and len(entry) == 3
            and _is_count(entry[0])
            and all(map(_is_number, entry[1:]))
            for entry in top
        )
    )
    if sound and lens is not None and lens["tokens"]:
        columns = [values.get(name) for name in ("logits", "log_probabilities", "ranks")]
        sound = all(
            isinstance(column, list)
            and len(column) == len(lens["tokens"])
            and all(map(_is_number, column))
            for column in columns
        )
        sound = sound and all(map(_is_count, values["ranks"]))
    if not sound:
        raise RecordError("values: are not a readout of the lens that the header declares")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
