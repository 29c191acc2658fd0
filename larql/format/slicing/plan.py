"""What a slice will hold, decided from metadata alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from larql.errors import ContainerError, UsageError
from larql.format.banks import find_schema
from larql.format.container import Container
from larql.format.graph import Component, Graph
from larql.format.index import Representation
from larql.format.lyrw.tables import Tables
from larql.format.lyrw.v2 import bank_file_name
from larql.format.moe.from_graph import bank_files_of, manifest_of
from larql.format.moe.manifest import Manifest
from larql.format.moe.profiles import select
from larql.format.names import check_relative_name
from larql.format.slicing.banks import cut_tables
from larql.format.slicing.parts import Use, operand_uses
from larql.format.slicing.presets import EVERYTHING, PRESETS, Part, file_part
from larql.format.tokenizer.files import SOURCE_CONFIG

__all__ = [
    "BankCut",
    "Request",
    "SlicePlan",
    "check_named",
    "check_range",
    "left_out",
    "plan_slice",
    "request",
    "shallower",
    "texts_of",
]

_NAMED_IN_VAIN = frozenset({Part.ROUTER, Part.EXPERT_LAYERS})
"""Parts of which a container that has none cannot have been meant."""


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes
    ----------
    parts : frozenset of Part
    named : frozenset of Part
        Those of them that must be there: a model without them is another one than was meant.
    layers : (int, int) or None
        Half-open range of the layers that are kept; None: all.
    experts : (int, int) or None
        Half-open range of each layer's experts that are kept; None: all.
    draft_depth : int or None
        Cut the model itself after so many layers; None: not.
    """

    parts: frozenset[Part]
    named: frozenset[Part] = frozenset()
    layers: tuple[int, int] | None = None
    experts: tuple[int, int] | None = None
    draft_depth: int | None = None


def request(
    preset: str | None,
    parts: Iterable[str],
    layers: tuple[int, int] | None = None,
    experts: tuple[int, int] | None = None,
    draft_depth: int | None = None,
) -> Request:
    """Return a request in types; without preset and parts it is for everything.

    Raises
    ------
    UsageError
        If a preset or part does not exist.
    """
    named: set[Part] = set()
    for name in parts:
        if name not in set(Part):
            raise UsageError(f"there is no part {name!r:.60}; expected {', '.join(Part)}")
        named.add(Part(name))
    if preset is None:
        return Request(frozenset(named) or EVERYTHING, frozenset(named), layers, experts,
                       draft_depth)  # fmt: skip
    if preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r:.60}; expected {', '.join(PRESETS)}")
    required = named | ({Part.ROUTER} if preset == "router" else set())
    return Request(PRESETS[preset] | named, frozenset(required), layers, experts, draft_depth)


@dataclass(frozen=True)
class BankCut:
    """A file of banks that is written anew.

    Attributes
    ----------
    source : str
        The container's file.
    tables : Tables
        Of what is kept of it.
    """

    source: str
    tables: Tables


@dataclass(frozen=True)
class SlicePlan:
    """Everything about a slice but its bytes.

    Attributes
    ----------
    graph : Graph
    manifest : Manifest or None
    representations : mapping
        What is kept, by id, in the order of the container's index.
    linked : tuple of str
        Files that are kept whole, by name.
    segments : mapping
        File of tensors that is written anew, to the representations that it keeps.
    banks : mapping
        File of banks that is written anew, under its new name.
    remote : tuple of str
        Objects and operands of the graph that are left out.
    notes : tuple of str
    """

    graph: Graph
    manifest: Manifest | None
    representations: Mapping[str, Representation]
    linked: tuple[str, ...]
    segments: Mapping[str, tuple[Representation, ...]]
    banks: Mapping[str, BankCut]
    remote: tuple[str, ...]
    notes: tuple[str, ...]


def plan_slice(container: Container, wanted: Request) -> SlicePlan:
    """Decide what a slice holds.

    Raises
    ------
    UsageError
        If a range is outside the model, or a part that was named is not in it, or nothing is left.
    ContainerError, UnsupportedRefusal
        If the graph, a profile or a file of banks cannot be read.
    """
    for name in container.index.profiles:
        select(container.index, name, str(container.path))
    graph, notes = shallower(container, wanted.draft_depth)
    main = graph.components[0]
    check_range("--layers", wanted.layers, len(main.layers), "layers")
    uses = [use for component in graph.components for use in operand_uses(component)]
    check_named(container, wanted, {use.part for use in uses})
    kept = _kept(wanted, uses)
    found = {k: v for k, v in container.index.representations.items() if v.operand in kept}
    made, held = _cut_banks(container, found, wanted.experts, main.id)
    stored = {
        key: dataclasses.replace(value, segment=held.get(value.segment, (value.segment,))[0])
        for key, value in found.items()
        if held.get(value.segment) != ()
    }
    if not stored:
        raise UsageError(f"{container.path}: nothing of the model is left; ask for more parts")
    linked, segments = _files(container, found, made, held)
    operands = frozenset(value.operand for value in stored.values())
    return SlicePlan(
        graph=graph,
        manifest=_manifest(container, graph.components, stored, held),
        representations=stored,
        linked=(*linked, *texts_of(container, wanted)),
        segments=segments,
        banks=made,
        remote=tuple(left_out(dict.fromkeys(use.operand for use in uses), operands)),
        notes=notes,
    )


def shallower(container: Container, depth: int | None) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph cut after some layers; what drafts for the whole model goes with the rest.

    What is cut at full depth is the whole model, and stays so.

    Raises
    ------
    UsageError
        If there are not so many layers.
    """
    graph = container.graph
    main = graph.components[0]
    if depth is None or depth == len(main.layers):
        return graph, ()
    if not 1 <= depth < len(main.layers):
        raise UsageError(
            f"--draft-depth {depth}: the model has {len(main.layers)} layers; expected 1 to "
            f"{len(main.layers)}"
        )
    gone = [component.id for component in graph.components[1:]]
    notes = [f"{name} is left out: it was made for the whole model" for name in gone]
    cut = dataclasses.replace(main, layers=main.layers[:depth])
    return Graph((cut,)), tuple(notes)


def check_range(option: str, found: tuple[int, int] | None, count: int, what: str) -> None:
    """Refuse a half-open range that does not lie in ``0:count``.

    Raises
    ------
    UsageError
        If it does not.
    """
    if found is not None and not 0 <= found[0] < found[1] <= count:
        raise UsageError(
            f"{option} {found[0]}:{found[1]}: there are {count} {what}; expected a range in "
            f"0:{count}"
        )


def check_named(container: Container, wanted: Request, present: Collection[Part]) -> None:
    """Refuse parts that were named and that a model without experts has not.

    Raises
    ------
    UsageError
        If one of them is not among those that are present.
    """
    for part in sorted(wanted.named & _NAMED_IN_VAIN - set(present)):
        raise UsageError(
            f"{container.path}: there is no {part.value} in it, because no layer routes to "
            f"experts; ask for other parts"
        )


def _kept(wanted: Request, uses: Iterable[Use]) -> frozenset[str]:
    first, end = wanted.layers or (0, 1 << 48)
    return frozenset(
        use.operand
        for use in uses
        if (wanted.parts == EVERYTHING or use.part in wanted.parts)
        and (use.layer is None or first <= use.layer < end)
    )


def _cut_banks(
    container: Container,
    kept: Mapping[str, Representation],
    experts: tuple[int, int] | None,
    main: str,
) -> tuple[dict[str, BankCut], dict[str, tuple[str, ...]]]:
    """Return the files of banks that are written anew, and which files hold each old one's banks.

    The latter is by every file of banks that a kept representation names; empty where none of the
    experts that it holds is kept.
    """
    made: dict[str, BankCut] = {}
    held: dict[str, tuple[str, ...]] = {}
    by_segment: dict[str, list[Representation]] = {}
    for value in kept.values():
        if container.index.holds_banks(value.segment):
            by_segment.setdefault(value.segment, []).append(value)
    if experts is not None and not by_segment:
        raise UsageError(
            f"--experts {experts[0]}:{experts[1]}: the slice has no experts to choose among"
        )
    for segment, values in by_segment.items():
        names: list[str] = []
        owner = values[0].operand.partition(".")[0]
        beside = None if owner == main else owner
        for name in container.bank_names(segment):
            file = container.bank_file(name)
            found = [find_schema(file, value) for value in values]
            for bank, _schema in found:
                check_range("--experts", experts, bank.num_entries, "experts")
            wanted = {(bank.bank_id, schema.schema_index) for bank, schema in found}
            tables = cut_tables(file, wanted, experts)
            if tables is None:
                continue
            if tables != file.tables:
                index = tables.segments[0].segment_index if tables.one_of_several else None
                # A file that loses regions and no entries keeps its name.
                same = tables.segments == file.tables.segments
                old, layer = name, tables.logical_layer
                name = name if same else bank_file_name(layer, index, beside)
                check_relative_name(name, str(container.path), ContainerError)
                made[name] = BankCut(old, tables)
            names.append(name)
        held[segment] = tuple(names)
    return made, held


def _files(
    container: Container,
    kept: Mapping[str, Representation],
    made: Mapping[str, BankCut],
    held: Mapping[str, tuple[str, ...]],
) -> tuple[list[str], dict[str, tuple[Representation, ...]]]:
    """Return the segments that are kept whole, and those of which some tensors are."""
    by_segment: dict[str, list[Representation]] = {}
    for value in kept.values():
        by_segment.setdefault(value.segment, []).append(value)
    linked: list[str] = []
    written: dict[str, tuple[Representation, ...]] = {}
    for segment, values in by_segment.items():
        if segment in held:
            linked += [name for name in held[segment] if name not in made]
            continue
        names = {value.tensor for value in values}
        if names == set(container.segment(segment).header.entries):
            linked.append(segment)
        else:
            written[segment] = tuple(values)
    return linked, written


def texts_of(container: Container, wanted: Request) -> Iterator[str]:
    """Yield the names of the text files that a slice carries."""
    for name in container.text_files():
        part = file_part(name)
        if part is not None and part not in wanted.parts:
            continue
        # It describes the whole model, and is there to write that one back.
        if name == SOURCE_CONFIG and wanted.draft_depth is not None:
            continue
        yield name


def _manifest(
    container: Container,
    components: Sequence[Component],
    kept: Mapping[str, Representation],
    held: Mapping[str, tuple[str, ...]],
) -> Manifest | None:
    """Return the manifest of the layers whose banks are kept, None where none is."""
    files = bank_files_of(components, kept)
    manifest = manifest_of(components, files)
    if manifest is None:
        return None
    by_first = {names[0]: (old, names) for old, names in held.items() if names}
    storages = []
    for storage in manifest.storages:
        old, names = by_first[storage.files[0]]
        before = container.storages.get(old)
        width = None if before is None else before.group_width
        storages.append(dataclasses.replace(storage, files=names, group_width=width))
    return dataclasses.replace(manifest, storages=tuple(storages))


def left_out(uses: Iterable[str], stored: frozenset[str]) -> Iterator[str]:
    """Yield what is left out: an object where all of it is, else its operands."""
    objects: dict[str, list[str]] = {}
    for operand in uses:
        objects.setdefault(operand.partition("/")[0], []).append(operand)
    for name, operands in objects.items():
        gone = [operand for operand in operands if operand not in stored]
        yield from [name] if len(gone) == len(operands) else gone
