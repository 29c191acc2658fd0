"""What families with routed experts share: routers, banks of experts, shared experts.

Checkpoints keep experts as tensors of their own, or as one tensor for all; the rows of gate and up
apart, or fused; weights as rows of outputs, or turned. What is found decides, not the family.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from larql.format.graph import Activation, DenseFfn, ExpertBank
from larql.format.lyrw.codes import Role
from larql.format.rows import RowSelection
from larql.format.source.builder import Builder
from larql.format.source.checkpoint import SourceTensor
from larql.format.source.pieces import BankBinding, Piece

__all__ = [
    "Experts",
    "clamped_experts",
    "fused_experts",
    "gated_experts",
    "packed_experts",
    "shared_ffn",
]

_MX_BLOCK = 32
_PACKED = r"experts\.(gate_up|down)_proj(_|$)"  # tensors of all experts of a layer


@dataclass(frozen=True)
class Experts:
    """Where a layer's experts are, and their numbers.

    Attributes
    ----------
    layer : int
    prefix : str
        What stands before an expert's number, or before the name of a packed tensor.
    count, hidden, width : int
    names : (str, str, str)
        Gate, up and down of one expert.
    """

    layer: int
    prefix: str
    count: int
    hidden: int
    width: int
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


def gated_experts(b: Builder, e: Experts, activation: Activation) -> ExpertBank:
    """Describe a bank of gated experts without biases, packed or each in tensors of its own."""
    if b.spelling(rf"experts\.\d+\.({'|'.join(e.names)})\.", _PACKED) == _PACKED:
        shape = (e.count, 2 * e.width, e.hidden)
        gate_up = _packed(b, e, Role.GATE_UP_FUSED, 0, "gate_up", "gate_up_proj", shape)
        shape = (e.count, e.hidden, e.width)
        return ExpertBank(
            programme="gated-mlp-v1",
            experts=e.count,
            hidden=e.hidden,
            width=e.width,
            activation=activation,
            gate_up=gate_up,
            fused_rows="contiguous_halves",
            down=_packed(b, e, Role.DOWN, 1, "down", "down_proj", shape),
        )
    gate, up, down = e.names
    return ExpertBank(
        programme="gated-mlp-v1",
        experts=e.count,
        hidden=e.hidden,
        width=e.width,
        activation=activation,
        gate=_separate(b, e, Role.GATE, 0, "gate", gate, (e.width, e.hidden)),
        up=_separate(b, e, Role.UP, 1, "up", up, (e.width, e.hidden)),
        down=_separate(b, e, Role.DOWN, 2, "down", down, (e.hidden, e.width)),
    )


def fused_experts(
    b: Builder,
    e: Experts,
    activation: Activation,
    gate_up: str,
    down: str,
    *,
    rows: Literal["contiguous_halves", "interleaved"] = "contiguous_halves",
) -> ExpertBank:
    """Describe a bank of two packed tensors of any name, whose gate and up lie as ``rows`` says."""
    shape = (e.count, 2 * e.width, e.hidden)
    return ExpertBank(
        programme="gated-mlp-v1",
        experts=e.count,
        hidden=e.hidden,
        width=e.width,
        activation=activation,
        gate_up=_packed(b, e, Role.GATE_UP_FUSED, 0, "gate_up", gate_up, shape),
        fused_rows=rows,
        down=_packed(b, e, Role.DOWN, 1, "down", down, (e.count, e.hidden, e.width)),
    )


def packed_experts(b: Builder, e: Experts, activation: Activation) -> ExpertBank:
    """Describe a bank of three packed tensors: gate, up and down of all experts."""
    gate, up, down = e.names
    return ExpertBank(
        programme="gated-mlp-v1",
        experts=e.count,
        hidden=e.hidden,
        width=e.width,
        activation=activation,
        gate=_packed(b, e, Role.GATE, 0, "gate", gate, (e.count, e.width, e.hidden)),
        up=_packed(b, e, Role.UP, 1, "up", up, (e.count, e.width, e.hidden)),
        down=_packed(b, e, Role.DOWN, 2, "down", down, (e.count, e.hidden, e.width)),
    )


def clamped_experts(b: Builder, e: Experts, *, limit: float, slope: float) -> ExpertBank:
    """Describe a bank with biases whose gate and up come in turn, or in tensors of their own.

    Weights are MXFP4 in two tensors, rows of outputs; or floats, columns of outputs. In tensors of
    their own, whose names ``e`` gives, gate and up are rows of outputs, and become halves.
    """
    apart = rf"\.({'|'.join(e.names)})\."
    if b.spelling(_PACKED, apart) == apart:
        return _clamped(b, e, _halves(b, e), "contiguous_halves", limit, slope)
    biases = (("gate_up", 2 * e.width), ("down", e.hidden))
    shapes = {"gate_up": (2 * e.width, e.hidden), "down": (e.hidden, e.width)}
    made: dict[str, str] = {}
    for number, (name, role) in enumerate((("gate_up", Role.GATE_UP_FUSED), ("down", Role.DOWN))):
        rows, columns = shapes[name]
        blocks = rf"\.{name}_proj_(blocks|scales)$"
        if b.spelling(rf"\.{name}_proj$", blocks) == blocks:
            made[name] = _blocks_and_scales(b, e, role, number, name, rows, columns)
        else:
            made[name] = _turned(b, e, role, number, name, rows, columns)
    for number, (name, width) in enumerate(biases, start=2):
        made[f"{name}_bias"] = _packed(
            b, e, Role.BIAS, number, f"{name}.bias", f"{name}_proj_bias", (e.count, width)
        )
    return _clamped(b, e, made, "interleaved", limit, slope)


def _halves(b: Builder, e: Experts) -> dict[str, str]:
    """Bind the regions of clamped experts whose gate and up are tensors of their own."""
    gate, up, down = e.names
    return {
        "gate_up": _stacked(b, e, Role.GATE_UP_FUSED, 0, "gate_up", (gate, up), ".weight"),
        "down": _packed(b, e, Role.DOWN, 1, "down", down, (e.count, e.hidden, e.width)),
        "gate_up_bias": _stacked(b, e, Role.BIAS, 2, "gate_up.bias", (gate, up), ".bias"),
        "down_bias": _packed(b, e, Role.BIAS, 3, "down.bias", f"{down}.bias", (e.count, e.hidden)),
    }


def _clamped(
    b: Builder,
    e: Experts,
    made: Mapping[str, str],
    rows: Literal["contiguous_halves", "interleaved"],
    limit: float,
    slope: float,
) -> ExpertBank:
    return ExpertBank(
        programme="gpt-oss-expert-v1",
        experts=e.count,
        hidden=e.hidden,
        width=e.width,
        activation="silu",
        gate_up=made["gate_up"],
        fused_rows=rows,
        down=made["down"],
        gate_up_bias=made["gate_up_bias"],
        down_bias=made["down_bias"],
        limit=limit,
        slope=slope,
        up_offset=1.0,
    )


def shared_ffn(b: Builder, layer: int, hidden: int, width: int, activation: Activation) -> DenseFfn:
    """Describe a gated FFN beside the routed experts; the naming has ``ffn.shared.gate`` …."""
    return DenseFfn(
        activation=activation,
        gate=b.linear("ffn.shared.gate", layer, width, hidden, bias=False),
        up=b.linear("ffn.shared.up", layer, width, hidden, bias=False),
        down=b.linear("ffn.shared.down", layer, hidden, width, bias=False),
    )


def _bind(
    b: Builder,
    e: Experts,
    role: Role,
    number: int,
    name: str,
    shape: tuple[int, ...],
    source: str,
    pieces: Sequence[Piece],
) -> str:
    operand = f"{b.component}.layer.{e.layer:03d}/experts.{name}"
    binding = BankBinding(operand, e.layer, role, number, shape, source, tuple(pieces))
    b.banks[operand] = binding
    return operand


def _entries(b: Builder, e: Experts, *sources: SourceTensor) -> range:
    """Return the experts that tensors hold: all, or none where a tensor is not as it should be."""
    return range(e.count if all(b.sound(source) for source in sources) else 0)


def _separate(
    b: Builder, e: Experts, role: Role, number: int, name: str, part: str, shape: tuple[int, int]
) -> str:
    """Bind a region of which each expert has a tensor."""
    pieces = []
    for expert in range(min(e.count, 1 + len(b.tensors))):
        source = b.source(f"{e.prefix}.{expert}.{part}.weight", shape)
        pieces.append(Piece((source,), (RowSelection.span(0, shape[0]),)))
    template = f"{e.prefix}.{{e}}.{part}.weight"
    return _bind(b, e, role, number, name, (e.count, *shape), template, pieces)


def _packed(
    b: Builder, e: Experts, role: Role, number: int, name: str, part: str, shape: tuple[int, ...]
) -> str:
    """Bind a region that one tensor holds for all experts, row by row."""
    source = f"{e.prefix}.{part}"
    bare = rf"\.{e.prefix.rsplit('.', 1)[-1]}\.{re.escape(part)}"
    dotted = rf"({bare}|_exps)\.weight$"
    if not part.endswith(".bias") and b.spelling(f"{bare}$", dotted) == dotted:
        source = f"{source}.weight"
    tensor = b.source(source, shape)
    rows = shape[1] if len(shape) == 3 else 1
    pieces = [
        Piece((tensor,), (RowSelection.span(expert * rows, rows),))
        for expert in _entries(b, e, tensor)
    ]
    return _bind(b, e, role, number, name, shape, source, pieces)


def _stacked(
    b: Builder,
    e: Experts,
    role: Role,
    number: int,
    name: str,
    parts: tuple[str, str],
    suffix: str,
) -> str:
    """Bind a region of which two tensors hold the first rows of all experts and the others."""
    inner = (e.hidden,) if suffix == ".weight" else ()
    first, second = (
        b.source(f"{e.prefix}.{part}{suffix}", (e.count, e.width, *inner)) for part in parts
    )
    form, other = (
        t.dtype if t.known_encoding is None else t.known_encoding.name for t in (first, second)
    )
    if b.sound(first) and b.sound(second) and form != other:
        b.refuse(second.name, f" is {other}, expected {form} as {first.name}")
    rows = e.width if inner else 1
    pieces = [
        Piece((first, second), (RowSelection.span(expert * rows, rows),) * 2, "stacked")
        for expert in _entries(b, e, first, second)
    ]
    shape = (e.count, 2 * e.width, *inner)
    return _bind(b, e, role, number, name, shape, f"{first.name} + {second.name}", pieces)


def _turned(
    b: Builder, e: Experts, role: Role, number: int, name: str, rows: int, columns: int
) -> str:
    """Bind a region that one tensor holds for all experts, its rows as columns."""
    source = f"{e.prefix}.{name}_proj"
    tensor = b.source(source, (e.count, columns, rows))
    if tensor.known_encoding is not None and tensor.known_encoding.is_block:
        b.refuse(source, f" is {tensor.known_encoding.name}, whose blocks cannot be turned")
    form: Literal["columns"] = "columns"
    pieces = [
        Piece((tensor,), (RowSelection.span(expert * columns, columns),), form)
        for expert in _entries(b, e, tensor)
    ]
    return _bind(b, e, role, number, name, (e.count, rows, columns), source, pieces)


def _blocks_and_scales(
    b: Builder, e: Experts, role: Role, number: int, name: str, rows: int, columns: int
) -> str:
    """Bind a region of MXFP4 numbers, whose values and scales are two tensors."""
    values, scales = f"{e.prefix}.{name}_proj_blocks", f"{e.prefix}.{name}_proj_scales"
    if columns % _MX_BLOCK:
        b.refuse(values, f": {columns} columns are no whole blocks of {_MX_BLOCK}")
    blocks = columns // _MX_BLOCK
    pair = (
        b.source(values, (e.count, rows, blocks, _MX_BLOCK // 2)),
        b.source(scales, (e.count, rows, blocks)),
    )
    for tensor in pair:
        if b.sound(tensor) and tensor.dtype != "U8":
            b.refuse(tensor.name, f" is {tensor.dtype}, expected U8")
    pieces = [
        Piece(
            pair,
            (
                RowSelection.span(expert * rows * blocks, rows * blocks),
                RowSelection.span(expert * rows, rows),
            ),
            "values_and_scales",
        )
        for expert in _entries(b, e, *pair)
    ]
    source = f"{values} + {scales}"
    return _bind(b, e, role, number, name, (e.count, rows, columns), source, pieces)
