"""Constants of a variant, as numbers inside a kernel."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.integers import GROUP, INTEGERS
from larql.kernels.interleaved import INTERLEAVED
from larql.kernels.jit import Variant, instruction, types
from larql.kernels.scales import SCALES

__all__ = [
    "narrow",
    "narrow_rows",
    "scale_count",
    "step_bytes",
    "step_elements",
    "step_units",
    "tile_columns",
    "tile_rows",
    "unit_count",
]


def _constant(variant: Any, value: int) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.IntType(64)(value)

    return types.int64(variant), emit


@instruction
def tile_rows(typingctx: Any, variant: Any) -> Any:
    """Return how many rows the variant's tiles have."""
    return _constant(variant, variant.rows)


@instruction
def tile_columns(typingctx: Any, variant: Any) -> Any:
    """Return how many columns the variant's tiles have."""
    return _constant(variant, variant.columns)


@instruction
def step_elements(typingctx: Any, variant: Any) -> Any:
    """Return how many elements one step of the variant's encoding has."""
    return _constant(variant, BLOCKS[variant.encoding].step)


@instruction
def step_bytes(typingctx: Any, variant: Any) -> Any:
    """Return how many bytes one step of the variant's encoding takes."""
    geometry = BLOCKS[variant.encoding]
    return _constant(variant, geometry.step // geometry.elements * geometry.nbytes)


@instruction
def step_units(typingctx: Any, variant: Any) -> Any:
    """Return how many units of equal scale a step of the variant's interleaved encoding has."""
    form = INTERLEAVED[variant.encoding]
    return _constant(variant, BLOCKS[variant.encoding].step // GROUP * form.units)


@instruction
def scale_count(typingctx: Any, variant: Any) -> Any:
    """Return how many prepared scales a block of the variant's encoding has."""
    scales = SCALES[variant.encoding]
    return _constant(variant, 0 if scales is None else scales.count)


@instruction
def unit_count(typingctx: Any, variant: Any) -> Any:
    """Return how many units of equal scale a group of the variant's integers has."""
    return _constant(variant, INTEGERS[variant.encoding].units)


def _changed(variant: Any, argument: Any, rows: int, columns: int) -> Any:
    other = Variant(variant.level, variant.encoding, rows, columns)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return other(variant, argument), emit


@instruction
def narrow(typingctx: Any, variant: Any, columns: Any) -> Any:
    """Return the variant with another, literal, number of columns."""
    if not isinstance(columns, types.IntegerLiteral):
        return None
    return _changed(variant, columns, variant.rows, columns.literal_value)


@instruction
def narrow_rows(typingctx: Any, variant: Any, rows: Any) -> Any:
    """Return the variant with another, literal, number of rows."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    return _changed(variant, rows, rows.literal_value, variant.columns)
