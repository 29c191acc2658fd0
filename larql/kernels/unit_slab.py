"""Sixteen interleaved rows times float32 vectors: sums of units are scaled, and not their weights.

A row is a sequence of units of 32 weights, or 16, with a scale each, and a shift where there are
shifts. Weight i of a unit is scale * (b + first) + shift of some bits b. Of a unit's weights

- four lanes, j = i mod 4, add 256^j * b * x in ascending order, one fused multiply-add each, from
  zero: as its bits lie in a word, b is that multiple;
- lane 2 is added to lane 0, lane 3 to lane 1, then the second to the first, by fused multiply-adds
  with the powers of two that make up for 256^j;
- `first` times the sum of the activations is added, where `first` is not 0; that sum has four lanes
  of its own, added up in the same order.

Unit after unit, this times the scale is added to the result, then the sum of the activations times
the shift. Where columns end inside a block, activations go on with zeros. Every step is rounded
once.
Signed bytes have no such sums: see :func:`has_units`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.integers import GROUP, INTEGERS
from larql.kernels.interleaved import INTERLEAVED, QUADS_OF_GROUP, Rows
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.levels import emitter
from larql.kernels.memory import (
    align_stack,
    keep_apart,
    offset,
    prefetch_lines,
    read,
    stack_room,
    write,
)
from larql.kernels.vector import F32, LANES, constant, fused, shuffled, spread
from larql.kernels.widths import chosen_width

__all__ = [
    "MOST_UNITS",
    "alike_units",
    "block_room",
    "has_units",
    "multiply_slab",
    "results_room",
    "slab_blocks",
    "slab_encoding",
    "slab_room",
    "spread_slab",
    "sum_units",
    "sums_room",
    "unit_size",
    "unit_tile",
]

MOST_UNITS = 1 << 15  # of a row, where one vector is multiplied
_WORD, _FLOAT = ir.IntType(64), ir.FloatType()
_NUMBERS = 4 * LANES  # bytes of a float32 of each row
_SLAB_BYTES = 12 << 10
_PARTS = 4  # lanes of a unit's sum
_SLABS = {form.source: name for name, form in INTERLEAVED.items()}
_TILES = (12, 8, 6, 4, 2, 1)  # vectors


def unit_size(encoding: str) -> int:
    """Return how many weights a unit of rows of an encoding has, interleaved or not."""
    return GROUP // INTERLEAVED[slab_encoding(encoding)].units


def has_units(encoding: str) -> bool:
    """Return whether products with rows of an encoding, interleaved or not, are defined here.

    Signed bytes need a conversion each, however they are scaled, and are read at the speed of
    memory as `larql.kernels.slab` and `larql.kernels.tile` multiply them.
    """
    form = INTERLEAVED.get(slab_encoding(encoding))
    return form is not None and form.quad is not None


def slab_encoding(encoding: str) -> str:
    """Return the encoding of slabs that rows of `encoding` are multiplied as."""
    return _SLABS.get(encoding, encoding)


def alike_units(encoding: str) -> str:
    """Return the encoding of slabs that stands for all whose spread slabs are multiplied alike."""

    def kind(name: str) -> tuple[int, int, bool]:
        form = INTERLEAVED[name]
        return form.units, form.first, INTEGERS[form.source].shifted

    names = [name for name in INTERLEAVED if has_units(name)]
    return next(name for name in names if kind(name) == kind(slab_encoding(encoding)))


def _added(b: Any, lanes: Sequence[Any]) -> Any:
    """Emit the sum of four lanes."""

    def pair(low: Any, high: Any, step: int) -> Any:
        return fused(b, high, constant(high.type, 256.0**-step), low)

    return pair(pair(lanes[0], lanes[2], 2), pair(lanes[1], lanes[3], 2), 1)


def _finished(
    b: Any, encoding: str, total: Any, added: Any, x: Any, scale: Any, shift: Any | None
) -> Any:
    """Emit a result with a unit's part; `x` is the sum of its activations."""
    first = INTERLEAVED[encoding].first
    if first:
        added = fused(b, constant(added.type, float(first)), x, added)
    total = fused(b, added, scale, total)
    return total if shift is None else fused(b, x, shift, total)


def _room(size: int) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return stack_room(builder, size)

    return emit


@instruction
def sums_room(typingctx: Any, variant: Any) -> Any:
    """Return the address of stack memory for the sums of a row's units, valid in this function."""
    return types.int64(variant), _room(4 * MOST_UNITS)


@instruction
def block_room(typingctx: Any, variant: Any) -> Any:
    """Return the address of stack memory for the activations of a block."""
    return types.int64(variant), _room(4 * BLOCKS[variant.encoding].elements)


@instruction
def results_room(typingctx: Any, variant: Any) -> Any:
    """Return the address of stack memory for a tile's results."""
    return types.int64(variant), _room(_NUMBERS * max(_TILES))


@instruction
def slab_room(typingctx: Any, variant: Any) -> Any:
    """Return the address of stack memory for as many interleaved blocks as :func:`slab_blocks`."""
    size = BLOCKS[variant.encoding].nbytes * LANES
    return types.int64(variant), _room(size * slab_blocks(variant.encoding))


def slab_blocks(encoding: str) -> int:
    """Return how many block columns of a slab stay in the first-level cache."""
    return max(1, _SLAB_BYTES // (BLOCKS[encoding].nbytes * LANES))


@instruction
def sum_units(typingctx: Any, variant: Any, x: Any, units: Any, sums: Any) -> Any:
    """Write the sum of each unit's activations."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, x, units, sums = args
        b, unit, four = builder, unit_size(variant.encoding), ir.VectorType(_FLOAT, _PARTS)
        with cgutils.for_range(b, units, intp=_WORD) as loop:
            at = b.add(x, b.mul(loop.index, _WORD(4 * unit)))
            lanes = read(b, at, four)
            for quad in range(1, unit // _PARTS):
                lanes = b.fadd(lanes, read(b, offset(b, at, 4 * _PARTS * quad), four))
            pairs = b.fadd(shuffled(b, lanes, lanes, [0, 1]), shuffled(b, lanes, lanes, [2, 3]))
            both = [b.extract_element(pairs, ir.IntType(32)(index)) for index in range(2)]
            write(b, b.fadd(*both), b.add(sums, b.mul(loop.index, _WORD(4))))
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 3), emit


def _add_unit(
    b: Any, encoding: str, place: Any, rows: Rows, p: Any, x: Any, sums: Any, u: int, scale: Any,
    shift: Any | None,
) -> None:  # fmt: skip
    """Emit the adding of a unit of a block, or of a turn of it, to the results at `place`."""
    form = INTERLEAVED[encoding]
    quads = QUADS_OF_GROUP // form.units
    lanes = [constant(F32.llvm, 0.0)] * _PARTS
    for quad in range(u * quads, (u + 1) * quads):
        keep_apart(b)
        for j, value in enumerate(form.values(rows, p, quad)):
            activation = read(b, offset(b, x, 4 * (_PARTS * quad + j)), _FLOAT)
            lanes[j] = fused(b, value, spread(b, activation), lanes[j])
    total_x = spread(b, read(b, offset(b, sums, 4 * u), _FLOAT))
    added = _added(b, lanes)
    b.store(_finished(b, encoding, b.load(place), added, total_x, scale, shift), place)


def _add_turns(
    b: Any, encoding: str, place: Any, rows: Rows, p: Any, x: Any, sums: Any, numbers: Any
) -> None:
    """Emit the adding of a block's units in a loop, whose code is read no faster than it is run.

    `numbers` is the address of memory for those of all units.
    """
    geometry, form = BLOCKS[encoding], INTERLEAVED[encoding]
    units = geometry.elements // unit_size(encoding)
    shifts = offset(b, numbers, _NUMBERS * units)
    form.write_numbers(rows, p, units, numbers, shifts)
    each = units // form.turns
    with cgutils.for_range(b, _WORD(form.turns), intp=_WORD) as loop:
        turning = replace(rows, turn=loop.index)
        x = b.add(x, b.mul(loop.index, _WORD(4 * geometry.elements // form.turns)))
        sums = b.add(sums, b.mul(loop.index, _WORD(4 * each)))
        skip = b.mul(loop.index, _WORD(_NUMBERS * each))
        for u in range(each):
            at = offset(b, skip, _NUMBERS * u)
            scale, shift = read(b, b.add(numbers, at), F32.llvm), None
            if INTEGERS[form.source].shifted:
                shift = read(b, b.add(shifts, at), F32.llvm)
            _add_unit(b, encoding, place, turning, p, x, sums, u, scale, shift)


@instruction
def multiply_slab(
    typingctx: Any, variant: Any, slab: Any, blocks: Any, ahead: Any, x: Any, sums: Any, out: Any
) -> Any:
    """Add the products of `blocks` block columns with one vector to the sixteen results at `out`.

    `sums` is what :func:`sum_units` wrote. Weights `ahead` bytes further on are fetched into the
    cache.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, slab, blocks, ahead, x, sums, out = args
        b, rows = builder, Rows(emitter(variant.level, builder))
        geometry, form = BLOCKS[variant.encoding], INTERLEAVED[variant.encoding]
        size, units = geometry.nbytes * LANES, geometry.elements // unit_size(variant.encoding)
        align_stack(b)
        numbers = stack_room(b, 2 * _NUMBERS * units)
        place = cgutils.alloca_once_value(b, read(b, out, F32.llvm))
        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            p = b.add(slab, b.mul(loop.index, _WORD(size)))
            at = b.add(x, b.mul(loop.index, _WORD(4 * geometry.elements)))
            of_units = b.add(sums, b.mul(loop.index, _WORD(4 * units)))
            prefetch_lines(b, b.add(p, ahead), size)
            if form.turns > 1:
                _add_turns(b, variant.encoding, place, rows, p, at, of_units, numbers)
            else:
                for u in range(units):
                    found = form.numbers(rows, p, u)
                    _add_unit(b, variant.encoding, place, rows, p, at, of_units, u, *found)
        write(b, b.load(place), out)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 6), emit


@instruction
def spread_slab(
    typingctx: Any, variant: Any, slab: Any, blocks: Any, panel: Any, scales: Any, shifts: Any
) -> Any:
    """Write a slab's bits as float32, weight after weight, and its units' numbers, for 16 rows."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, slab, blocks, panel, scales, shifts = args
        b, rows = builder, Rows(emitter(variant.level, builder))
        encoding = variant.encoding
        geometry, form = BLOCKS[encoding], INTERLEAVED[encoding]
        units = geometry.elements // unit_size(encoding)
        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            p = b.add(slab, b.mul(loop.index, _WORD(geometry.nbytes * LANES)))
            place = b.add(panel, b.mul(loop.index, _WORD(_NUMBERS * geometry.elements)))
            for quad in range(geometry.elements // _PARTS):
                keep_apart(b)
                for j, value in enumerate(form.values(rows, p, quad)):
                    write(b, value, offset(b, place, _NUMBERS * (_PARTS * quad + j)))
            at = b.mul(loop.index, _WORD(_NUMBERS * units))
            form.write_numbers(rows, p, units, *(b.add(base, at) for base in (scales, shifts)))
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 5), emit


@instruction
def unit_tile(
    typingctx: Any, variant: Any, left: Any, panel: Any, scales: Any, shifts: Any, units: Any,
    steps: Any, x: Any, x_stride: Any, sums: Any, sums_stride: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Multiply what :func:`spread_slab` wrote by the next vectors; return how many.

    They are as many as the widest tile takes of the `left` ones, at most `variant.columns`; each
    writes sixteen results. The variant's encoding stands for all that :func:`alike_units` has
    alike.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (_, left, panel, scales, shifts, units, steps, x, x_stride, sums, sums_stride, out,
         out_stride) = args  # fmt: skip
        b, encoding = builder, variant.encoding
        unit, shifted = unit_size(encoding), INTEGERS[INTERLEAVED[encoding].source].shifted
        zero = constant(F32.llvm, 0.0)

        def lane(weights: Any, vectors: Sequence[Any], j: int) -> list[Any]:
            """Emit a loop, lest the compiler load all of a unit before it multiplies."""
            places = [cgutils.alloca_once_value(b, zero) for _ in vectors]
            with cgutils.for_range(b, steps, intp=_WORD) as loop:
                w = b.add(weights, b.mul(loop.index, _WORD(_NUMBERS * _PARTS)))
                weight = read(b, offset(b, w, _NUMBERS * j), F32.llvm)
                skip = b.mul(loop.index, _WORD(4 * _PARTS))
                for vector, place in zip(vectors, places, strict=True):
                    value = read(b, offset(b, b.add(vector, skip), 4 * j), _FLOAT)
                    b.store(fused(b, weight, spread(b, value), b.load(place)), place)
            return [b.load(place) for place in places]

        def tile(count: int) -> None:
            vectors = [b.add(x, b.mul(x_stride, _WORD(c))) for c in range(count)]
            of_vectors = [b.add(sums, b.mul(sums_stride, _WORD(c))) for c in range(count)]
            places = [cgutils.alloca_once_value(b, zero) for _ in range(count)]
            with cgutils.for_range(b, units, intp=_WORD) as loop:
                weights = b.add(panel, b.mul(loop.index, _WORD(_NUMBERS * unit)))
                at = b.mul(loop.index, _WORD(4 * unit))
                ats = [b.add(vector, at) for vector in vectors]
                lanes = [lane(weights, ats, j) for j in range(_PARTS)]
                skip = b.mul(loop.index, _WORD(_NUMBERS))
                scale = read(b, b.add(scales, skip), F32.llvm)
                shift = read(b, b.add(shifts, skip), F32.llvm) if shifted else None
                skip = b.mul(loop.index, _WORD(4))
                for c, place in enumerate(places):
                    added = _added(b, [sums_of_lane[c] for sums_of_lane in lanes])
                    total_x = spread(b, read(b, b.add(of_vectors[c], skip), _FLOAT))
                    total = _finished(b, encoding, b.load(place), added, total_x, scale, shift)
                    b.store(total, place)
            for c, place in enumerate(places):
                write(b, b.load(place), b.add(out, b.mul(out_stride, _WORD(c))))

        return chosen_width(b, left, [n for n in _TILES if n <= variant.columns], tile)

    return types.int64(variant, *[types.int64] * 12), emit
