"""What a slice declares: that the rest of the model is elsewhere, in whatever profile is active."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from larql.format.closure import operand_contracts
from larql.format.index import Representation
from larql.format.moe.profiles import DEFAULT, parse_selector
from larql.format.slicing.plan import SlicePlan

__all__ = ["sliced_profiles", "sliced_variants"]


def sliced_profiles(profiles: Mapping[str, object], plan: SlicePlan) -> dict[str, object]:
    """Return a container's profiles as its slice has them.

    Every profile that inherits from none declares what was left out, so that all do; without a
    profile ``default`` there is one that declares nothing else. Selectors of what the graph no
    longer names go.
    """
    known = {value.operand for value in plan.representations.values()}
    for component in plan.graph.components:
        known |= {contract.name for contract in operand_contracts(component)}
    found: dict[str, object] = {}
    for name, value in profiles.items():
        document = dict(cast("Mapping[str, object]", value))
        for key in ("omits", "remote"):
            listed = document.get(key)
            if isinstance(listed, list):
                document[key] = [text for text in listed if _names_any(text, known)]
        if document.get("inherits") is None and plan.remote:
            already = cast("list[str]", document.get("remote") or [])
            document["remote"] = list(dict.fromkeys([*already, *plan.remote]))
        found[name] = document
    if plan.remote and DEFAULT not in found:
        found[DEFAULT] = {"remote": list(plan.remote)}
    return found


def _names_any(text: object, known: set[str]) -> bool:
    selector = parse_selector(text)
    return selector is not None and any(selector.covers(name) for name in known)


def sliced_variants(
    variants: Mapping[str, object], kept: Mapping[str, Representation]
) -> dict[str, object]:
    """Return a container's variants with the representations that its slice has."""
    found: dict[str, object] = {}
    for name, value in variants.items():
        chosen = value.get("representations") if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and isinstance(chosen, Mapping):
            here = {operand: id_ for operand, id_ in chosen.items() if id_ in kept}
            found[name] = {**value, "representations": here}
        else:
            found[name] = value
    return found
