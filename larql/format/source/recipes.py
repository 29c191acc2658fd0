"""How a container's operands become the tensors of the checkpoint again, planned from its index.

Extraction took tensors apart; the index records how. Four recipes go back: *copy* (a tensor is an
operand), *split* (the entries of an operand are tensors), *join* (operands are rows of a tensor)
and *recombine* (blocks are values and scales in two tensors).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from larql.errors import BindingDefect, ContainerError, ResidencyRefusal, UnsupportedRefusal
from larql.format.closure import operand_contracts
from larql.format.container import Container
from larql.format.encoding import ENCODINGS, encodable_names
from larql.format.index import Index, Representation
from larql.format.rows import RowSelection, row_count

__all__ = ["Part", "Plan", "Recipe", "Target", "plan_reconstruction"]

Recipe = Literal["copy", "split", "join", "recombine"]
_PLACE = "{e}"
_NIBBLES = 16
"""Bytes of the values that share a scale."""


@dataclass(frozen=True)
class Part:
    """One operand, or one entry of it, and the rows of a tensor that it fills.

    Attributes
    ----------
    representation : Representation
    entry : int or None
        None: all of the operand.
    rows : RowSelection
        In the tensor.
    """

    representation: Representation
    entry: int | None
    rows: RowSelection


@dataclass(frozen=True)
class Target:
    """One tensor of the checkpoint.

    Attributes
    ----------
    name : str
    dtype : str
        As safetensors files name it.
    shape : tuple of int
    recipe : {"copy", "split", "join", "recombine"}
    parts : tuple of Part
        Their rows are all rows of the tensor, each once.
    half : {"whole", "values", "scales"}
        Which of the two tensors of a recombination it is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    recipe: Recipe
    parts: tuple[Part, ...]
    half: Literal["whole", "values", "scales"] = "whole"


@dataclass(frozen=True)
class Plan:
    """What a reconstruction writes.

    Attributes
    ----------
    targets : tuple of Target
        In the order in which the operands are used.
    baselines : tuple of Representation
        All that are read.
    left : mapping
        Tensors of the checkpoint that the container does not carry, and why.
    """

    targets: tuple[Target, ...]
    baselines: tuple[Representation, ...]
    left: Mapping[str, str]


def plan_reconstruction(container: Container) -> Plan:
    """Plan the tensors of the checkpoint that a container was made from.

    The plan is of the document: each operand's baseline is the first representation in the index,
    whatever a profile selects, and no sibling takes its place. No weight is read.

    Raises
    ------
    UnsupportedRefusal
        If the checkpoint was not in safetensors, or a baseline cannot be encoded as it was there.
    ResidencyRefusal
        If an operand of the graph has no baseline.
    BindingDefect
        If the index contradicts itself: rows that are missing or filled twice, shapes that do not
        fit, a record of the tensor's shape that is missing.
    ContainerError
        If the graph cannot be read.
    """
    index = container.index
    _check_format(container)
    baselines = index.by_operand()
    _check_complete(container, baselines)
    whole: dict[str, list[Part]] = {}
    targets: dict[str, Target | None] = {}
    for value in baselines.values():
        _check_encoding(container, value)
        for name, part, made in _places(container, value):
            if made is not None:
                _claim(container, targets, name, value)
                targets[name] = made
            else:
                if name not in whole:
                    _claim(container, targets, name, value)
                    targets[name] = None
                whole.setdefault(name, []).append(part)
    for name, parts in whole.items():
        targets[name] = _joined(container, name, parts)
    left = _left(index)
    for name, operand in _repeats(container).items():
        _claim(container, targets, name, baselines[operand])
        targets[name] = _copy(name, baselines[operand])
        left.pop(name, None)
    done = tuple(target for target in targets.values() if target is not None)
    return Plan(done, tuple(baselines.values()), left)


def _check_format(container: Container) -> None:
    found = container.index.source.get("format")
    if found != "safetensors":
        why = (
            "the metadata of a GGUF file is not carried, so that the file cannot be written again"
            if found == "gguf"
            else f"its index gives the source's format as {found!r:.60}"
        )
        raise UnsupportedRefusal(
            f"{container.path}: only checkpoints in safetensors are written back; {why}"
        )


def _check_complete(container: Container, baselines: Mapping[str, Representation]) -> None:
    for component in container.graph.components:
        for contract in operand_contracts(component):
            if contract.name not in baselines:
                raise ResidencyRefusal(
                    f"{container.path}: operand {contract.name} has no representation; the "
                    f"checkpoint cannot be written without it, take the container it was cut from"
                )


def _check_encoding(container: Container, value: Representation) -> None:
    source = value.source.encoding
    if value.encoding.unpacked is not None:
        raise UnsupportedRefusal(
            f"{container.path}: operand {value.operand} has {value.encoding.name} for its first "
            f"representation; checkpoints are written from plain rows, take the container that it "
            f"was packed from"
        )
    if source not in ENCODINGS or (
        value.encoding.name != source and source not in encodable_names()
    ):
        raise UnsupportedRefusal(
            f"{container.path}: operand {value.operand} is stored as {value.encoding.name} and was "
            f"{source!r:.60} in the checkpoint, which this build does not write"
        )


def _left(index: Index) -> dict[str, str]:
    left = index.source.get("left")
    return {str(k): str(v) for k, v in left.items()} if isinstance(left, Mapping) else {}


def _repeats(container: Container) -> dict[str, str]:
    """Return tensors that are copies of an operand, as the index records them."""
    found = container.index.source.get("repeats")
    if not isinstance(found, Mapping):
        return {}
    baselines = container.index.by_operand()
    for name, operand in found.items():
        if not isinstance(operand, str) or operand not in baselines:
            raise ContainerError(
                f"{container.path}: `source.repeats` says that {name} is a copy of {operand!r:.60},"
                f" which is no operand of the container"
            )
    return {str(k): str(v) for k, v in found.items()}


def _claim(
    container: Container, targets: Mapping[str, object], name: str, value: Representation
) -> None:
    if name in targets:
        raise BindingDefect(
            f"{container.path}: tensor {name} would be written twice, the second time from operand "
            f"{value.operand}"
        )


def _copy(name: str, value: Representation, entry: int | None = None) -> Target:
    own = value.shape if entry is None else value.shape[1:]
    shape = value.source.shape or own
    part = Part(value, entry, RowSelection.span(0, row_count(shape)))
    dtype = ENCODINGS[value.source.encoding].safetensors_dtype
    return Target(name, dtype, shape, "copy" if entry is None else "split", (part,))


def _places(
    container: Container, value: Representation
) -> Iterator[tuple[str, Part, Target | None]]:
    """Yield where an operand goes: a tensor's name, what it is of it, the tensor if that is all."""
    source, name = value.source, value.source.tensor
    where = f"{container.path}: operand {value.operand}"
    banks = container.index.holds_banks(value.segment)
    if _PLACE in name and banks:
        if source.form != "rows" or source.rows is not None:
            raise BindingDefect(f"{where}: entries with tensors of their own are whole rows")
        for entry in range(value.shape[0]):
            made = _copy(name.replace(_PLACE, str(entry)), value, entry)
            _check_elements(where, made.shape, value.shape[1:])
            yield made.name, made.parts[0], made
        return
    if source.form == "values_and_scales":
        yield from _recombined(value, where)
        return
    shape = source.shape or (value.shape if source.rows is None else None)
    if shape is None:
        raise BindingDefect(
            f"{where}: the index does not record the shape of tensor {name}, of which it is some "
            f"rows; extract the checkpoint again"
        )
    if source.form == "columns":
        if not banks or len(value.shape) != 3 or shape != _turned(value.shape):
            raise BindingDefect(f"{where}: {list(shape)} turned is not {list(value.shape)}")
    elif source.rows is None:
        _check_elements(where, shape, value.shape)
    rows = source.rows or RowSelection.span(0, row_count(shape))
    if rows.count * (shape[-1] if len(shape) > 1 else 1) != prod(value.shape):
        raise BindingDefect(
            f"{where}: {rows.count} rows of tensor {name} are not {list(value.shape)}"
        )
    yield name, Part(value, None, rows), None


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _check_elements(where: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if prod(shape) != prod(expected):
        raise BindingDefect(
            f"{where}: the checkpoint's tensor is recorded as {list(shape)}, expected as many "
            f"elements as {list(expected)}"
        )


def _recombined(value: Representation, where: str) -> Iterator[tuple[str, Part, Target]]:
    encoding, scales = ENCODINGS["mxfp4"], value.source.scales
    blocks = value.shape[-1] // encoding.block_elements
    expected = (*value.shape[:-1], blocks, _NIBBLES)
    shape = value.source.shape
    if scales is None or shape != expected or value.source.encoding != encoding.name:
        raise BindingDefect(
            f"{where}: values of {value.source.encoding} and scales cannot be told apart; expected "
            f"a tensor of scales and values of shape {list(expected)}"
        )
    part = Part(value, None, RowSelection.span(0, row_count(value.shape)))
    name = value.source.tensor
    yield name, part, Target(name, "U8", shape, "recombine", (part,), "values")
    yield scales, part, Target(scales, "U8", shape[:-1], "recombine", (part,), "scales")


def _joined(container: Container, name: str, parts: list[Part]) -> Target:
    """Return the tensor that operands are the rows of.

    Raises
    ------
    BindingDefect
        If they disagree about it, or are not all of its rows, each once.
    """
    first = parts[0].representation
    shape = first.source.shape or first.shape
    for part in parts[1:]:
        other = part.representation
        if (other.source.shape or other.shape, other.source.encoding) != (
            shape,
            first.source.encoding,
        ):
            raise BindingDefect(
                f"{container.path}: operands {first.operand} and {other.operand} disagree about "
                f"tensor {name}"
            )
    reached = 0
    for start, count in sorted(span for part in parts for span in part.rows.spans()):
        if start != reached:
            break
        reached = start + count
    if reached != row_count(shape):
        raise BindingDefect(
            f"{container.path}: tensor {name} has {row_count(shape)} rows, but row {reached} is "
            f"not filled exactly once by the operands that the index records for it"
        )
    alone = len(parts) == 1 and not container.index.holds_banks(first.segment)
    return Target(
        name,
        ENCODINGS[first.source.encoding].safetensors_dtype,
        shape,
        "copy" if alone else "join",
        tuple(parts),
    )
