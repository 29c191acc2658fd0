"""From what a VINDEX2 directory lists to the operands that a runtime binds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from larql.errors import LarqlError
from larql.format.encoding import Encoding
from larql.format.graph import Component
from larql.format.index import Representation, SourceBinding
from larql.format.lyrw.v1 import LayerWeights, stored_columns
from larql.format.vindex2.index import Vindex2Index
from larql.format.vindex2.layout import GATE, MANIFEST, Level, needed_level
from larql.format.vindex2.placement import Form, Place, entries_fault, places, routed_of
from larql.format.vindex2.weight_manifest import WeightEntry

__all__ = ["Bound", "bind_operands"]

OpenLayer = Callable[[str], LayerWeights]


@dataclass(frozen=True)
class Bound:
    """Which operands of a component a directory has.

    Attributes
    ----------
    representations : mapping
        Operand to what is stored of it, in execution order.
    places : mapping
        Operand to where it belongs, present or not.
    absent : mapping
        Operand to why it is not there, and what to do.
    faults : tuple of (str, str)
        File and problem of what is there and contradicts the model.
    """

    representations: Mapping[str, Representation] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[tuple[str, str], ...] = ()


class _AbsentError(Exception):
    """An operand that is not there."""


class _ContradictionError(Exception):
    """A file that is there, and whose content is not the model's."""

    def __init__(self, problem: str, file: str | None = None) -> None:
        super().__init__(problem)
        self.file = file


def bind_operands(
    index: Vindex2Index,
    component: Component,
    manifest: Collection[WeightEntry],
    listed: Collection[str],
    open_layer: OpenLayer,
) -> Bound:
    """Return which operands of a component a directory has.

    Parameters
    ----------
    index : Vindex2Index
    component : Component
    manifest : collection of WeightEntry
    listed : collection of str
        Files that the directory has.
    open_layer : callable
        Opens a layer file by its name, reading its header and table.

    Raises
    ------
    CompileError
        If the component cannot lie as the index says that it does.
    """
    entries = {entry.key: entry for entry in manifest}
    found: dict[str, Representation] = {}
    absent: dict[str, str] = {}
    faults: dict[tuple[str, str], None] = {}
    held = places(component, index.ffn_layout)
    experts = {
        layer.index: routed.bank
        for layer in component.layers
        if (routed := routed_of(layer)) is not None
    }
    for name, place in held.items():
        try:
            if place.file not in listed:
                raise _AbsentError(_level_text(index.level, place.file))
            match place.form:
                case Form.LISTED:
                    value = _of_manifest(entries.get(name), place, index)
                case Form.FEATURES:
                    value = _features(index, place)
                case Form.EMBEDDINGS:
                    value = _representation(place, index.dtype, index, place.contract.name)
                case Form.DENSE_ENTRY | Form.EXPERTS:
                    layer = place.contract.layer
                    bank = None if layer is None else experts.get(layer)
                    opened = open_layer(place.file)
                    fault = (
                        entries_fault(bank, opened, index.experts)
                        if place.form is Form.EXPERTS and bank is not None
                        else None
                    )
                    if fault is not None:
                        raise _ContradictionError(fault)
                    value = _of_layer(opened, place, index)
        except _AbsentError as reason:
            absent[name] = str(reason)
        except _ContradictionError as reason:
            file = reason.file or place.file
            absent[name] = f"{file} {reason}"
            faults[file, str(reason)] = None
        except LarqlError as error:
            absent[name] = str(error)
            faults[place.file, str(error)] = None
        else:
            found[name] = value
    return Bound(found, held, absent, tuple(faults))


def _level_text(level: Level, file: str) -> str:
    needed = needed_level(file)
    if level.includes(needed):
        return f"{file} is missing; extract it again"
    return (
        f"it belongs to {file}, and this directory is of level {level.value}; extract with "
        f"--level {needed.value}"
    )


def _of_manifest(entry: WeightEntry | None, place: Place, index: Vindex2Index) -> Representation:
    if entry is None:
        raise _AbsentError(f"{MANIFEST} does not list it in {place.file}; extract it again")
    if entry.file != place.file:
        raise _ContradictionError(
            f"has {entry.key} in {entry.file}, it belongs to {place.file}", MANIFEST
        )
    if entry.shape != place.contract.shape:
        raise _ContradictionError(
            f"has {entry.key} of shape {list(entry.shape)}, the model has "
            f"{list(place.contract.shape)}",
            MANIFEST,
        )
    return _representation(place, entry.dtype, index, entry.key, entry)


def _features(index: Vindex2Index, place: Place) -> Representation:
    layer = place.contract.layer
    features = None if layer is None else index.features(layer)
    rows = place.contract.shape[0]
    if features is None or (rows and not features.num_features):  # a cut leaves layers out so
        raise _AbsentError(f"the index lists no gate vectors of layer {layer}; extract it again")
    if features.num_features != rows:
        raise _ContradictionError(
            f"has {features.num_features} features of layer {layer}, the model has {rows}"
        )
    return _representation(place, index.dtype, index, place.contract.name)


def _of_layer(file: LayerWeights, place: Place, index: Vindex2Index) -> Representation:
    shape, encoding = place.contract.shape, file.encoding()
    held = file.shape
    if place.form is Form.DENSE_ENTRY and held.num_entries != 1:
        raise _ContradictionError(f"has {held.num_entries} entries, a dense layer has 1")
    matrix = (
        (held.hidden, held.intermediate)
        if place.part == "down"
        else (held.intermediate * (2 if place.part == "gate_up" else 1), held.hidden)
    )
    if matrix != shape[-2:]:
        raise _ContradictionError(
            f"holds {place.part} of shape {list(matrix)}, the model has {list(shape[-2:])}"
        )
    return _representation(place, encoding, index, place.part)


def _representation(
    place: Place,
    encoding: Encoding,
    index: Vindex2Index,
    tensor: str,
    entry: WeightEntry | None = None,
) -> Representation:
    contract = place.contract
    columns = stored_columns(encoding, contract.shape[-1])
    return Representation(
        id=contract.name,
        operand=contract.name,
        encoding=encoding,
        fidelity="numerically-approximate" if encoding.is_block else "source-equivalent",
        shape=contract.shape,
        segment=place.file,
        tensor=tensor,
        source=SourceBinding(contract.name, encoding.name, ""),
        requested=None if entry is None else entry.requested,
        stored_columns=None if columns == contract.shape[-1] else columns,
    )


def byte_ranges(
    bound: Bound,
    index: Vindex2Index,
    manifest: Collection[WeightEntry],
    open_layer: OpenLayer,
    file: str,
) -> Iterator[tuple[str, Representation, int, int]]:
    """Yield name, representation, and begin and end of each operand in a file without a header.

    Entries of experts are left out: they are no one range.
    """
    entries = {entry.key: entry for entry in manifest}
    for name, value in bound.representations.items():
        if value.segment != file:
            continue
        match bound.places[name].form:
            case Form.LISTED:
                begin, length = entries[name].offset, entries[name].length
            case Form.FEATURES:
                layer = bound.places[name].contract.layer
                features = None if layer is None else index.features(layer)
                assert features is not None, GATE
                begin, length = features.offset, features.length
            case Form.EMBEDDINGS:
                begin, length = 0, value.nbytes
            case Form.DENSE_ENTRY:
                begin, length = open_layer(file).extent(0, value.tensor)
            case Form.EXPERTS:
                continue
        yield value.tensor, value, begin, begin + length
