"""Sixteen interleaved rows times float32 vectors: the sums of `tile`, rows as lanes.

A float32 sum has sixteen lanes, and here each of them is a register of sixteen rows: what one
instruction does for lane i of sixteen rows, `larql.kernels.tile` does for sixteen lanes of a row.
The lanes are added in the order of `larql.kernels.vector.halve`, so that the bits are the same.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.integers import GROUP
from larql.kernels.interleaved import INTERLEAVED, Interleaved, Rows
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.levels import emitter
from larql.kernels.memory import align_stack, offset, prefetch_lines, read, write
from larql.kernels.vector import LANES, constant, fused, spread, transposed

__all__ = ["expand_slab", "float_slab"]

_WORD, _FLOAT = ir.IntType(64), ir.FloatType()
# Rows whose sums registers hold at a time, and their lanes; a slab stays in the first-level cache.
_ROWS_AT_ONCE = {"avx512": 16, "avx2": 8, "portable": 16}
_ALL = tuple(range(LANES))
_BY_FOUR = tuple(tuple(range(first, first + 4)) for first in range(0, LANES, 4))
# Of each word's weights two: what they need beside their sums fits the registers too.
_BY_PLACE = tuple(tuple(i for i in range(LANES) if i // 2 % 2 == half) for half in range(2))


def _lanes_at_once(level: str, form: Interleaved) -> tuple[tuple[int, ...], ...]:
    if level == "avx512":
        return (_ALL,)
    return _BY_PLACE if level == "avx2" and form.width == 4 else _BY_FOUR


def _apart(builder: Any) -> None:
    """Keep the compiler from moving loads over this place; no instruction comes of it.

    It would decode far more weights ahead of their use than there are registers.
    """
    builder.fence("seq_cst", targetscope="singlethread")


@instruction
def float_slab(typingctx: Any, variant: Any, slab: Any, blocks: Any, x: Any, out: Any) -> Any:
    """Multiply a slab, `blocks` block columns, by the float32 vector `x`; write 16 results."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, slab, blocks, x, out = args
        b, level = builder, emitter(variant.level, builder)
        geometry, form = BLOCKS[variant.encoding], INTERLEAVED[variant.encoding]
        size, count = geometry.nbytes * LANES, _ROWS_AT_ONCE[variant.level]
        align_stack(b)
        turns = list(product(range(0, LANES, count), _lanes_at_once(variant.level, form)))
        share = size // len(turns)
        coming = b.add(slab, b.mul(blocks, _WORD(size)))
        sums: dict[int, Any] = {}
        for turn, (row, lanes) in enumerate(turns):
            rows = Rows(level, row, count)
            zero = constant(ir.VectorType(_FLOAT, count), 0.0)
            places = {lane: cgutils.alloca_once_value(b, zero) for lane in lanes}
            with cgutils.for_range(b, blocks, intp=_WORD) as loop:
                p = b.add(slab, b.mul(loop.index, _WORD(size)))
                at = b.add(x, b.mul(loop.index, _WORD(4 * geometry.elements)))
                done = b.add(loop.index, b.mul(blocks, _WORD(turn)))
                prefetch_lines(b, b.add(coming, b.mul(done, _WORD(share))), share)
                for span in range(geometry.elements // form.span):
                    numbers: dict[int, Any] = {}
                    for quads in form.quads_by_lane(span):
                        _apart(b)
                        for quad in quads:
                            which = [j for j in range(4) if (4 * quad + j) % LANES in places]
                            if not which:
                                continue
                            unit = form.unit_of(quad)
                            if unit not in numbers:
                                numbers[unit] = form.factors(rows, p, unit)
                            weights = form.floats(rows, p, quad, which, *numbers[unit])
                            for j, weight in zip(which, weights, strict=True):
                                value = read(b, offset(b, at, 4 * (4 * quad + j)), _FLOAT)
                                place = places[(4 * quad + j) % LANES]
                                value = fused(b, weight, spread(b, value, count), b.load(place))
                                b.store(value, place)
            sums |= {lane: b.load(place) for lane, place in places.items()}
            if len(sums) == LANES:
                ordered = [sums[lane] for lane in range(LANES)]
                while len(ordered) > 1:
                    half = len(ordered) // 2
                    ordered = [b.fadd(ordered[i], ordered[i + half]) for i in range(half)]
                write(b, ordered[0], offset(b, out, 4 * row))
                sums = {}
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 4), emit


@instruction
def expand_slab(typingctx: Any, variant: Any, slab: Any, blocks: Any, out: Any, stride: Any) -> Any:
    """Decode a slab to float32, its rows `stride` bytes apart."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, slab, blocks, out, stride = args
        b, rows = builder, Rows(emitter(variant.level, builder))
        geometry, form = BLOCKS[variant.encoding], INTERLEAVED[variant.encoding]
        per_group = GROUP // LANES
        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            p = b.add(slab, b.mul(loop.index, _WORD(geometry.nbytes * LANES)))
            place = b.add(out, b.mul(loop.index, _WORD(4 * geometry.elements)))
            for half in range(geometry.elements // LANES):
                numbers = form.factors(rows, p, half * form.units // per_group)
                weights: list[Any] = []
                for q in range(LANES // 4):
                    weights += form.floats(rows, p, LANES // 4 * half + q, range(4), *numbers)
                for row, values in enumerate(transposed(b, weights)):
                    at = b.add(place, b.mul(stride, _WORD(row)))
                    write(b, values, offset(b, at, 4 * LANES * half))
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 4), emit
