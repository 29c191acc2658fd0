"""Profiles and variants: selections among what a container holds. They never convert anything.

``variants``: name to ``representations``, operand to the id of a representation. ``profiles``: name
to ``inherits`` (a profile or null), ``variants`` (names), ``omits`` and ``remote`` (selectors). A
selector is a component, an object, an operand, or an operand and a range of entries:
``target.layer.003/experts.down[4:8]``. The profile ``default``, where there is one, is active
unless another is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from larql.errors import BindingDefect, ContainerError, ResidencyRefusal, UsageError
from larql.format.closure import operand_contracts
from larql.format.graph import Component
from larql.format.index import Index, Representation
from larql.format.untrusted import shown

__all__ = [
    "DEFAULT",
    "Selection",
    "Selector",
    "document_selection",
    "parse_selector",
    "select",
    "selection_of",
]

DEFAULT = "default"
_SELECTOR = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<first>\d{1,9}):(?P<end>\d{1,9})\])?")
_FIELDS = ("inherits", "variants", "omits", "remote")


@dataclass(frozen=True)
class Selector:
    """What a profile speaks of.

    Attributes
    ----------
    name : str
        A component, an object or an operand.
    entries : (int, int) or None
        Half-open range of an operand's entries; None: all of what is named.
    """

    name: str
    entries: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.entries is None:
            return self.name
        return f"{self.name}[{self.entries[0]}:{self.entries[1]}]"

    def covers(self, operand: str) -> bool:
        """Return whether an operand, or some of its entries, are spoken of."""
        rest = operand.removeprefix(self.name)
        return operand.startswith(self.name) and (not rest or rest[0] in "./")


@dataclass(frozen=True)
class Selection:
    """Which representation serves each operand, and what is left out.

    Attributes
    ----------
    profile : str or None
        None: the document as it stands.
    chain : tuple of str
        The profile and those that it inherits from, nearest first.
    bound : mapping
        Operand to the representation that serves it.
    contradictions : mapping
        Operand to the ids that variants of one profile select for it.
    omits, remote : tuple of Selector
    chosen : frozenset of str
        Operands for which a profile, and not their order in the index, decided.
    absent : mapping
        Operand to what is known of why it is not here, and what to do.
    """

    profile: str | None
    chain: tuple[str, ...]
    bound: Mapping[str, Representation]
    contradictions: Mapping[str, tuple[str, ...]]
    omits: tuple[Selector, ...]
    remote: tuple[Selector, ...]
    chosen: frozenset[str] = frozenset()
    absent: Mapping[str, str] = field(default_factory=dict)

    def omitted(self, operand: str) -> bool:
        """Return whether all of an operand is left out."""
        return any(s.entries is None and s.covers(operand) for s in self.omits)

    def omitted_entries(self, operand: str) -> tuple[tuple[int, int], ...]:
        """Return the ranges of an operand's entries that are left out."""
        return tuple(s.entries for s in self.omits if s.entries and s.covers(operand))

    def is_remote(self, operand: str) -> bool:
        """Return whether an operand is declared to be to be had elsewhere."""
        return any(s.entries is None and s.covers(operand) for s in self.remote)

    def elsewhere(self, operand: str) -> bool:
        """Return whether an operand may be missing: it is left out, or to be had elsewhere."""
        return self.omitted(operand) or self.is_remote(operand)

    def serving(self, operand: str, where: str) -> Representation:
        """Return the representation that serves an operand.

        Parameters
        ----------
        operand : str
        where : str
            The container, for error texts.

        Raises
        ------
        ResidencyRefusal
            If the profile leaves the operand out, all of it or some entries, or if it is not here
            and declared to be elsewhere.
        BindingDefect
            If it is not here, or the profile selects two representations of it at once.
        """
        at = f"{where}: operand {operand}"
        entries = ", ".join(f"{first}:{end}" for first, end in self.omitted_entries(operand))
        if entries or self.omitted(operand):
            of = f"entries {entries} of it" if entries else "it"
            raise ResidencyRefusal(
                f"{at}: profile {self.profile} leaves {of} out; choose a profile that keeps it"
            )
        if operand in self.contradictions:
            ids = ", ".join(self.contradictions[operand])
            raise BindingDefect(
                f"{at}: profile {self.profile} selects {ids} at once; select one variant that has "
                f"it"
            )
        found = self.bound.get(operand)
        if found is None and self.is_remote(operand):
            raise ResidencyRefusal(
                f"{at}: is not here; profile {self.profile} says that it is elsewhere; take a "
                f"container that has it"
            )
        if found is None:
            why = self.absent.get(operand, "extract it again")
            raise BindingDefect(f"{where}: operand {operand} is not in the container; {why}")
        return found


def document_selection(index: Index) -> Selection:
    """Return the selection of the document itself: baselines, and nothing left out."""
    return Selection(None, (), index.by_operand(), {}, (), ())


def selection_of(
    index: Index, components: Iterable[Component], profile: str | None, where: str
) -> Selection:
    """Resolve a profile, and hold what it speaks of against what there is.

    Parameters
    ----------
    index : Index
    components : iterable of Component
        Those of the graph.
    profile : str or None
        As for :func:`select`.
    where : str
        The container, for error texts.

    Raises
    ------
    UsageError, ContainerError
        As :func:`select`; also if the profile speaks of something that is neither in the graph nor
        in the index.
    """
    selection = select(index, profile, where)
    known = {value.operand for value in index.representations.values()}
    for component in components:
        known |= {contract.name for contract in operand_contracts(component)}
    for selector in (*selection.omits, *selection.remote):
        if not any(selector.covers(name) for name in known):
            raise ContainerError(
                f"{where}: profile {selection.profile} speaks of {selector.name!r:.80}, which is "
                f"no component, object or operand of the container"
            )
    return selection


def select(index: Index, profile: str | None, where: str) -> Selection:
    """Resolve a profile.

    Parameters
    ----------
    index : Index
    profile : str or None
        None: ``default``, or the document where it has none of that name.
    where : str
        The container, for error texts.

    Raises
    ------
    UsageError
        If there is no such profile, naming those that there are.
    ContainerError
        If a profile or a variant is malformed, a profile inherits from itself or from none that
        exists, or a variant or a representation that is named is not there.
    """
    name = profile
    if name is None:
        if DEFAULT not in index.profiles:
            return document_selection(index)
        name = DEFAULT
    if name not in index.profiles:
        known = ", ".join(index.profiles) or "none"
        raise UsageError(f"{where}: there is no profile {name!r}; the container has {known}")
    chain = _chain(index, name, where)
    bound = index.by_operand()
    chosen: set[str] = set()
    contradictions: dict[str, tuple[str, ...]] = {}
    omits: list[Selector] = []
    remote: list[Selector] = []
    for member in chain:
        at = f"{where}: profile {shown(member)}"
        document = _object(index.profiles[member], at)
        omits += _selectors(document, "omits", at)
        remote += _selectors(document, "remote", at)
        picked: dict[str, list[str]] = {}
        for variant in _texts(document, "variants", at):
            for operand, id_ in _variant(index, variant, at).items():
                picked.setdefault(operand, []).append(id_)
        for operand, ids in picked.items():
            # The nearest profile decides; only what one profile says twice contradicts itself.
            if operand in chosen:
                continue
            chosen.add(operand)
            bound[operand] = index.representations[ids[0]]
            if len(set(ids)) > 1:
                contradictions[operand] = tuple(dict.fromkeys(ids))
    return Selection(
        name, chain, bound, contradictions, tuple(omits), tuple(remote), frozenset(chosen)
    )


def _chain(index: Index, name: str, where: str) -> tuple[str, ...]:
    chain = [name]
    while True:
        at = f"{where}: profile {shown(chain[-1])}"
        document = _object(index.profiles[chain[-1]], at)
        unknown = sorted(set(document) - set(_FIELDS))
        if unknown:
            raise ContainerError(f"{at} has unknown field {shown(unknown[0])}")
        parent = document.get("inherits")
        if parent is None:
            return tuple(chain)
        if not isinstance(parent, str) or parent not in index.profiles:
            known = ", ".join(index.profiles)
            raise ContainerError(
                f"{at} inherits from {parent!r:.60}, which is not there; the container has {known}"
            )
        if parent in chain:
            circle = " -> ".join([*chain[chain.index(parent) :], parent])
            raise ContainerError(f"{at} inherits from itself: {circle}")
        chain.append(parent)


def _variant(index: Index, name: str, where: str) -> Mapping[str, str]:
    if name not in index.variants:
        known = ", ".join(index.variants) or "none"
        raise ContainerError(
            f"{where} selects variant {shown(name)}, which is not there; the container has {known}"
        )
    at = f"{where}: variant {shown(name)}"
    chosen = _object(_object(index.variants[name], at).get("representations"), at)
    for operand, id_ in chosen.items():
        found = index.representations.get(id_) if isinstance(id_, str) else None
        if found is None or found.operand != operand:
            present = [k for k, v in index.representations.items() if v.operand == operand]
            raise ContainerError(
                f"{at} selects {id_!r:.60} for operand {operand}, which is none of its "
                f"representations; it has {', '.join(present) or 'none'}, and nothing is converted"
            )
    return {operand: str(id_) for operand, id_ in chosen.items()}


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ContainerError(f"{where}: expected an object, found {value!r:.60}")
    return value


def _texts(document: Mapping[str, object], key: str, where: str) -> list[str]:
    value = document.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ContainerError(f"{where}: `{key}` is {value!r:.60}, expected an array of strings")
    return value


def parse_selector(text: object) -> Selector | None:
    """Return what a selector means, None where it is none."""
    match = _SELECTOR.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    first, end = match["first"], match["end"]
    if first is None or end is None:
        return Selector(match["name"])
    entries = int(first), int(end)
    return Selector(match["name"], entries) if entries[0] < entries[1] else None


def _selectors(document: Mapping[str, object], key: str, where: str) -> list[Selector]:
    found = []
    for text in _texts(document, key, where):
        selector = parse_selector(text)
        if selector is None:
            raise ContainerError(
                f"{where}: `{key}` names {shown(text)}, expected a component, an object or an "
                f"operand, with a range of entries as [first:end] if some are meant"
            )
        found.append(selector)
    return found
